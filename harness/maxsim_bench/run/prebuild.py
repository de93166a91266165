"""Compile what a grid will launch, in many processes at once, before one process measures it.

Room: `run`. May import: declare, record, measure, backends.

Backends compile on their first call of a shape, seconds each, while the card waits. Compiled kernels lie in a cache on
the disk, so other processes can fill it first. Only compilation is brought forward: an autotuner chooses among its
configurations by time, and times taken side by side are worthless, so here it runs each once and remembers nothing.
A backend that says `tunes_to_disk` (torch's max-autotune) would remember, and is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure import memory
from maxsim_bench.measure.failures import describe, kind_of
from maxsim_bench.run.cell_inputs import draw_inputs
from maxsim_bench.run.protocol import load

_MEMORY_SHARE = 0.8  # of the card, for all processes together
_SAME_KERNELS = {"timing_policy": None, "memory_cap": None, "experiment": "prebuild"}
_ELSEWHERE = ("search", "fidelity")  # operators whose inputs fill main memory or are not drawn


class Order(BaseModel):
    """Work of one process: cells with the backends to call once on each."""

    model_config = ConfigDict(frozen=True)

    device: str
    resolver: str
    share: float
    cells: tuple[tuple[Cell, tuple[str, ...]], ...]


class Built(BaseModel):
    """Calls that were made, and why others were not: what is missing is compiled when it is measured."""

    calls: int = 0
    left: list[str] = []


def shapes(cells: Iterable[tuple[Cell, Sequence[str]]]) -> list[tuple[Cell, tuple[str, ...]]]:
    """Cells that may launch other kernels than those before them, each with all backends that its likes name."""
    found: dict[Cell, dict[str, None]] = {}
    for cell, names in cells:
        if cell.op not in _ELSEWHERE:
            found.setdefault(cell.model_copy(update=_SAME_KERNELS), {}).update(dict.fromkeys(names))
    return [(cell, tuple(names)) for cell, names in found.items()]


def prebuild(
    cells: Iterable[tuple[Cell, Sequence[str]]], processes: int, *, device: str, resolver: str, timeout_s: float
) -> Built:
    """Call every backend once on every shape, in `processes` processes that share the device.

    Args:
        cells: cells with the names of their backends, as a sweep takes them.
        processes: at least 1.
        device: "cuda" or "cpu".
        resolver: "module:function" that gives a backend by name.
        timeout_s: after which processes are ended; what they compiled stays compiled.

    Returns:
        What was called. A process that dies or is ended is a line in `left`, no exception: measuring goes on without.
    """
    todo = shapes(cells)
    count = min(processes, len(todo))
    running = []
    for i in range(count):
        order = Order(device=device, resolver=resolver, share=_MEMORY_SHARE / count, cells=tuple(todo[i::count]))
        child = subprocess.Popen(
            [sys.executable, "-m", "maxsim_bench.run.prebuild"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append((child, order.model_dump_json()))
    return _gathered(running, timeout_s)


def _gathered(running: list[tuple[subprocess.Popen[str], str]], timeout_s: float) -> Built:
    from concurrent.futures import ThreadPoolExecutor

    def wait(child: subprocess.Popen[str], order: str) -> Built:
        try:
            out, err = child.communicate(order, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return Built(left=[f"a process was ended after {timeout_s:g} s"])
        if child.returncode != 0:
            last = (err.strip().splitlines() or ["without a word"])[-1]
            return Built(left=[f"a process ended with status {child.returncode}: {last}"])
        return Built.model_validate_json(out.strip().splitlines()[-1])

    done = Built()
    try:
        with ThreadPoolExecutor(max(1, len(running))) as pool:
            for part in pool.map(lambda pair: wait(*pair), running):
                done.calls += part.calls
                done.left += part.left
    finally:
        for child, _ in running:
            child.kill()
    return done


def _build(order: Order, resolve: Callable[[str], Backend]) -> Built:
    done = Built()
    for cell, names in order.cells:
        able = [
            name
            for name in names
            if not getattr(resolve(name), "tunes_to_disk", False) and resolve(name).supports(cell, order.device) is None
        ]
        try:
            inputs = draw_inputs(cell, order.device, 0) if able else None
        except Exception as error:
            done.left.append(_told(cell, "inputs", error))
            continue
        for name in able:
            try:
                assert inputs is not None
                resolve(name).prepare(cell, inputs)()
                memory.settle(order.device)
                done.calls += 1
            except Exception as error:
                if kind_of(error) == "fatal":  # nothing works in this process any more
                    done.left.append(_told(cell, name, error))
                    return done
                done.left.append(_told(cell, name, error))
        del inputs
        memory.forget_compiled()
        memory.settle(order.device)
    return done


def _told(cell: Cell, what: str, error: Exception) -> str:
    size = " ".join(f"{axis}={getattr(cell, axis)}" for axis in ("Nq", "B", "Lq", "Ld", "d") if getattr(cell, axis))
    return f"{what} at {cell.op} {size}: {describe(error)}"


def _without_tuning() -> None:
    """Let Triton's autotuners compile and run every configuration, time none, and write no choice to the disk."""
    from triton.runtime.autotuner import Autotuner

    def once(fn: Callable[[], object], quantiles: Sequence[float] = (0.5,), **_: object) -> list[float]:
        fn()
        return [0.0] * len(quantiles)

    def uncached(self: Autotuner, key: object, configs: object, bench: Callable[[], object]) -> bool:
        bench()
        return False

    Autotuner.do_bench = property(lambda self: once)
    if hasattr(Autotuner, "check_disk_cache"):
        Autotuner.check_disk_cache = uncached


def main() -> None:
    """One process: an `Order` as JSON on standard input, `Built` as the last line of standard output."""
    order = Order.model_validate_json(sys.stdin.read())
    if order.device == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(order.share)
        _without_tuning()
    print(json.dumps(_build(order, load(order.resolver)).model_dump(mode="json")))


if __name__ == "__main__":
    main()
