"""The audit of many data sets and backends: rankings, comparison, diagnosis; rows in the store, details beside it.

Room: `retrieve`. May import: declare, record, backends. On a GPU each data set is audited in a process of its own,
several at a time, because most of an audit is compiling and tuning on the host; backends that tune for what they meet
come last, in processes of their own, so that the others' rows are there early. If a process dies, each of its backends
gets one for itself, so the guilty one gets the row and the others keep their numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from maxsim_bench.backends import registry
from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row, Status
from maxsim_bench.record.store import Store
from maxsim_bench.retrieve import details, isolate
from maxsim_bench.retrieve.audit import EXACT_SHARE, LIMIT, Audit, audit, identical, limit_of, ranking_of
from maxsim_bench.retrieve.cache import Progress, document_embeddings, query_embeddings
from maxsim_bench.retrieve.dataset import DataError, Dataset
from maxsim_bench.retrieve.datasets.registry import load_dataset
from maxsim_bench.retrieve.diagnose import diagnose
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError, Identity
from maxsim_bench.retrieve.encoders.registry import load_encoder
from maxsim_bench.retrieve.isolate import Dead, in_own_process
from maxsim_bench.retrieve.metrics import Evaluation
from maxsim_bench.retrieve.rank import Ranked, rank, rankings
from maxsim_bench.retrieve.rerank import bm25_candidates, rerank, run_candidates
from maxsim_bench.retrieve.scoring import Scorer
from maxsim_bench.retrieve.searching import search_all, searches, unexplained
from maxsim_bench.retrieve.tasks import Task
from maxsim_bench.retrieve.trec import write_run

# Device memory that one audit may need: a block's similarities in fp32, masked copies of them, and the embeddings.
DEVICE_BYTES = 10 << 30


@dataclass(frozen=True)
class Settings:
    """How and where tasks run.

    Attributes:
        device: "cpu" or "cuda": what ranks.
        devices: where encoders run; default every visible GPU, or the processor.
        gpu_name, environment_id, measured_at: recorded in the rows.
        limit: largest |ΔnDCG@10| of a backend that claims to be exact.
        data_dir: folder with data sets; default $MAXSIM_BENCH_DATA.
        isolate: own processes; default on a GPU only.
        timeout_s: for a data set with all its backends, where isolated.
        jobs: data sets audited at a time, where isolated; default by processors and device memory.
        threads: of each of them on the processor; default torch's.
        runs_dir: write every ranking there as a TREC run file.
        force: audit again what the store has.
    """

    device: str
    gpu_name: str
    devices: tuple[str, ...] = ()
    environment_id: str | None = None
    measured_at: str | None = None
    limit: float = LIMIT
    data_dir: Path | None = None
    isolate: bool | None = None
    timeout_s: float = 1800.0
    jobs: int | None = None
    threads: int | None = None
    runs_dir: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class Finding:
    """What one backend gave on one task; plain data, so that it crosses from a process of its own.

    Attributes:
        failure: (status, message), None where `audit` stands.
        diagnosis: named mistakes, empty where scores are within the declared tolerance.
        dataset_hash, facts: of the evaluation: manifest, encoder identity, counts of `Checks`.
        exact, tolerance, version: as the backend declares them.
        limit: largest |ΔnDCG@10| that passes, None where it is only reported.
    """

    backend: str
    version: str
    exact: bool
    tolerance: float
    limit: float | None = None
    failure: tuple[str, str] | None = None
    audit: Audit | None = None
    diagnosis: tuple[str, ...] = ()
    dataset_hash: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


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
            out.absent.append(f"{_where(task)}: {error}")
            continue
        for finding in findings:
            row = to_row(task, finding, settings)
            (store.replace if settings.force else store.append)([row])
            out.rows.append(row)
            out.failed.extend(verdict(task, finding))
            if finding.audit is not None:
                out.suspicious.extend(f"{_where(task)}, {finding.backend}: {s}" for s in finding.audit.suspicious)
                seen[_where(task)] = finding.audit.reference
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


def verdict(task: Task, finding: Finding) -> list[str]:
    """Why this finding fails the audit, in words; empty if it does not. "unsupported" is not a failure."""
    where = f"{_where(task)}, {finding.backend}"
    if finding.failure is not None:
        status, message = finding.failure
        return [] if status == "unsupported" else [f"{where}: {status}: {message}"]
    made = finding.audit
    assert made is not None
    delta = made.delta.get("ndcg_at_10", 0.0)
    problems = []
    if finding.diagnosis:
        problems.append(f"{where}: {'; '.join(finding.diagnosis)} (ΔnDCG@10 {delta:+.2e})")
    if finding.limit is not None and abs(delta) > finding.limit:
        problems.append(f"{where}: |ΔnDCG@10| = {abs(delta):.2e} exceeds the limit {finding.limit:.0e}")
    if finding.exact and made.exact_first < EXACT_SHARE:
        problems.append(
            f"{where}: the first ten are the reference's ten best on {made.exact_first:.2%} of queries, "
            f"the limit is {EXACT_SHARE:.1%}"
        )
    return problems


def audit_task(
    task: Task, settings: Settings, extra: Mapping[str, Backend] | None = None, progress: Progress | None = None
) -> list[Finding]:
    """Load, encode, rank, compare and diagnose one task, in this process."""
    cell = task.cell
    dataset = load_dataset(task.source or str(cell.dataset), cell.split, data_dir=settings.data_dir, **task.options)
    devices = settings.devices or encoding_devices(settings.device)
    encoder = load_encoder(task.encoder_source or str(cell.encoder), devices[0])
    queries = query_embeddings(dataset, encoder, devices[:1])
    corpus = document_embeddings(dataset, encoder, devices, progress)
    reference = Scorer(registry.get("reference"), cell, settings.device)
    scorers = {name: Scorer(_backend(name, extra), cell, settings.device) for name in task.backends}
    base, found = _rank(task, dataset, queries, corpus, reference, scorers)
    if settings.runs_dir is not None:
        _write_runs(settings.runs_dir, task, dataset, {"reference": base, **found})
    facts = _facts(dataset, encoder.identity, queries.lengths.tolist())
    wanted = ranking_of(dataset, base)
    out = []
    for name, scorer in scorers.items():
        backend, one = scorer.backend, found[name]
        tolerance = backend.tolerance(_forward(cell))
        made = Finding(
            name,
            backend.version(),
            backend.exact,
            tolerance,
            limit_of(backend, settings.limit),
            dataset_hash=dataset.dataset_hash,
            facts=facts,
        )
        if one.failure is None:
            assert one.errors is not None
            differ = not backend.exact and cell.dtype != "fp32"
            made = replace(made, audit=audit(dataset, wanted, one, tolerance, should_differ=differ))
            if one.errors.max_rel.max(initial=0.0) > tolerance and task.first_stage is None:
                told = (
                    [unexplained(dataset, one.errors)]
                    if searches(scorer)
                    else diagnose(dataset, queries, corpus, reference, scorer, one.errors, tolerance)
                )
                made = replace(made, diagnosis=tuple(told))
        out.append(replace(made, failure=one.failure))
    return out


def _audit_alone(task: Task, settings: Settings) -> list[Finding]:
    """`audit_task` in a process of its own, with its share of the processors."""
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return audit_task(task, settings)


def _rank(
    task: Task,
    dataset: Dataset,
    queries: Embeddings,
    corpus: Corpus,
    reference: Scorer,
    scorers: Mapping[str, Scorer],
) -> tuple[Ranked, dict[str, Ranked]]:
    """The reference's ranking and everybody's: of the whole corpus, or of each query's candidates."""
    searchers = {name: scorer for name, scorer in scorers.items() if searches(scorer)}
    others = {name: scorer for name, scorer in scorers.items() if name not in searchers}
    if task.first_stage is None:
        base, found = rank(dataset, queries, corpus, reference, others)
        return base, found | search_all(dataset, queries, corpus, searchers, base)
    depth, stage = task.cell.k or 100, task.first_stage
    candidates = bm25_candidates(dataset, depth) if stage == "bm25" else run_candidates(dataset, Path(stage), depth)
    base, found = rerank(dataset, queries, corpus, candidates, reference, others)
    told = "unsupported", "finds the best of a whole corpus; it does not rerank candidates"
    return base, found | {name: Ranked(base.top, failure=told) for name in searchers}


def to_row(task: Task, finding: Finding, settings: Settings) -> Row:
    """The row of a finding. Scores beyond the declared tolerance make it `incorrect`, which holds no measure."""
    common: dict[str, Any] = {
        "cell": task.cell,
        "backend": finding.backend,
        "backend_version": finding.version,
        "gpu": settings.gpu_name,
        "dataset_hash": finding.dataset_hash,
        "environment_id": settings.environment_id,
        "measured_at": settings.measured_at,
    }
    told: dict[str, Any] = dict(finding.facts.get("row", {}))
    if finding.audit is not None and finding.failure is None:
        told |= {"exact_first_10": finding.audit.exact_first, "worst_query": finding.audit.worst}
    common["extra"] = json.dumps(told, sort_keys=True, ensure_ascii=False) if told else None
    if finding.failure is not None:
        return Row(**common, status=cast(Status, finding.failure[0]), error=finding.failure[1])
    made = finding.audit
    assert made is not None
    errors: dict[str, Any] = {
        "max_abs_err": float(made.errors.max_abs.max(initial=0.0)),
        "mean_abs_err": made.errors.mean_abs,
        "max_rel_err": float(made.errors.max_rel.max(initial=0.0)),
    }
    if finding.diagnosis:
        words = f"{'; '.join(finding.diagnosis)} (nDCG@10 would move by {made.delta.get('ndcg_at_10', 0.0):+.4g})"
        return Row(**common, **errors, status="incorrect", error=words)
    return Row(
        **common,
        **errors,
        **cast(dict[str, Any], made.evaluation.means),
        status="ok",
        ndcg_at_10_reference=made.reference.means.get("ndcg_at_10"),
        delta=made.delta.get("ndcg_at_10"),
        delta_low=made.interval[0],
        delta_high=made.interval[1],
        queries=len(made.evaluation.per_query),
        queries_moved=len(made.moved),
        ties=made.ties,
        ties_across_cut=made.ties_across_cut,
        topk_overlap=made.overlap[10],
        topk_overlap_20=made.overlap[20],
        topk_overlap_100=made.overlap[100],
        spearman=made.spearman,
        kendall=made.kendall,
    )


def encoding_devices(device: str) -> tuple[str, ...]:
    """Every visible GPU for "cuda", else the processor."""
    import torch

    if device == "cuda":
        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    return (device,)


def _findings(
    task: Task, settings: Settings, extra: Mapping[str, Backend] | None, progress: Progress | None
) -> list[Finding]:
    if extra or not _isolated(settings):
        return audit_task(task, settings, extra, progress)
    try:
        return in_own_process(_audit_alone, (task, settings), settings.timeout_s)
    except Dead as dead:
        if len(task.backends) == 1:
            return [_dead(task.backends[0], task.cell, dead)]
    out: list[Finding] = []
    for name in task.backends:
        out += _findings(replace(task, backends=(name,)), settings, None, progress)
    return out


def _dead(name: str, cell: Cell, dead: Dead) -> Finding:
    backend = registry.get(name)
    tolerance = backend.tolerance(_forward(cell))
    return Finding(name, backend.version(), backend.exact, tolerance, failure=(dead.status, str(dead)))


def _backend(name: str, extra: Mapping[str, Backend] | None) -> Backend:
    return extra[name] if extra and name in extra else registry.get(name)


def _key(task: Task, name: str, extra: Mapping[str, Backend] | None) -> str:
    from maxsim_bench.declare.cell import row_key

    return row_key(task.cell.hash(), name, _backend(name, extra).version())


def _forward(cell: Cell) -> Cell:
    """The cell as backends know it, for what they declare about it."""
    return cell.model_copy(update={"op": "forward", "layout": "packed"})  # documents of all lengths


def _where(task: Task) -> str:
    cell = task.cell
    parts = [str(cell.dataset), cell.split, cell.encoder, cell.dtype, cell.variant]
    return " ".join(p for p in parts if p)


def _write_runs(folder: Path, task: Task, dataset: Dataset, found: Mapping[str, Ranked]) -> None:
    for name, one in found.items():
        if one.failure is None:
            path = folder / f"{details.stem(task.cell)}-{name}.run"
            write_run(path, rankings(dataset, one.top), f"maxsim-bench-{name}")


def _facts(dataset: Dataset, identity: Identity, query_lengths: Sequence[int]) -> dict[str, Any]:
    """What a result records: briefly in the row, at length in the details file."""
    checks = dataset.checks
    counts = {
        "unknown_documents": len(checks.unknown_documents),
        "unknown_queries": len(checks.unknown_queries),
        "without_relevant": len(checks.without_relevant),
        "duplicate_judgements": checks.duplicate_judgements,
        "repeated_texts": checks.repeated_texts,
        "queries_without_tokens": sum(n == 0 for n in query_lengths),
    }
    row = {
        "documents": len(dataset.document_ids),
        "encoder": {
            k: v for k, v in asdict(identity).items() if k not in ("name", "d", "dtype", "software", "normalisation")
        },
        "drop_own_id": dataset.drop_own_id,
        "level": dataset.manifest.get("level"),
        **{k: v for k, v in counts.items() if v},
    }
    return {"row": row, "manifest": dataset.manifest, "encoder": asdict(identity), "checks": counts}
