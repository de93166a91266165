"""Loops that measure a ceiling in a kernel's own tile. A module of this room that defines `CEILINGS` is found.

Room: `backends`. May import: declare, `maxsim`. `run` hands them to `measure.ceilings` beside its own products.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import maxsim_bench.backends as room


@dataclass(frozen=True)
class Probe:
    """A candidate for the ceiling of one matrix unit.

    Attributes:
        name: what it is called in a session's ceilings.
        unit: matrix unit whose ceiling it may raise: "fp16", "int8", "fp8" ...
        make: builds the call to time, on the current GPU; raises on one it cannot run on.
        operations: of one call, on the current GPU.
    """

    name: str
    unit: str
    make: Callable[[], Callable[[], Any]]
    operations: Callable[[], float]


def processors() -> int:
    """Multiprocessors of the current GPU."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def probes() -> list[Probe]:
    """Every probe of this room, in the order of module names. Imports no kernel."""
    found: list[Probe] = []
    for module in pkgutil.iter_modules(room.__path__):
        found += getattr(importlib.import_module(f"{room.__name__}.{module.name}"), "CEILINGS", ())
    return found
