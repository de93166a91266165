"""The device at hand, as grids and result folders name it.

Orchestration beside `cli.py`. May import every room; torch only inside the function that asks for the card.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from maxsim_bench.declare.estimate import gpu_key


@dataclass(frozen=True)
class Machine:
    """What measures here: "cuda" or "cpu", the key of grids ("h200", "cpu"), the device's own name, its bytes."""

    device: str
    key: str
    name: str
    memory_bytes: int
    processors: int


def this_machine() -> Machine:
    """The visible NVIDIA GPU, or the processor where there is none."""
    import psutil
    import torch

    from maxsim_bench.measure.environment import capture, device_name

    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        return Machine("cuda", gpu_key(card.name, card.total_memory), card.name, card.total_memory, processors)
    return Machine("cpu", "cpu", device_name(capture("cpu")), psutil.virtual_memory().total, processors)
