"""What a scorer changes for users: its rankings beside those of the FP32 reference on the same embeddings.

Room: `retrieve`. May import: declare, record, backends. Pure functions over rankings; nothing here scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Literal

import numpy as np

from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.metrics import DEPTH, MEASURES, Evaluation, evaluate_rankings
from maxsim_bench.retrieve.rank import Ranked, ScoreErrors, rankings

CUT = 10
OVERLAPS = (10, 20, 100)
LIMIT = 5e-4  # |ΔnDCG@10| that the paper's abstract claims as the largest
RESAMPLES, CONFIDENCE = 2000, 0.95
Cause = Literal["tie", "rounding", "error"]
Scores = Mapping[str, float]


@dataclass(frozen=True)
class Moved:
    """A query whose first ten documents, or their order, are not the reference's.

    Attributes:
        query: its id.
        reference, ndcg: nDCG@10 of both.
        cause: "tie" (the exchanged documents have equal reference scores), "rounding" (they differ by at most twice the
            backend's declared tolerance) or "error" (by more).
        size: largest difference between reference scores that the backend put the wrong way round.
        documents: the pair with that difference, the one that should be first in front.
    """

    query: str
    reference: float
    ndcg: float
    cause: Cause
    size: float
    documents: tuple[str, str]


@dataclass(frozen=True)
class Audit:
    """One backend against the reference on one data set.

    Attributes:
        reference, evaluation: measures of both.
        delta: field of `MEASURES` → backend minus reference.
        interval: of the nDCG@10 difference, by paired bootstrap over queries.
        moved: see `Moved`.
        overlap: k → mean share of the reference's first k documents among the backend's.
        spearman, kendall: mean over queries of the rank correlation of scores on the reference's first 100 documents;
            one that the backend does not have among its best counts as last. None where nothing can be ordered.
        ties: pairs of neighbours with equal scores among the first ten; `ties_across_cut`: queries whose tenth and
            eleventh score alike, where the document id decides who is seen.
        errors: of the scores.
        suspicious: what should not be published unseen, in words.
    """

    reference: Evaluation
    evaluation: Evaluation
    delta: dict[str, float]
    interval: tuple[float, float]
    moved: list[Moved]
    overlap: dict[int, float]
    spearman: float | None
    kendall: float | None
    ties: int
    ties_across_cut: int
    errors: ScoreErrors
    suspicious: list[str] = field(default_factory=list)


def audit(dataset: Dataset, base: Ranked, one: Ranked, tolerance: float, *, should_differ: bool = False) -> Audit:
    """Compare one backend's rankings with the reference's.

    Args:
        base: the reference.
        one: the backend; it must not have failed.
        tolerance: relative error of a score that the backend declares.
        should_differ: the backend's arithmetic cannot be the reference's, so equality to the bit is suspicious.
    """
    assert one.failure is None
    assert one.errors is not None
    wanted, got = rankings(dataset, base.top), rankings(dataset, one.top)
    reference = evaluate_rankings({q: list(s)[:DEPTH] for q, s in wanted.items()}, dataset.qrels)
    evaluation = evaluate_rankings({q: list(s)[:DEPTH] for q, s in got.items()}, dataset.qrels)
    suspicious = [*evaluation.suspicious]
    if should_differ and one.errors.pairs and not one.errors.max_abs.any():
        suspicious.append("scores equal the reference's to the bit, which this arithmetic cannot give: the same code?")
    correlations = [_correlations(wanted[q], got[q]) for q in wanted]
    return Audit(
        reference=reference,
        evaluation=evaluation,
        delta={m: evaluation.means[m] - reference.means[m] for m in evaluation.means},
        interval=bootstrap_interval(_differences(reference, evaluation, "ndcg_at_10")),
        moved=[
            moved
            for q in wanted
            if (moved := _moved(q, wanted[q], got[q], reference, evaluation, tolerance)) is not None
        ],
        overlap={k: _mean([_overlap(wanted[q], got[q], k) for q in wanted]) or 0.0 for k in OVERLAPS},
        spearman=_mean([s for s, _ in correlations if s is not None]),
        kendall=_mean([k for _, k in correlations if k is not None]),
        ties=sum(_ties(got[q])[0] for q in got),
        ties_across_cut=sum(_ties(got[q])[1] for q in got),
        errors=one.errors,
        suspicious=suspicious,
    )


def bootstrap_interval(differences: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the mean difference at `CONFIDENCE`, queries drawn with replacement
    (scipy.stats.bootstrap).

    Where no query differs there is nothing to resample: (0, 0). One query alone says nothing about others: its own
    value.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.size < 2 or not (values != values[0]).any():
        value = float(values.mean()) if values.size else 0.0
        return value, value
    from scipy import stats

    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        batch=200,  # of them in memory at a time
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def identical(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Pairs of evaluations that should differ (of two data sets, say) and agree in every measure to the last digit."""
    return [
        f"{a} and {b} have identical measures ({', '.join(f'{m}={evaluations[a].means[m]:.4f}' for m in MEASURES)})"
        for a, b in combinations(evaluations, 2)
        if evaluations[a].means and evaluations[a].means == evaluations[b].means
    ]


def _differences(reference: Evaluation, evaluation: Evaluation, measure: str) -> list[float]:
    return [evaluation.per_query[q][measure] - reference.per_query[q][measure] for q in reference.per_query]


def _moved(
    query: str, wanted: Scores, got: Scores, reference: Evaluation, evaluation: Evaluation, tolerance: float
) -> Moved | None:
    """How and why the first ten changed; None if they did not, or nobody judged the query."""
    first, second = list(wanted)[:CUT], list(got)[:CUT]
    if first == second or query not in reference.per_query:
        return None
    place = {d: i for i, d in enumerate(got)}
    true = {d: i for i, d in enumerate(wanted)}
    together = sorted({*first, *second}, key=lambda d: true.get(d, len(true)))
    size, documents = -1.0, ("", "")
    for a, b in combinations(together, 2):  # the reference has a before b
        if place.get(a, len(place)) < place.get(b, len(place)):
            continue
        gap = _gap(wanted, a, b)
        if gap > size:
            size, documents = gap, (a, b)
    largest = max((abs(s) for s in wanted.values() if np.isfinite(s)), default=0.0)
    cause: Cause = "tie" if size == 0.0 else "rounding" if size <= 2 * tolerance * largest else "error"
    scores = reference.per_query[query]["ndcg_at_10"], evaluation.per_query[query]["ndcg_at_10"]
    return Moved(query, *scores, cause, size, documents)


def _gap(wanted: Scores, a: str, b: str) -> float:
    """Reference score of a minus that of b; infinite where b is not even among the documents kept."""
    high, low = wanted.get(a, -np.inf), wanted.get(b, -np.inf)
    return 0.0 if high == low else float(high - low)


def _overlap(wanted: Scores, got: Scores, k: int) -> float:
    first = set(list(wanted)[:k])
    return len(first & set(list(got)[:k])) / len(first) if first else 1.0


def _correlations(wanted: Scores, got: Scores) -> tuple[float | None, float | None]:
    """Spearman and Kendall on the reference's first 100; (None, None) where one side orders nothing."""
    documents = list(wanted)[: max(OVERLAPS)]
    last = min((s for s in got.values() if np.isfinite(s)), default=0.0) - 1.0
    a = np.array([wanted[d] for d in documents])
    b = np.array([got.get(d, last) for d in documents])
    if len(documents) < 2 or (a == a[0]).all() or (b == b[0]).all():
        return None, None
    return rank_correlations(a, b)


def rank_correlations(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Spearman's rho and Kendall's tau-b of two score vectors [n] that are not constant; equal infinities are ties.

    As scipy.stats.spearmanr and kendalltau define them, without the p-values that take most of their time.
    """
    from scipy.stats import rankdata

    ranks = rankdata(a), rankdata(b)
    signs = [np.sign(r[:, None] - r[None, :]) for r in ranks]  # of ranks: the difference of two infinities is NaN
    tau = (signs[0] * signs[1]).sum() / np.sqrt((signs[0] ** 2).sum() * (signs[1] ** 2).sum())
    return float(np.corrcoef(*ranks)[0, 1]), float(tau)


def _ties(scores: Scores) -> tuple[int, int]:
    """(equal neighbours among the first ten, whether the tenth equals the eleventh)."""
    values = list(scores.values())[: CUT + 1]
    within = sum(a == b for a, b in pairwise(values[:CUT]))
    return within, int(len(values) > CUT and values[CUT - 1] == values[CUT])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
