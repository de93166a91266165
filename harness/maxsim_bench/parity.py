"""Does training through the fused operator give the model that eager autograd gives? Runs on SciFact, side by side.

    python -m maxsim_bench.parity                             # rows in results/local/training_parity.csv
    python -m maxsim_bench.parity --profile smoke             # one seed pair, one epoch: minutes on a processor
    python -m maxsim_bench.parity --projection FILE           # also writes the best projection (safetensors, fp16)

Orchestration beside `cli.py`. In: the data folder. Out: a row for each scorer, seed and batch size, with nDCG@10 on the
test queries and, in `extra`, the loss of every step. May import every room; torch only inside functions. The spread
between seeds is the yardstick: scorers that compute the same thing differ by less.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maxsim_bench.declare.cell import Cell
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.modules import Head, command_parser, ended_in_one_line
from maxsim_bench.record.row import Row

if TYPE_CHECKING:
    import torch

    from maxsim_bench.retrieve.contrastive import Pool, Run, Scorer, Settings

EXPERIMENT = "training_parity"
BACKENDS: dict[Scorer, str] = {"fused": "train_fused", "eager": "train_eager"}
_DIGITS = 6  # of a loss; fp32 has no more


@dataclass(frozen=True)
class Grid:
    """Runs of a profile: every seed by both scorers at each (batch, dtype, epochs, memory cap in bytes)."""

    seeds: tuple[int, ...]
    settings: tuple[tuple[int, str, int, int | None], ...]


# SciFact's 565 documents that are relevant to a training query fill no batch of 512. At 448 the similarities of a batch
# alone are 448 * 448 * 256 tokens of a document, for every token of the longest query: more than a card of 16 GB has.
PROFILES = {
    "paper": Grid((0, 1, 2), ((32, "fp16", 6, None), (32, "fp32", 6, None), (448, "fp32", 24, 16_000_000_000))),
    # Quality against batch size at one budget of examples, by one learning rate and five seeds: the published control.
    "batches": Grid((0, 1, 2, 3, 4), tuple((batch, "fp32", 6, None) for batch in (8, 16, 32, 64, 128, 256))),
    "smoke": Grid((0, 1), ((32, "fp32", 1, None),)),
}


class ProjectionError(ValueError):
    """A projection that was asked for and is not there."""


def cells(grid: Grid, gpu: str) -> Iterator[tuple[Cell, Settings]]:
    """Every cell with the settings of its runs; large batches, where the question is what fits, by one seed."""
    from maxsim_bench.retrieve.contrastive import ENCODER, Settings

    for batch, dtype, epochs, cap in grid.settings:
        for seed in grid.seeds if cap is None else grid.seeds[:1]:
            settings = Settings(seed=seed, batch=batch, epochs=epochs, dtype=dtype)  # type: ignore[arg-type]
            variant = {
                "epochs": settings.epochs, "learning_rate": settings.learning_rate, "loss": "cross_entropy",
                "temperature": settings.temperature,
            }  # fmt: skip
            cell = Cell(
                experiment=EXPERIMENT, gpu=gpu, op="training_step", Nq=batch, B=batch, d=settings.d,
                dtype=settings.dtype, layout="packed", pairing="all", dataset="scifact", split="test", encoder=ENCODER,
                seed=seed, memory_cap=cap, variant=";".join(f"{k}={v}" for k, v in variant.items()),
            )  # fmt: skip
            yield cell, settings


def parity(
    grid: Grid, pool: Pool, machine: Machine, folder: Path, say: Callable[[str], None]
) -> tuple[list[Row], torch.Tensor | None]:
    """Train what the store does not hold yet.

    Returns:
        All rows of the grid, and the projection [d, D] with the lowest held-out loss of the runs made now.
    """
    from dataclasses import replace

    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.environments import add_environments
    from maxsim_bench.record.store import Store

    environment = capture(machine.device)
    identity = environment_id(environment)
    store = Store(folder / f"{EXPERIMENT}.csv")
    best: tuple[float, torch.Tensor] | None = None
    wanted: set[tuple[str, str]] = set()
    with store.lock():
        add_environments(folder, {identity: environment})
        for cell, settings in cells(grid, machine.key):
            for scorer, backend in BACKENDS.items():
                head = Head(cell, backend, get(backend).version(), machine, identity)
                wanted.add((cell.hash(), backend))
                if store.has(head.row("skipped", error="not run").key):
                    continue
                row, run = _run(head, replace(settings, scorer=scorer), pool)
                store.append([row])
                say(_line(row))
                if run is not None and run.weight is not None and (best is None or min(run.held_out) < best[0]):
                    best = min(run.held_out), run.weight
    rows = [row for row in store.rows() if (row.cell.hash(), row.backend) in wanted]
    return rows, None if best is None else best[1]


def _run(head: Head, settings: Settings, pool: Pool) -> tuple[Row, Run | None]:
    """One training run and its nDCG@10; a run that does not fit is a row as well."""
    from maxsim_bench.measure import memory
    from maxsim_bench.measure.failures import describe, kind_of
    from maxsim_bench.retrieve.contrastive import ndcg_at_10, train

    device = head.machine.device
    made: list[Run] = []

    def call() -> None:
        made.append(train(pool.queries, pool.documents, pool.pairs, settings, device))

    try:
        with memory.cap(head.cell.memory_cap, device):
            reading = memory.measure_peak(call, device)
            if not made:  # on a processor there is no meter, and nothing ran
                call()
    except RuntimeError as error:
        if kind_of(error) != "oom":
            raise
        return head.row("oom", error=describe(error)), None
    (run,) = made
    value = ndcg_at_10(run.weight, pool.test, pool.test_queries, pool.corpus, device)
    curves = {"losses": run.losses, "held_out": run.held_out}
    found = head.row(
        "ok", ndcg_at_10=value, queries=len(pool.test.queries),
        peak_extra_bytes=None if reading is None else reading.peak_extra_bytes,
        extra=json.dumps({name: [round(x, _DIGITS) for x in values] for name, values in curves.items()}),
    )  # fmt: skip
    return found, run


def _line(row: Row) -> str:
    where = f"batch {row.cell.Nq} {row.cell.dtype} seed {row.cell.seed} {row.backend}"
    if row.status != "ok":
        return f"{where}: {row.status}: {row.error}"
    return f"{where}: last loss {json.loads(row.extra or '{}')['losses'][-1]:.4f}, nDCG@10 {row.ndcg_at_10:.4f}"


def _write(path: Path, weight: torch.Tensor | None, made: int, before: int, folder: Path) -> None:
    """The projection as a file, and of which runs it is the best: only runs made now have one.

    Raises:
        ProjectionError: where no run was made now.
    """
    from safetensors.torch import save_file

    if weight is None:
        raise ProjectionError(
            f"{path}: not written: none of the {made} runs made now has a projection, and {before} were finished "
            f"before in {folder}, which keeps none. Name another folder with --into."
        )
    save_file({"weight": weight.half().contiguous()}, path)
    print(f"{path}: the best of {made} runs made now" + (f"; {before} finished before kept none" if before else ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, print."""
    parser = command_parser("parity", __doc__ or "")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="paper")
    parser.add_argument("--into", type=Path, default=Path("results/local"), help="folder of training_parity.csv")
    parser.add_argument("--data-dir", type=Path, help="folder with scifact.tar.gz")
    parser.add_argument("--projection", type=Path, help="where to write the best projection as safetensors, fp16")
    told = parser.parse_args(arguments)
    if told.projection is not None and not told.projection.parent.is_dir():
        parser.error(f"argument --projection: {told.projection.parent} is not a folder")  # before hours of training
    with ended_in_one_line():
        from maxsim_bench.retrieve.contrastive import scifact

        machine = this_machine()
        pool = scifact(told.data_dir, machine.device)
        made: list[str] = []

        def say(line: str) -> None:
            made.append(line)
            print(line, flush=True)

        rows, weight = parity(PROFILES[told.profile], pool, machine, told.into, say)
        print(f"{len(rows)} rows in {told.into / EXPERIMENT}.csv")
        if told.projection is not None:
            _write(told.projection, weight, len(made), len(rows) - len(made), told.into)


if __name__ == "__main__":
    main()
