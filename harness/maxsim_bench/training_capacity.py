"""How much memory a contrastive step takes as the batch doubles, by backend: what the largest batch of a card is.

    python -m maxsim_bench.training_capacity                   # rows in results/local/training_capacity.csv
    python -m maxsim_bench.training_capacity --largest 512

Orchestration beside `cli.py`. In: this machine's GPU. Out: a row for each backend and batch (Nq = B, Lq = Ld = 1024,
d = 128, fp16) with inputs and peak, until one does not fit. Each step runs once and is neither timed nor compared:
other experiments do that. A backend has a process of its own, so that one that breaks the device breaks nothing else.
May import every room; torch only inside functions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.record.row import Row, Status

EXPERIMENT = "training_capacity"
LENGTH, DIMENSION = 1024, 128
SMALLEST, LARGEST = 64, 2048  # of the batch; 2048 is four thousand million query tokens and documents
BACKENDS = (
    "train_fused", "train_eager", "train_flash_maxsim", "train_lik", "train_lik_lowmem", "train_recompute",
    "train_lean",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What one batch size gave: bytes of the inputs and beyond them, or why there are none."""

    B: int
    status: Status
    input_bytes: int | None = None
    peak_extra_bytes: int | None = None
    error: str | None = None


def cell_of(gpu: str, B: int) -> Cell:
    """A contrastive step of B queries and B documents."""
    return Cell(
        experiment=EXPERIMENT, gpu=gpu, op="training_step", Nq=B, B=B, Lq=LENGTH, Ld=LENGTH, d=DIMENSION, dtype="fp16",
        layout="dense", pairing="all", inputs="random", variant="loss=cross_entropy",
    )  # fmt: skip


def batches(largest: int) -> list[int]:
    """Batch sizes that are tried, each twice the one before."""
    return [B for B in (SMALLEST << i for i in range(32)) if largest >= B]


def ladder(backend: str, gpu: str, device: str, sizes: Sequence[int]) -> list[Step]:
    """One step at each size until one fails; runs in a process of its own."""
    import torch

    from maxsim_bench.backends.inputs import make_inputs
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure import memory
    from maxsim_bench.measure.failures import describe, kind_of

    steps: list[Step] = []
    for B in sizes:
        cell = cell_of(gpu, B)
        reason = get(backend).supports(cell, device)
        if reason is not None:
            return [*steps, Step(B, "unsupported", error=reason)]
        try:
            inputs = make_inputs(cell, device)
            reading = memory.measure_peak(get(backend).prepare(cell, inputs), device)
        except (RuntimeError, MemoryError) as error:
            status: Status = {"oom": "oom", "fatal": "crash", "error": "error"}[kind_of(error)]  # type: ignore[assignment]
            return [*steps, Step(B, status, error=describe(error))]
        size = sum(t.numel() * t.element_size() for t in inputs.tensors())
        steps.append(Step(B, "ok", size, None if reading is None else reading.peak_extra_bytes))
        del inputs
        if device == "cuda":
            torch.cuda.empty_cache()
    return steps


def run(
    machine: Machine, folder: Path, largest: int, say: Callable[[str], None],
    climb: Callable[[str, str, str, Sequence[int]], list[Step]] = ladder,
) -> list[Row]:  # fmt: skip
    """Climb with every backend that the store holds no row of; all rows."""
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.samples import add_environments
    from maxsim_bench.record.store import Store

    environment = capture(machine.device)
    identity = environment_id(environment)
    store = Store(folder / f"{EXPERIMENT}.csv")
    with store.lock():
        add_environments(folder, {identity: environment})
        done = {(row.backend, row.backend_version) for row in store.rows()}
        left = [name for name in BACKENDS if (name, get(name).version()) not in done]
        for name, steps in _climbed(left, machine, batches(largest), climb):
            rows = [to_row(step, name, machine, identity) for step in steps]
            store.append(rows)
            say(f"{name}: " + ", ".join(_told(step) for step in steps))
    return store.rows()


def _climbed(
    left: Sequence[str], machine: Machine, sizes: Sequence[int], climb: Callable[..., list[Step]]
) -> Iterator[tuple[str, list[Step]]]:
    """Each backend's steps; a process that dies leaves one crash."""
    for name in left:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                yield name, pool.submit(climb, name, machine.key, machine.device, sizes).result()
            except BrokenProcessPool as error:
                yield name, [Step(sizes[0], "crash", error=f"its process died: {error}")]


def to_row(step: Step, backend: str, machine: Machine, environment: str) -> Row:
    """The row of one step."""
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure import clock

    told: dict[str, Any] = {"input_bytes": step.input_bytes, "peak_extra_bytes": step.peak_extra_bytes}
    return Row(
        cell=cell_of(machine.key, step.B), backend=backend, backend_version=get(backend).version(), gpu=machine.name,
        status=step.status, error=step.error, environment_id=environment, measured_at=clock.utc_now(), **told,
    )  # fmt: skip


def _told(step: Step) -> str:
    if step.status != "ok":
        return f"{step.B} {step.status}"
    return f"{step.B} ok" if step.peak_extra_bytes is None else f"{step.B} {step.peak_extra_bytes / 1e9:.2f} GB"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, climb, print."""
    parser = argparse.ArgumentParser(prog="python -m maxsim_bench.training_capacity", description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("results/local"), help=f"folder of {EXPERIMENT}.csv")
    parser.add_argument("--largest", type=int, default=LARGEST, help="batch size that is tried last")
    told = parser.parse_args(arguments)
    machine = this_machine()
    if machine.device != "cuda":
        parser.error("needs an NVIDIA GPU: what is asked is what fits on one")
    run(machine, told.into, told.largest, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
