"""Many audits: which tasks are left, in which processes they run, rows in the store, details beside it.

Room: `retrieve`. May import: declare, record, backends. On a GPU each data set is audited in a process of its own,
several at a time, because most of an audit is compiling and tuning on the host; backends that tune for what they meet
come last, in processes of their own, so that the others' rows are there early. If a process dies, each of its backends
gets one for itself, so the guilty one gets the row and the others keep their numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from maxsim_bench.backends import registry
from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import row_key
from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store
from maxsim_bench.retrieve import details, isolate
from maxsim_bench.retrieve.audit import identical
from maxsim_bench.retrieve.cache import Progress
from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.encoders.base import EncoderError
from maxsim_bench.retrieve.findings import Finding, audit_task, backend_of, failed, to_row, verdict, where
from maxsim_bench.retrieve.isolate import Dead, in_own_process
from maxsim_bench.retrieve.metrics import Evaluation
from maxsim_bench.retrieve.tasks import Settings, Task

# Device memory that one audit may need: a block's similarities in fp32, masked copies of them, and the embeddings.
DEVICE_BYTES = 10 << 30


@dataclass(frozen=True)
class Outcome:
    """Rows of this run, those that break the limit or failed in words, what looks suspicious, what could not be had."""

    rows: list[Row]
    failed: list[str]
    suspicious: list[str]
    absent: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 if every exact backend kept the limit and nothing failed, else 1."""
        return int(bool(self.failed))


def run_fidelity(
    tasks: Sequence[Task],
    settings: Settings,
    store: Store,
    *,
    extra: Mapping[str, Backend] | None = None,
    report: Callable[[Task, Finding], None] = lambda task, finding: None,
    progress: Progress | None = None,
    tolerant: bool = False,
) -> Outcome:
    """Audit every task with every backend that the store does not hold yet; a row each, as soon as it is known.

    Args:
        extra: backends beyond the registry's, by name (never isolated).
        report: called after every backend.
        progress: (documents encoded, documents) while encoding, where not isolated.
        tolerant: a data set or encoder that cannot be had is told in `Outcome.absent`, and the others go on.

    Raises:
        DataError, EncoderError: for a data set or encoder that cannot be had, unless `tolerant`; nothing of that task
            is measured.
    """
    out = Outcome([], [], [])
    seen: dict[str, Evaluation] = {}
    left = [
        replace(task, backends=tuple(b for b in task.backends if settings.force or not store.has(_key(task, b, extra))))
        for task in tasks
    ]
    parts = [task for task in left if task.backends]
    if not extra and _isolated(settings):
        parts = _tuning_last(parts)
    for task, answer in _answers(parts, settings, extra, progress):
        try:
            findings = answer()
        except (DataError, EncoderError) as error:
            if not tolerant:
                raise
            out.absent.append(f"{where(task)}: {error}")
            continue
        for finding in findings:
            row = to_row(task, finding, settings)
            (store.replace if settings.force else store.append)([row])
            out.rows.append(row)
            out.failed.extend(verdict(task, finding))
            if finding.audit is not None:
                out.suspicious.extend(f"{where(task)}, {finding.backend}: {s}" for s in finding.audit.suspicious)
                seen[where(task)] = finding.audit.reference
            report(task, finding)
        details.write(store.path, task.cell, findings)
    out.suspicious.extend(identical(seen))
    return out


def _answers(
    tasks: Sequence[Task], settings: Settings, extra: Mapping[str, Backend] | None, progress: Progress | None
) -> Iterator[tuple[Task, Callable[[], list[Finding]]]]:
    """(task, what returns or raises its result): in turn, or as they finish where several run at a time."""
    jobs = 1 if extra or not _isolated(settings) else settings.jobs or _jobs(settings.device)
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, lambda task=task: _findings(task, settings, extra, progress)  # type: ignore[misc]
        return
    isolate.resume()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ThreadPoolExecutor(jobs) as pool:  # threads only wait for processes
        running: dict[Future[list[Finding]], Task] = {
            pool.submit(_findings, task, replace(settings, threads=threads), None, None): task for task in tasks
        }
        try:
            for done in as_completed(running):
                yield running[done], done.result
        except BaseException:  # stopped, or a task that cannot be had: the others are not worth waiting for
            pool.shutdown(wait=False, cancel_futures=True)
            isolate.abandon()
            raise


def _tuning_last(tasks: Sequence[Task]) -> list[Task]:
    """Every task without the backends that tune, then every task with only those."""
    tunes = {name for task in tasks for name in task.backends if getattr(registry.get(name), "length_multiple", 1) > 1}
    halves = [
        replace(task, backends=tuple(b for b in task.backends if (b in tunes) == last))
        for last in (False, True)
        for task in tasks
    ]
    return [task for task in halves if task.backends]


def _jobs(device: str) -> int:
    """Audits at a time: a processor each, and `DEVICE_BYTES` of the first GPU."""
    import torch

    room = torch.cuda.get_device_properties(0).total_memory // DEVICE_BYTES if device == "cuda" else 1
    return max(1, min(room, os.cpu_count() or 1))


def _isolated(settings: Settings) -> bool:
    return settings.device == "cuda" if settings.isolate is None else settings.isolate


def _audit_alone(task: Task, settings: Settings) -> list[Finding]:
    """`audit_task` in a process of its own, with its share of the processors."""
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return audit_task(task, settings)


def _findings(
    task: Task, settings: Settings, extra: Mapping[str, Backend] | None, progress: Progress | None
) -> list[Finding]:
    if extra or not _isolated(settings):
        return audit_task(task, settings, extra, progress)
    try:
        return in_own_process(_audit_alone, (task, settings), settings.timeout_s)
    except Dead as dead:
        if len(task.backends) == 1:
            return [failed(task.backends[0], task.cell, (dead.status, str(dead)))]
    out: list[Finding] = []
    for name in task.backends:
        out += _findings(replace(task, backends=(name,)), settings, None, progress)
    return out


def _key(task: Task, name: str, extra: Mapping[str, Backend] | None) -> str:
    return row_key(task.cell.hash(), name, backend_of(name, extra).version())
