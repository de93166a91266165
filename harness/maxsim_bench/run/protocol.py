"""What a sweep and its worker processes say to each other. Everything here is pickled.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.record.row import Row

Step = Callable[[str], None]


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs before its first cell.

    Attributes:
        session: "module:name" of the class of a `Session`.
        resolver: "module:function" that gives a backend by name.
        device: "cuda", "cpu", or None for a GPU if there is one.
    """

    session: str = "maxsim_bench.run.session:CellSession"
    resolver: str = "maxsim_bench.backends.registry:get"
    device: str | None = None


@dataclass(frozen=True)
class Hello:
    """What a worker says when it is ready.

    Attributes:
        device: "cuda" or "cpu".
        device_name: the driver's name of the card, or the processor's.
        device_key: one device of this machine, for the lock.
        environment: what was captured.
        environment_id: its fingerprint.
    """

    device: str
    device_name: str
    device_key: str
    environment: dict[str, Any]
    environment_id: str


@dataclass(frozen=True)
class CellRequest:
    """One cell to measure with some backends.

    Attributes:
        cell, backends: what.
        versions: backend → version, as the sweep knows it.
        baseline: backend that speed-ups are relative to, if it is among them.
        budget: of the timer.
        ceilings: record of `Ceilings`, None where none were measured.
        fresh: in a process that has measured nothing before, and that is given up afterwards.
        timeout_s: longest silence of the worker.
    """

    cell: Cell
    backends: tuple[str, ...]
    versions: dict[str, str]
    baseline: str | None = None
    budget: TimingBudget = field(default_factory=TimingBudget)
    ceilings: dict[str, Any] | None = None
    fresh: bool = False
    timeout_s: float = 300.0


@dataclass
class CellResult:
    """What came of a request.

    Attributes:
        rows: one for each backend.
        samples: row key → raw samples and their order.
        unhealthy: why the worker must not be used again, None while it is fine.
    """

    rows: list[Row]
    samples: dict[str, Any] = field(default_factory=dict)
    unhealthy: str | None = None


class Session(Protocol):
    """What runs inside a worker process; built from (device or None, resolver)."""

    def hello(self) -> Hello: ...
    def ceilings(self) -> dict[str, Any]: ...
    def measure(self, request: CellRequest, step: Step) -> CellResult: ...


class LostDeviceError(RuntimeError):
    """The device answers every further call with an error: this process cannot go on."""


def load(reference: str) -> Any:
    """The object that "module:name" refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
