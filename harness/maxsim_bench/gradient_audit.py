"""The gradient audit as rows: scores, maxima, argmax and gradients elementwise against float64, by dtype and path.

    python -m maxsim_bench.gradient_audit                      # rows in results/local/gradient_audit_float64.csv
    python -m maxsim_bench.gradient_audit --pairs 4            # a few shapes: seconds

The rows of a dtype are written when its last pair is done. Stopped by Ctrl-C, the same command goes on from the rows
that are there, and begins the dtype that it was at from its first pair.

Orchestration beside `cli.py`. In: this machine. Out: a row a dtype and backward path: `ok` if every discrepancy is
a tie or a rounding, `incorrect` if one is neither; in `extra` the worst errors, how many discrepancies there are of
each kind and cause, and the first of them. Nothing here is timed, so processes work side by side, each at some pairs of
a dtype by every path. May import every room; torch only inside functions.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell, Dtype
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.measure import clock
from maxsim_bench.modules import at_least, command_parser, ended_in_one_line
from maxsim_bench.record.children import DYING_SECONDS, Child
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
PARTS = 10  # of a dtype: with sixteen processors few wait for the last, and few variants are compiled twice
MOST_PROCESSES = 16  # by then it is the longest part that counts, and each holds a context of the device
PROCESS_BYTES = 6 << 30  # of the device, for the float64 reference of one pair and the context
TELL_EVERY_S = 20.0


@dataclass(frozen=True)
class Job:
    """One audit, and one row: a cell, and the backend whose backward path is audited on it."""

    cell: Cell
    backend: str
    path: BackwardPath
    device: str
    pairs: int


@dataclass(frozen=True)
class Part:
    """Some pairs of the jobs of one dtype, which meet the same inputs.

    Attributes:
        jobs: of one dtype.
        numbers: of the pairs, in the order of `maxsim.training.audit.shapes`.
    """

    jobs: tuple[Job, ...]
    numbers: tuple[int, ...]


Reports = dict[str, "Report"]  # by backend
Note = Callable[[str], None]  # told which pair and path come next


class AuditError(RuntimeError):
    """A part that gave no report; the text says where it was and what happened."""


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


def parts(left: Sequence[Job], most: int = PARTS) -> list[Part]:
    """The jobs cut into parts, dtype after dtype, at most `most` a dtype.

    Lengths choose the variants of kernels, and a random length is a new one: a shape asks for about fourteen, of which
    its neighbours share most. So pairs of like lengths are a part, and few variants are compiled twice at a time.
    """
    from maxsim.training.audit import shapes

    def likeness(number: int) -> tuple[bool, int, bool, int, int, int]:
        Lq, Ld, ragged = drawn[number]
        return ragged, (Lq - 1).bit_length(), Lq % 16 == 0, Ld, Lq, number

    found = []
    for dtype in dict.fromkeys(job.cell.dtype for job in left):
        own = tuple(job for job in left if job.cell.dtype == dtype)
        drawn = shapes(own[0].pairs, own[0].cell.seed)
        alike: list[list[int]] = []  # numbers of equal shapes, which cost one compilation
        for number in sorted(range(len(drawn)), key=likeness):
            if alike and drawn[alike[-1][0]] == drawn[number]:
                alike[-1].append(number)
            else:
                alike.append([number])
        step = max(1, -(-len(alike) // most))
        found += [
            Part(own, tuple(number for group in alike[i : i + step] for number in group))
            for i in range(0, len(alike), step)
        ]
    return found


def audited(part: Part, note: Note) -> Reports:
    """Run one part here.

    The library's own `audit` goes through all pairs of one path in one piece, and says nothing before its end; its
    pieces are called here.
    """
    import torch

    from maxsim.training import audit as library

    torch.set_num_threads(1)  # processes side by side, each with a thread a processor, wait for each other
    first = part.jobs[0]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[str(first.cell.dtype)]
    drawn, seed = library.shapes(first.pairs, first.cell.seed), first.cell.seed
    found: Reports = {job.backend: library.Report() for job in part.jobs}
    for number in part.numbers:
        Lq, Ld, ragged = drawn[number]
        name = f"{first.cell.dtype} Lq={Lq} Ld={Ld}{' ragged' if ragged else ''} #{number}"
        q, d, g = library.inputs(Lq, Ld, ragged, dtype, first.device, seed + number)
        for job in part.jobs:
            note(f"{name} {job.backend}")
            library.audit_case(found[job.backend], name, q, d, g, None, job.path)
            found[job.backend].cases += 1
        del q, d, g
        if first.device == "cuda":
            torch.cuda.empty_cache()  # the reference of one pair takes gigabytes, and every process would keep them
    return found


Make = Callable[[Part, Note], Reports]


def run(
    machine: Machine, folder: Path, pairs: int, processes: int, say: Callable[[str], None], make: Make = audited,
    tell_every_s: float = TELL_EVERY_S,
) -> list[Row]:  # fmt: skip
    """Audit what the store does not hold yet; all rows of these jobs. Those of a dtype are written when it is done.

    Args:
        processes: parts at a time; 1 runs them in this process.
        tell_every_s: after which `say` is told again which pairs the processes are at.
    """
    from maxsim_bench.backends.registry import get
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.environments import add_environments
    from maxsim_bench.record.store import Store

    environment = capture(machine.device)
    store = Store(folder / f"{EXPERIMENT}.csv")
    wanted = list(jobs(machine, pairs))
    with store.lock():
        add_environments(folder, {environment_id(environment): environment})
        done = {(row.cell.hash(), row.backend, row.backend_version) for row in store.rows()}
        left = [job for job in wanted if (job.cell.hash(), job.backend, get(job.backend).version()) not in done]
        cut = parts(left)
        found: dict[Part, Reports] = {}
        with closing(_reports(cut, processes, make, say, tell_every_s)) as reports:
            for part, told in reports:
                found[part] = told
                own = [one for one in cut if one.jobs == part.jobs]
                if not all(one in found for one in own):
                    continue
                for job in part.jobs:
                    report = merged([found[one][job.backend] for one in own])
                    row = to_row(job, report, get(job.backend).version(), machine, environment_id(environment))
                    store.append([row])
                    say(_line(row))
    asked = {(job.cell.hash(), job.backend) for job in wanted}
    return [row for row in store.rows() if (row.cell.hash(), row.backend) in asked]


def merged(reports: Sequence[Report]) -> Report:
    """One report of several that audited different pairs."""
    from maxsim.training.audit import Report

    whole = Report()
    for report in reports:
        whole.cases += report.cases
        whole.findings += report.findings
        whole.counts += report.counts
        for kind, error in report.worst.items():
            whole.note(kind, error)
    return whole


def _reports(
    cut: Sequence[Part], processes: int, make: Make, say: Callable[[str], None], tell_every_s: float
) -> Generator[tuple[Part, Reports], None, None]:
    """Every part with its reports, as they end; processes that are still at one are ended with the generator.

    Raises:
        AuditError: for a part that raises, or takes its process along.
    """
    began = told = clock.seconds()
    ended = 0

    def status(now: dict[str, float]) -> None:
        nonlocal told
        if clock.seconds() - told < tell_every_s:
            return
        told = clock.seconds()
        at = ", ".join(f"{name} for {told - since:.0f} s" for name, since in sorted(now.items(), key=lambda x: x[1]))
        say(f"after {told - began:.0f} s, {ended} of {len(cut)} parts are done; now at {at}")

    if processes == 1:
        for part in cut:
            reports = make(part, lambda name: status({name: clock.seconds()}))
            ended += 1
            yield part, reports
        return
    waiting = list(reversed(cut))
    working: dict[Connection, tuple[Child, Part]] = {}
    at: dict[Connection, tuple[str, float]] = {}
    try:
        for _ in range(min(processes, len(cut))):
            child, part = Child(_work, make), waiting.pop()
            working[child.channel] = child, part
            at[child.channel] = f"{part.jobs[0].cell.dtype}, starting", clock.seconds()
            child.channel.send(part)
        while working:
            for channel in wait(list(working), timeout=1.0):
                assert isinstance(channel, Connection)
                child, part = working[channel]
                kind, answer = _answer(child, at[channel][0])
                if kind == "at":
                    at[channel] = answer, clock.seconds()
                    continue
                if kind == "raised":
                    raise AuditError(f"at {at[channel][0]}:\n{answer}")
                ended += 1
                yield part, answer
                if waiting:
                    working[channel] = child, waiting.pop()
                    channel.send(working[channel][1])
                else:
                    del working[channel], at[channel]
                    child.end()
            status(dict(at.values()))
    finally:
        for child, _ in working.values():
            child.end()


def _answer(child: Child, name: str) -> tuple[str, Any]:
    try:
        kind, answer = child.channel.recv()
    except (EOFError, OSError):
        raise AuditError(f"at {name}: its process died with exit status {child.end(DYING_SECONDS)}") from None
    return kind, answer


def _work(channel: Connection, make: Make) -> None:
    """Answer every part with ("at", name) any number of times, then with ("done", reports) or ("raised", traceback)."""
    while True:
        try:
            part = channel.recv()
        except EOFError:
            return
        try:
            channel.send(("done", make(part, lambda name: channel.send(("at", name)))))
        except Exception:
            channel.send(("raised", traceback.format_exc()))


def to_row(job: Job, report: Report, version: str, machine: Machine, environment: str) -> Row:
    """The row of a report: the largest relative error of scores and of gradients, the rest in `extra`."""
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
    parser = command_parser("gradient_audit", __doc__ or "")
    parser.add_argument("--into", type=Path, default=Path("results/local"), help=f"folder of {EXPERIMENT}.csv")
    parser.add_argument("--pairs", type=at_least(1), default=128, help="shapes of each dtype and path")
    parser.add_argument(
        "--processes", type=at_least(1), help="side by side (default: one a processor, as memory allows)"
    )
    told = parser.parse_args(arguments)
    with ended_in_one_line():
        machine = this_machine()
        processes = told.processes or processes_of(machine)
        try:
            rows = run(machine, told.into, told.pairs, processes, lambda line: print(line, flush=True))
        except AuditError as error:
            parser.exit(1, f"Error: {error}\n")
    raise SystemExit(int(any(row.status != "ok" for row in rows)))


def processes_of(machine: Machine) -> int:
    """As many as there are processors, as the device's memory holds and as are of use."""
    return max(1, min(machine.processors, machine.memory_bytes // PROCESS_BYTES, MOST_PROCESSES))


if __name__ == "__main__":
    main()
