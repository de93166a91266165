"""From what a user asks for to an audit of rankings: data sets, encoder and backends in, rows in `fidelity.csv` out.

Orchestration beside `cli.py`. May import every room; torch only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from maxsim_bench.catalogue import experiments, known_backends
from maxsim_bench.declare.cell import Cell, Dtype
from maxsim_bench.declare.experiment import Experiment, ProfileName
from maxsim_bench.declare.select import select
from maxsim_bench.machine import Machine, this_machine
from maxsim_bench.record.row import Row

if TYPE_CHECKING:
    from maxsim_bench.retrieve.findings import Finding
    from maxsim_bench.retrieve.tasks import Task

EXPERIMENT = "fidelity"


@dataclass(frozen=True)
class Request:
    """What to audit. `folder` is where rows go.

    Without `datasets` the declared experiment runs under `profile`; with them each is ranked by the backends that the
    experiment declares. `sizes` are options of the loader of apidocs (documents, queries); `tolerant` passes over data
    sets and encoders that are not here.
    """

    folder: Path
    experiments: Path = Path("experiments")
    profile: ProfileName = "smoke"
    datasets: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    encoder: str = "minilm"
    dtypes: tuple[Dtype, ...] = ()
    split: str | None = None
    level: int | None = None
    sizes: dict[str, int | str] = field(default_factory=dict)
    first_stage: str | None = None
    depth: int = 100
    limit: float | None = None
    data_dir: Path | None = None
    runs: Path | None = None
    force: bool = False
    tolerant: bool = False


class Audited(BaseModel):
    """Every row that answers the request, earlier ones included; what failed, looks suspicious or is absent."""

    folder: str
    rows: list[Row]
    failed: list[str]
    suspicious: list[str]
    absent: list[str] = []


def tasks(request: Request, machine: Machine) -> list[Task]:
    """The tasks of a request on this machine: fp16 on a GPU and fp32 on a processor, unless dtypes are named."""
    from maxsim_bench.retrieve.tasks import plan_tasks, tasks_of

    known_backends(request.backends)
    (declared,) = experiments(request.experiments, (EXPERIMENT,))
    if not request.datasets:
        return tasks_of(select(declared.plan(machine.key, request.profile), [], request.backends))
    made: list[Task] = []
    for dtype in request.dtypes or (("fp16",) if machine.device == "cuda" else ("fp32",)):
        made += plan_tasks(
            request.datasets,
            request.encoder,
            request.backends,
            machine.key,
            split=request.split,
            level=request.level,
            dtype=dtype,
            first_stage=request.first_stage,
            depth=request.depth,
            options=request.sizes,
        )
    return [_complete(task, declared, request) for task in made]


def _complete(task: Task, declared: Experiment, request: Request) -> Task:
    """The task with the sizes in its identity, and the declared backends where none are named."""
    pairs = [*(task.cell.variant or "").split(";"), *(f"{k}={v}" for k, v in request.sizes.items())]
    cell = task.cell.model_copy(update={"variant": ";".join(sorted(filter(None, pairs))) or None})
    return replace(task, cell=cell, backends=task.backends or tuple(declared.backends_for(cell)))


def fidelity(request: Request, say: Callable[[str], None]) -> Audited:
    """Rank and compare what the store does not hold yet; `say` gets a line for every shard encoded and every new row.

    A row of an earlier run that failed counts as failed again, so that the exit code does not depend on resuming.
    """
    from maxsim_bench.measure import clock
    from maxsim_bench.measure.environment import capture, environment_id
    from maxsim_bench.record.environments import add_environments
    from maxsim_bench.record.store import Store
    from maxsim_bench.retrieve.audit import LIMIT
    from maxsim_bench.retrieve.fidelity import run_fidelity
    from maxsim_bench.retrieve.tasks import Settings

    machine = this_machine()
    environment = capture(machine.device)
    settings = Settings(
        device=machine.device,
        gpu_name=machine.name,
        environment_id=environment_id(environment),
        measured_at=clock.utc_now(),
        limit=LIMIT if request.limit is None else request.limit,
        data_dir=request.data_dir,
        runs_dir=request.runs,
        force=request.force,
    )
    wanted = tasks(request, machine)
    done = Audited(folder=request.folder.as_posix(), rows=[], failed=[], suspicious=[])
    store = Store(request.folder / f"{EXPERIMENT}.csv")
    with store.lock():
        add_environments(request.folder, {environment_id(environment): environment})
        got = run_fidelity(
            wanted,
            settings,
            store,
            report=lambda task, found: say(_finding_line(task, found)),
            progress=lambda done, count: say(f"encoded {done} of {count} documents"),
            tolerant=request.tolerant,
        )
        new = {row.key for row in got.rows}
        done.failed += got.failed
        done.suspicious += got.suspicious
        done.absent += got.absent
        asked: dict[Cell, set[str]] = {}
        for task in wanted:
            asked.setdefault(task.cell, set()).update(task.backends)
        done.rows += [row for row in store.rows() if row.backend in asked.get(row.cell, ())]
    done.failed += [t for row in done.rows if row.key not in new and (t := broken(row, settings.limit)) is not None]
    return done


def broken(row: Row, limit: float) -> str | None:
    """Why a stored row fails the audit: a failure other than "unsupported", or a backend beyond its limit."""
    from maxsim_bench.backends.registry import get
    from maxsim_bench.retrieve.audit import limit_of

    where = f"{row.cell.dataset} {row.cell.encoder} {row.cell.dtype}, {row.backend}"
    if row.status not in ("ok", "unsupported"):
        return f"{where}: {row.status}: {row.error}"
    most = limit_of(get(row.backend), limit)
    if row.delta is not None and most is not None and abs(row.delta) > most:
        return f"{where}: |ΔnDCG@10| = {abs(row.delta):.2e} exceeds the limit {most:.0e}"
    return None


def _finding_line(task: Task, finding: Finding) -> str:
    if finding.audit is None:
        told = ": ".join(finding.failure or ("no result",))
    else:
        told = f"ΔnDCG@10 {finding.audit.delta.get('ndcg_at_10', 0.0):+.2e}"
    return f"{task.cell.dataset} {task.cell.dtype} {finding.backend}: {told}"


def audited_lines(done: Audited) -> list[str]:
    """A table of all rows asked for, then what failed and what looks suspicious."""
    lines = [f"{'data set':<16}{'dtype':<6}{'backend':<18}{'nDCG@10':>8}{'Δ':>11}{'moved':>7}{'max rel. error':>16}"]
    for row in done.rows:
        head = f"{row.cell.dataset or '':<16}{row.cell.dtype or '':<6}{row.backend:<18}"
        if row.status == "ok" and row.ndcg_at_10 is not None and row.delta is not None:
            error = "" if row.max_rel_err is None else f"{row.max_rel_err:.1e}"
            lines.append(f"{head}{row.ndcg_at_10:>8.4f}{row.delta:>+11.1e}{row.queries_moved or 0:>7}{error:>16}")
        else:
            lines.append(f"{head}{row.status}: {(row.error or '').splitlines()[0] if row.error else ''}")
    lines += [f"failed: {told}" for told in done.failed]
    lines += [f"suspicious: {told}" for told in done.suspicious]
    lines += [f"not here: {told}" for told in done.absent]
    return [*lines, f"rows in {done.folder}/fidelity.csv"]
