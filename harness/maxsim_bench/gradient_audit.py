"""The gradient audit as rows: scores, maxima, argmax and gradients elementwise against float64, by dtype and path.

    python -m maxsim_bench.gradient_audit                      # rows in results/local/gradient_audit_float64.csv
    python -m maxsim_bench.gradient_audit --pairs 4            # a few shapes: seconds

Orchestration beside `cli.py`. In: this machine. Out: a row a dtype and backward path: `ok` if every discrepancy is
a tie or a rounding, `incorrect` if one is neither; in `extra` the worst errors, how many discrepancies there are of
each kind and cause, and the first of them. Jobs run in processes of their own, side by side: nothing here is timed. May
import every room; torch only inside functions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell, Dtype
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.record.row import Row

if TYPE_CHECKING:
    from maxsim.training.audit import Report
    from maxsim.training.backward import BackwardPath

EXPERIMENT = "gradient_audit_float64"
DTYPES: tuple[Dtype, ...] = ("fp16", "bf16", "fp32")
# Backends and the deterministic path each pins; on a processor only plain torch runs.
GPU_PATHS: dict[str, BackwardPath] = {"train_csr": "csr", "train_csr_sort": "csr_sort", "train_lean": "onehot"}
CPU_PATHS: dict[str, BackwardPath] = {"train_fused": "torch"}
LISTED = 50  # discrepancies of each kind and cause that a row holds; all are counted


@dataclass(frozen=True)
class Job:
    """One audit: a cell, and the backend whose backward path is audited on it."""

    cell: Cell
    backend: str
    path: BackwardPath
    device: str
    pairs: int


def jobs(machine: Machine, pairs: int) -> Iterator[Job]:
    """Every dtype by every path."""
    from maxsim.training.audit import DIMENSION, DOCUMENTS, QUERIES

    for dtype in DTYPES:
        for backend, path in (GPU_PATHS if machine.device == "cuda" else CPU_PATHS).items():
            cell = Cell(
                experiment=EXPERIMENT, gpu=machine.key, op="training_step", Nq=QUERIES, B=DOCUMENTS, d=DIMENSION,
                dtype=dtype, layout="masked", pairing="all", inputs="random", variant=f"pairs={pairs}",
            )  # fmt: skip
            yield Job(cell, backend, path, machine.device, pairs)


def audited(job: Job) -> Report:
    """Run one job here."""
    import torch

    from maxsim.training.audit import audit

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[str(job.cell.dtype)]
    return audit([dtype], pairs=job.pairs, seed=job.cell.seed, device=job.device, backward=job.path)


def run(
    machine: Machine, folder: Path, pairs: int, processes: int, say: Callable[[str], None],
    make: Callable[[Job], Report] = audited,
) -> list[Row]:  # fmt: skip
    """Audit what the store does not hold yet; all rows of these jobs.

    Args:
        processes: jobs at a time; 1 runs them in this process.
    """
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.samples import add_environments
    from maxsim_bench.record.store import Store

    environment = capture(machine.device)
    store = Store(folder / f"{EXPERIMENT}.csv")
    wanted = list(jobs(machine, pairs))
    with store.lock():
        add_environments(folder, {environment_id(environment): environment})
        done = {(row.cell.hash(), row.backend, row.backend_version) for row in store.rows()}
        left = [job for job in wanted if (job.cell.hash(), job.backend, get(job.backend).version()) not in done]
        for job, report in zip(left, _reports(left, processes, make), strict=True):
            row = to_row(job, report, get(job.backend).version(), machine, environment_id(environment))
            store.append([row])
            say(_line(row))
    asked = {(job.cell.hash(), job.backend) for job in wanted}
    return [row for row in store.rows() if (row.cell.hash(), row.backend) in asked]


def _reports(left: Sequence[Job], processes: int, make: Callable[[Job], Report]) -> Iterator[Report]:
    if processes == 1:
        yield from map(make, left)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(make, left)


def to_row(job: Job, report: Report, version: str, machine: Machine, environment: str) -> Row:
    """The row of a report: the largest relative error of scores and of gradients, the rest in `extra`."""
    from maxsim_bench.measure import clock

    bugs = sum(count for (_, cause), count in report.counts.items() if cause == "bug")
    told: dict[str, Any] = {
        "cases": report.cases,
        "worst": report.worst,
        "counts": {f"{what}: {cause}": count for (what, cause), count in sorted(report.counts.items())},
        "findings": _first(report),
    }
    return Row(
        cell=job.cell, backend=job.backend, backend_version=version, gpu=machine.name,
        status="ok" if report.passed else "incorrect",
        error=None if report.passed else f"{bugs} discrepancies that are neither ties nor roundings",
        max_rel_err=max(report.worst.get(kind, 0.0) for kind in ("score", "maximum", "dQ", "dD")),
        environment_id=environment, measured_at=clock.utc_now(), extra=json.dumps(told),
    )  # fmt: skip


def _first(report: Report) -> list[dict[str, Any]]:
    """The first `LISTED` discrepancies of each kind and cause."""
    seen: dict[tuple[str, str], int] = {}
    listed = []
    for finding in report.findings:
        kind = (finding.what, finding.cause)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= LISTED:
            listed.append(asdict(finding))
    return listed


def _line(row: Row) -> str:
    told = json.loads(row.extra or "{}")
    worst = ", ".join(f"{kind} {error:.1e}" for kind, error in told["worst"].items())
    found = ", ".join(f"{count} {kind}" for kind, count in told["counts"].items()) or "no discrepancy"
    return f"{row.cell.dtype} {row.backend}: {row.status}, {told['cases']} shapes; {worst}; {found}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, audit, print; exit code 1 if a discrepancy is neither a tie nor a rounding."""
    parser = argparse.ArgumentParser(prog="python -m maxsim_bench.gradient_audit", description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("results/local"), help=f"folder of {EXPERIMENT}.csv")
    parser.add_argument("--pairs", type=int, default=128, help="shapes of each dtype and path")
    parser.add_argument("--processes", type=int, help="jobs at a time (default: one a processor, at most one a job)")
    told = parser.parse_args(arguments)
    machine = this_machine()
    processes = told.processes or min(machine.processors, len(list(jobs(machine, told.pairs))))
    rows = run(machine, told.into, told.pairs, processes, lambda line: print(line, flush=True))
    raise SystemExit(int(any(row.status != "ok" for row in rows)))


if __name__ == "__main__":
    main()
