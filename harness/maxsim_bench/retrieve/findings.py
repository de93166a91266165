"""One task, in this process: load, encode, rank, compare, diagnose. What a backend gave is a finding; it makes a row.

Room: `retrieve`. May import: declare, record, backends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from maxsim_bench.backends import registry
from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Status
from maxsim_bench.record.row import Row
from maxsim_bench.retrieve import details
from maxsim_bench.retrieve.audit import EXACT_SHARE, Audit, audit, limit_of, ranking_of
from maxsim_bench.retrieve.cache import Progress, document_embeddings, query_embeddings
from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.datasets.registry import load_dataset
from maxsim_bench.retrieve.diagnose import diagnose
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.encoders.base import Identity
from maxsim_bench.retrieve.encoders.registry import load_encoder
from maxsim_bench.retrieve.rank import Ranked, rank, rankings
from maxsim_bench.retrieve.rerank import bm25_candidates, rerank, run_candidates
from maxsim_bench.retrieve.scoring import Scorer
from maxsim_bench.retrieve.searching import search_all, searches, unexplained
from maxsim_bench.retrieve.tasks import Settings, Task
from maxsim_bench.retrieve.trec import write_run


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
    scorers = {name: Scorer(backend_of(name, extra), cell, settings.device) for name in task.backends}
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


def failed(name: str, cell: Cell, failure: tuple[str, str]) -> Finding:
    """What is known of a backend of the registry that came to no audit; failure: (status, message)."""
    backend = registry.get(name)
    return Finding(name, backend.version(), backend.exact, backend.tolerance(_forward(cell)), failure=failure)


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


def verdict(task: Task, finding: Finding) -> list[str]:
    """Why this finding fails the audit, in words; empty if it does not. "unsupported" is not a failure."""
    who = f"{where(task)}, {finding.backend}"
    if finding.failure is not None:
        status, message = finding.failure
        return [] if status == "unsupported" else [f"{who}: {status}: {message}"]
    made = finding.audit
    assert made is not None
    delta = made.delta.get("ndcg_at_10", 0.0)
    problems = []
    if finding.diagnosis:
        problems.append(f"{who}: {'; '.join(finding.diagnosis)} (ΔnDCG@10 {delta:+.2e})")
    if finding.limit is not None and abs(delta) > finding.limit:
        problems.append(f"{who}: |ΔnDCG@10| = {abs(delta):.2e} exceeds the limit {finding.limit:.0e}")
    if finding.exact and made.exact_first < EXACT_SHARE:
        problems.append(
            f"{who}: the first ten are the reference's ten best on {made.exact_first:.2%} of queries, "
            f"the limit is {EXACT_SHARE:.1%}"
        )
    return problems


def encoding_devices(device: str) -> tuple[str, ...]:
    """Every visible GPU for "cuda", else the processor."""
    import torch

    if device == "cuda":
        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    return (device,)


def backend_of(name: str, extra: Mapping[str, Backend] | None) -> Backend:
    """The backend of this name; `extra` comes before the registry."""
    return extra[name] if extra and name in extra else registry.get(name)


def where(task: Task) -> str:
    """Data set, split, encoder, dtype and variant of a task, for messages."""
    cell = task.cell
    parts = [str(cell.dataset), cell.split, cell.encoder, cell.dtype, cell.variant]
    return " ".join(p for p in parts if p)


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


def _write_runs(folder: Path, task: Task, dataset: Dataset, found: Mapping[str, Ranked]) -> None:
    for name, one in found.items():
        if one.failure is None:
            path = folder / f"{details.stem(task.cell)}-{name}.run"
            write_run(path, rankings(dataset, one.top), f"maxsim-bench-{name}")


def _forward(cell: Cell) -> Cell:
    """The cell as backends know it, for what they declare about it."""
    return cell.model_copy(update={"op": "forward", "layout": "packed"})  # documents of all lengths
