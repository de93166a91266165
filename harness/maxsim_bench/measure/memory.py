"""The one memory meter: what a call takes beyond what was there, and whether it gives it back.

Room: `measure`. Imports nothing else of ours. On a processor there is no meter: readings are None, never 0.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Bytes a library may keep after its first call without being a leak: a semaphore array, a scratch counter. cuBLAS
# workspaces are larger but can be dropped, and pools of CUDA graphs are known by size; neither is in here.
LEAK_ALLOWANCE = 1 << 20

_CONTROL_GROUP = Path("/sys/fs/cgroup")  # a container sees its own here


@dataclass(frozen=True)
class MemoryReading:
    """Bytes of one call.

    Attributes:
        peak_extra_bytes: highest allocated during the call minus allocated just before, results included, plus what
            CUDA graphs hold privately for it.
        peak_reserved_bytes: highest reserved by the allocator during the call.
    """

    peak_extra_bytes: int
    peak_reserved_bytes: int


def measure_peak(call: Callable[[], object], device: str, pools_before: int = 0) -> MemoryReading | None:
    """Memory of one call, in a pass of its own.

    The call must have run before, so that compilation and library workspaces are not counted.

    Args:
        call: what to run once.
        device: "cuda" or "cpu".
        pools_before: `graph_pool_bytes()` before the callable was prepared.

    Returns:
        None on a processor.
    """
    if device != "cuda":
        return None
    import torch

    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    pools = max(graph_pool_bytes() - pools_before, 0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = call()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    del output
    return MemoryReading(peak - before + pools, reserved)


def allocated(device: str) -> int | None:
    """Bytes allocated outside the pools of CUDA graphs; None on a processor."""
    if device != "cuda":
        return None
    import torch

    return sum(s["allocated_size"] for s in torch.cuda.memory_snapshot() if not _private(s))


def graph_pool_bytes() -> int:
    """Bytes that CUDA graphs hold in pools of their own."""
    import torch

    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if _private(s))


def _private(segment: dict[str, object]) -> bool:
    pool = segment.get("segment_pool_id", (0, 0))
    return tuple(pool) != (0, 0)  # type: ignore[arg-type]  # a snapshot is untyped; this field is a pair


def settle(device: str) -> int | None:
    """Collect garbage, drop library workspaces, empty the allocator; bytes still allocated, None on a processor."""
    gc.collect()
    if device != "cuda":
        return None
    import torch

    torch.cuda.synchronize()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
    return allocated(device)


def release_pinned() -> None:
    """Give pinned blocks that nobody holds back to the system: torch keeps them for the next who asks."""
    import torch

    torch.cuda.synchronize()  # a block is free once the copies out of it are done
    release = getattr(torch.accelerator, "empty_host_cache", None)  # public in torch 2.13; below it has a private name
    (release or torch._C._host_emptyCache)()


def freeze() -> None:
    """Leave what is alive now out of later collections: torch's own modules take 0.1 s each time."""
    gc.freeze()


def leak(baseline: int | None, device: str) -> str | None:
    """What is still allocated above `baseline` (of `settle`), in words; None if nothing is, or on a processor."""
    now = settle(device)
    if now is None or baseline is None or now - baseline <= LEAK_ALLOWANCE:
        return None
    return f"leaks {now - baseline} bytes of device memory: they are still allocated after its last use"


def forget_compiled() -> None:
    """Drop what torch.compile keeps between shapes, graph pools included, if anything was compiled here."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


@contextmanager
def cap(limit_bytes: int | None, device: str) -> Iterator[None]:
    """Refuse device memory beyond `limit_bytes` to this process, so that a large card answers for a small one.

    Raises:
        ValueError: for a limit above what the card has.
    """
    if limit_bytes is None or device != "cuda":
        yield
        return
    import torch

    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if limit_bytes > total:
        raise ValueError(f"memory_cap = {limit_bytes} bytes, but the card has {total}. Leave the cell out here.")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def available_bytes(device: str, limit_bytes: int | None = None) -> int:
    """Bytes that can still be allocated: free on the card plus cached by the allocator, or free main memory.

    Main memory is that of the machine or what a container's limit leaves, whichever is less.

    Args:
        device: "cuda" or "cpu".
        limit_bytes: of an active `cap`.
    """
    if device != "cuda":
        import psutil

        free_here, left = int(psutil.virtual_memory().available), _left_of_limit()
        return free_here if left is None else min(free_here, left)
    import torch

    free, _ = torch.cuda.mem_get_info()
    held = torch.cuda.memory_allocated()
    here = int(free + torch.cuda.memory_reserved() - held)
    return here if limit_bytes is None else min(here, limit_bytes - held)


def _left_of_limit() -> int | None:
    """Bytes until the memory limit of this container's control group (version 2); None where there is none.

    Pages of files count as used there, though the system drops them when memory is asked for: they are added back.
    """
    try:
        limit = (_CONTROL_GROUP / "memory.max").read_text("ascii").strip()
        used = int((_CONTROL_GROUP / "memory.current").read_text("ascii"))
        lines = (_CONTROL_GROUP / "memory.stat").read_text("ascii").splitlines()
    except FileNotFoundError:  # no container, another system, or control groups of version 1
        return None
    if limit == "max":
        return None
    counts = dict(line.split() for line in lines)
    dropped = int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
    return max(int(limit) - used + dropped, 0)


def probe(device: str) -> None:
    """A small product with a known answer; raises RuntimeError if the device no longer computes."""
    import torch

    a = torch.ones(64, 64, device=device)
    total = float((a @ a).sum())
    if total != 64.0**3:
        raise RuntimeError(f"the device is lost: it says that 64³ is {total}")
