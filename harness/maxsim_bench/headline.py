"""The headline cells, and builds of the operator timed against each other on one cell, round by round.

Orchestration beside `cli.py`. May import every room; torch and `maxsim` only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.machine import Machine
from maxsim_bench.measure.clock import Policy
from maxsim_bench.measure.timer import Call, Timing, TimingBudget, time_callables

if TYPE_CHECKING:
    from maxsim_bench.backends.base import Inputs

_SETS = 2  # the L2 is emptied before every sample; a second set is for whoever would return its last answer
# (B, Lq, Ld) with d = 128 and one query: the canonical shapes of the published tables, and small ones for a processor.
_GPU_SHAPES = ((1000, 32, 300), (1000, 32, 1024), (1000, 128, 1024), (1000, 512, 1024), (1000, 1024, 1024))
_CPU_SHAPES = ((50, 32, 180), (50, 32, 300))


class BuildError(RuntimeError):
    """A build of the operator that failed or gave wrong scores, so that its time means nothing."""


@dataclass(frozen=True)
class Rounds:
    """Times of builds on one cell, milliseconds; entry i of every list is from the same round."""

    label: str
    times_ms: dict[str, list[float]]


def headline_cells(machine: Machine) -> list[Cell]:
    """One query against a thousand documents at five lengths on a GPU; two small cells on a processor."""
    shapes, dtype, policy = (
        (_GPU_SHAPES, "fp16", "cold_l2") if machine.device == "cuda" else (_CPU_SHAPES, "fp32", "host")
    )
    base: dict[str, Any] = {
        "experiment": "headline", "gpu": machine.key, "op": "forward", "Nq": 1, "d": 128, "dtype": dtype,
        "layout": "dense", "pairing": "all", "inputs": "random", "timing_policy": policy,
    }  # fmt: skip
    return [Cell(**base, B=B, Lq=Lq, Ld=Ld) for B, Lq, Ld in shapes]


def label(cell: Cell) -> str:
    """The shape of a cell, for a reader."""
    axes = ("Nq", "B", "Lq", "Ld", "d", "dtype", "layout", "pairing", "length_distribution", "precision")
    default = {"layout": "dense", "pairing": "all"}
    given = {axis: getattr(cell, axis) for axis in axes}
    return " ".join(f"{axis}={v}" for axis, v in given.items() if v is not None and default.get(axis) != v)


def input_sets(cell: Cell, device: str) -> list[Inputs]:
    """The sets of inputs that the rounds of a cell rotate over."""
    from maxsim_bench.run.cell_inputs import draw_inputs

    return [draw_inputs(cell, device, index) for index in range(_SETS)]


def timed_rounds(
    cell: Cell, calls: Mapping[str, list[Call]], device: str, budget: TimingBudget, inspect: Inspect
) -> Rounds:
    """Time builds against each other in random order, round by round.

    Args:
        calls: name of a build → its call on each input set.
        inspect: judges one output of every timed call; see `scores_inspector`.

    Raises:
        BuildError: for a build that raised, or whose scores are wrong.
    """
    policy: Policy = cell.timing_policy or "cold_l2"
    found: dict[str, dict[int, float]] = {}
    for name, timing in time_callables(calls, policy, budget, device, inspect=inspect).items():
        if not isinstance(timing, Timing):
            raise BuildError(f"{name} on {label(cell)}: {timing.error}") from timing.error
        if timing.suspicion is not None:
            raise BuildError(f"{name} on {label(cell)}: its times cannot be trusted: {timing.suspicion}")
        found[name] = dict(zip(timing.rounds, timing.samples_ms, strict=True))
    common = sorted(set.intersection(*(set(times) for times in found.values())))
    return Rounds(label(cell), {name: [times[r] for r in common] for name, times in found.items()})


Inspect = Callable[[str, int, object], None]


def scores_inspector(
    cell: Cell, sets: list[Inputs], backend_of: Callable[[str], str] = lambda build: "fused"
) -> Inspect:
    """Raises `ResultError` for scores that differ from the FP32 reference's by more than their backend may.

    Args:
        backend_of: name of a build → the backend whose tolerance it is judged by.
    """
    from maxsim_bench.backends import registry
    from maxsim_bench.run.check import ResultError, judge_as_returned
    from maxsim_bench.run.truth import truth_of

    truths = [truth_of(cell, inputs, registry.get("reference")) for inputs in sets]

    def inspect(build: str, index: int, output: object) -> None:
        tolerance = registry.get(backend_of(build)).tolerance(cell)
        wrong = judge_as_returned(truths[index], output, tolerance).wrong
        if wrong is not None:
            raise ResultError(wrong)

    return inspect
