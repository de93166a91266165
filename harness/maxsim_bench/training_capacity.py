"""How much memory a contrastive step takes as the batch doubles, by backend: what the largest batch of a card is.

    python -m maxsim_bench.training_capacity                   # rows in results/local/training_capacity.csv
    python -m maxsim_bench.training_capacity --largest 512

Orchestration beside `cli.py`. In: this machine's GPU. Out: a row for each backend and batch (Nq = B, Lq = Ld = 1024,
d = 128, fp16) with inputs and peak, until one does not fit. Each step runs once and is neither timed nor compared:
other experiments do that. A backend has a process of its own, so that one that breaks the device breaks nothing else,
and a step has a limit of time. Stopped by Ctrl-C, the same command goes on from the rows that are there.
May import every room; torch only inside functions.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Status
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.modules import at_least, command_parser, ended_in_one_line, seconds
from maxsim_bench.record.children import DYING_SECONDS, Child
from maxsim_bench.record.row import Row

EXPERIMENT = "training_capacity"
LENGTH, DIMENSION = 1024, 128
SMALLEST, LARGEST = 64, 2048  # of the batch; 2048 is four thousand million query tokens and documents
# Ours first: a run cut short has the rows that others are compared with.
BACKENDS = (
    "train_fused", "train_lean", "train_recompute", "train_eager", "train_flash_maxsim", "train_lik",
    "train_lik_lowmem",
)  # fmt: skip
STEP_SECONDS = 40.0  # of one step, compilation and a peer's tuning included
START_SECONDS = 60.0  # until a process has loaded its libraries and opened the device


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


def ladder(backend: str, gpu: str, device: str, sizes: Sequence[int]) -> Iterator[Step]:
    """One step at each size until one fails; runs in a process of its own."""
    import torch

    from maxsim_bench.backends.inputs import make_inputs
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure import memory
    from maxsim_bench.measure.failures import describe, kind_of

    for B in sizes:
        cell = cell_of(gpu, B)
        reason = get(backend).supports(cell, device)
        if reason is not None:
            yield Step(B, "unsupported", error=reason)
            return
        try:
            inputs = make_inputs(cell, device)
            reading = memory.measure_peak(get(backend).prepare(cell, inputs), device)
        except (RuntimeError, MemoryError) as error:
            status: Status = {"oom": "oom", "fatal": "crash", "error": "error"}[kind_of(error)]  # type: ignore[assignment]
            yield Step(B, status, error=describe(error))
            return
        size = sum(t.numel() * t.element_size() for t in inputs.tensors())
        yield Step(B, "ok", size, None if reading is None else reading.peak_extra_bytes)
        del inputs
        if device == "cuda":
            torch.cuda.empty_cache()


Climb = Callable[[str, str, str, Sequence[int]], Iterable[Step]]


def run(
    machine: Machine, folder: Path, largest: int, say: Callable[[str], None], climb: Climb = ladder,
    step_seconds: float = STEP_SECONDS,
) -> list[Row]:  # fmt: skip
    """Climb with every backend from where the store's rows of it end; every step is a row at once. All rows.

    Args:
        step_seconds: after which a step is given up, and with it its backend.
    """
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.environments import add_environments
    from maxsim_bench.record.store import Store

    environment = capture(machine.device)
    identity = environment_id(environment)
    store = Store(folder / f"{EXPERIMENT}.csv")
    with store.lock():
        add_environments(folder, {identity: environment})
        for name in BACKENDS:
            there = [row for row in store.rows() if (row.backend, row.backend_version) == (name, get(name).version())]
            tried = {row.cell.B for row in there}
            left = [B for B in batches(largest) if B not in tried]
            if not left or any(row.status != "ok" for row in there):
                continue
            told = []
            for step in _climbed(name, machine, left, climb, step_seconds):
                store.append([to_row(step, name, machine, identity)])
                told.append(_told(step))
            say(f"{name}: " + ", ".join(told))
    return store.rows()


def _climbed(name: str, machine: Machine, sizes: Sequence[int], climb: Climb, step_seconds: float) -> Iterator[Step]:
    """A backend's steps as they end; one that takes its process along is a crash, one that takes too long a timeout."""
    child = Child(_climb, climb, name, machine.key, machine.device, tuple(sizes))
    limit = START_SECONDS + step_seconds  # the first one's; its process loads its libraries and opens the device before
    try:
        for B in sizes:
            if not child.channel.poll(limit):
                yield Step(B, "timeout", error=f"no answer within {limit:g} s")
                return
            try:
                told = child.channel.recv()
            except (EOFError, OSError):
                yield Step(B, "crash", error=f"its process died: exit status {child.end(DYING_SECONDS)}")
                return
            if isinstance(told, str):
                raise RuntimeError(f"{name} at B = {B}, in its process:\n{told}")
            yield told
            if told.status != "ok":
                return
            limit = step_seconds
    finally:
        child.end()


def _climb(channel: Connection, climb: Climb, *told: Any) -> None:
    try:
        for step in climb(*told):
            channel.send(step)
    except Exception:
        channel.send(traceback.format_exc())


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
    parser = command_parser("training_capacity", __doc__ or "")
    parser.add_argument("--into", type=Path, default=Path("results/local"), help=f"folder of {EXPERIMENT}.csv")
    parser.add_argument("--largest", type=at_least(SMALLEST), default=LARGEST, help="batch size that is tried last")
    parser.add_argument("--step-seconds", type=seconds, default=STEP_SECONDS, help="after which a step is given up")
    told = parser.parse_args(arguments)
    with ended_in_one_line():
        machine = this_machine()
        if machine.device != "cuda":
            parser.error("needs an NVIDIA GPU: what is asked is what fits on one")
        run(machine, told.into, told.largest, lambda line: print(line, flush=True), step_seconds=told.step_seconds)


if __name__ == "__main__":
    main()
