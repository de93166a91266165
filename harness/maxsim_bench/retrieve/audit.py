"""What a scorer changes for users: its rankings beside those of the FP32 reference on the same embeddings.

Room: `retrieve`. May import: declare, record, backends. Pure functions over rankings; nothing here scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import numpy as np

from maxsim_bench.backends.base import Backend
from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.metrics import DEPTH, MEASURES, Evaluation, evaluate_rankings
from maxsim_bench.retrieve.rank import Ranked, ScoreErrors
from maxsim_bench.retrieve.searching import exact_share, places_of

CUT = 10
OVERLAPS = (10, 20, 100)
LIMIT = 5e-4  # |ΔnDCG@10| that the paper's abstract claims as the largest
INT8_LIMIT = 3e-3  # the same for documents of INT8 codes, as this project sets it
EXACT_SHARE = 0.999  # of queries whose first ten an exact scorer or a rescored search must get right
RESAMPLES, CONFIDENCE = 2000, 0.95
Cause = Literal["tie", "rounding", "error"]


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
        exact_first: share of queries whose first ten are the reference's ten best, up to ties and fp32 rounding.
        worst: query that loses most nDCG@10, and its difference; None if none loses.
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
    exact_first: float
    worst: dict[str, str | float] | None
    suspicious: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ranking:
    """A ranking of every query as arrays, without the query's own id where the data set drops it.

    Attributes:
        documents: [Nq, depth] int64, best first; -1 is none.
        scores: [Nq, depth] fp32; -inf where there is none.
        evaluation: measures over the judged queries.
    """

    documents: np.ndarray
    scores: np.ndarray
    evaluation: Evaluation


def ranking_of(dataset: Dataset, one: Ranked) -> Ranking:
    """The arrays of a ranking, and its measures."""
    documents, scores = one.top.best()
    if dataset.drop_own_id:
        index = {d: i for i, d in enumerate(dataset.document_ids)}
        own = np.array([index.get(q, -2) for q in dataset.queries])
        last = np.argsort(documents == own[:, None], axis=1, kind="stable")  # the own id behind all others
        documents, scores = (np.take_along_axis(a, last, axis=1) for a in (documents, scores))
        mine = documents == own[:, None]
        documents, scores = np.where(mine, -1, documents), np.where(mine, -np.inf, scores)
    ids = dataset.document_ids
    lists = {
        q: [ids[i] for i in row if i >= 0]
        for q, row in zip(dataset.queries, documents[:, :DEPTH].tolist(), strict=True)
    }
    return Ranking(documents, scores, evaluate_rankings(lists, dataset.qrels))


def limit_of(backend: Backend, exact: float = LIMIT) -> float | None:
    """Largest |ΔnDCG@10| with which a backend passes; None for one that is reported and not judged.

    Judged are those that claim to be exact, by `exact`, and those that say they quantise documents to INT8.
    """
    if backend.exact:
        return exact
    return INT8_LIMIT if str(getattr(backend, "quantiser", None)).startswith("int8") else None


def audit(dataset: Dataset, wanted: Ranking, one: Ranked, tolerance: float, *, should_differ: bool = False) -> Audit:
    """Compare one backend's rankings with the reference's.

    Args:
        wanted: the reference's.
        one: the backend; it must not have failed.
        tolerance: relative error of a score that the backend declares.
        should_differ: the backend's arithmetic cannot be the reference's, so equality to the bit is suspicious.
    """
    assert one.failure is None
    assert one.errors is not None
    got = ranking_of(dataset, one)
    reference, evaluation = wanted.evaluation, got.evaluation
    suspicious = [*evaluation.suspicious]
    if should_differ and one.errors.pairs and not one.errors.max_abs.any():
        suspicious.append("scores equal the reference's to the bit, which this arithmetic cannot give: the same code?")
    places = places_of(wanted.documents[:, : max(OVERLAPS)], got.documents)
    spearman, kendall = correlations(wanted, got, places)
    differences = _differences(reference, evaluation, "ndcg_at_10")
    first = exact_share(got.documents, (wanted.documents, wanted.scores), min(CUT, _found(wanted)))
    return Audit(
        reference=reference,
        evaluation=evaluation,
        delta={m: evaluation.means[m] - reference.means[m] for m in evaluation.means},
        interval=bootstrap_interval(differences),
        moved=_all_moved(dataset, wanted, got, tolerance),
        overlap={k: _overlap(wanted, places, k) for k in OVERLAPS},
        spearman=spearman,
        kendall=kendall,
        ties=int(_equal(got, slice(0, CUT - 1), slice(1, CUT)).sum()),
        ties_across_cut=int(_equal(got, slice(CUT - 1, CUT), slice(CUT, CUT + 1)).sum()),
        errors=one.errors,
        exact_first=first if one.exact_first is None else one.exact_first,
        worst=_worst(reference, differences),
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


def _worst(reference: Evaluation, differences: Sequence[float]) -> dict[str, str | float] | None:
    """The query that loses most nDCG@10, and what it loses; None if none loses."""
    lost = min(zip(differences, reference.per_query, strict=True), default=(0.0, ""))
    return {"query": lost[1], "delta": lost[0]} if lost[0] < 0 else None


def _found(ranking: Ranking) -> int:
    """Documents that the shortest of the rankings holds."""
    return int((ranking.documents >= 0).sum(axis=1).min(initial=ranking.documents.shape[1]))


def _all_moved(dataset: Dataset, wanted: Ranking, got: Ranking, tolerance: float) -> list[Moved]:
    """How and why the first ten changed, of every judged query whose first ten did."""
    changed = np.flatnonzero((wanted.documents[:, :CUT] != got.documents[:, :CUT]).any(axis=1))
    queries, judged = list(dataset.queries), wanted.evaluation.per_query
    return [_moved(dataset, queries[i], i, wanted, got, tolerance) for i in changed.tolist() if queries[i] in judged]


def _moved(dataset: Dataset, query: str, row: int, wanted: Ranking, got: Ranking, tolerance: float) -> Moved:
    """The largest exchange of two documents among the first ten of both."""
    true = {d: i for i, d in enumerate(wanted.documents[row].tolist()) if d >= 0}
    place = {d: i for i, d in enumerate(got.documents[row].tolist()) if d >= 0}
    first = {d for r in (wanted, got) for d in r.documents[row, :CUT].tolist() if d >= 0}
    together = sorted(first, key=lambda d: (true.get(d, len(true)), d))
    scores = wanted.scores[row].astype(np.float64)
    size, documents = -1.0, ("", "")
    for a, b in combinations(together, 2):  # the reference has a before b
        if place.get(a, len(place)) < place.get(b, len(place)):
            continue
        high, low = (scores[true[d]] if d in true else -np.inf for d in (a, b))
        gap = 0.0 if high == low else float(high - low)
        if gap > size:
            size, documents = gap, (dataset.document_ids[a], dataset.document_ids[b])
    largest = float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0))
    cause: Cause = "tie" if size == 0.0 else "rounding" if size <= 2 * tolerance * largest else "error"
    before, after = (r.evaluation.per_query[query]["ndcg_at_10"] for r in (wanted, got))
    return Moved(query, before, after, cause, size, documents)


def _overlap(wanted: Ranking, places: np.ndarray, k: int) -> float:
    """Mean share of the reference's first k documents that are among the backend's first k."""
    given = wanted.documents[:, :k] >= 0
    shared = ((places[:, :k] >= 0) & (places[:, :k] < k) & given).sum(axis=1)
    count = given.sum(axis=1)
    return float(np.where(count > 0, shared / np.maximum(count, 1), 1.0).mean()) if len(count) else 0.0


def _equal(ranking: Ranking, left: slice, right: slice) -> np.ndarray:
    """Where two columns hold documents with equal scores."""
    a, b = ranking.scores[:, left], ranking.scores[:, right]
    n = min(a.shape[1], b.shape[1])
    given = ranking.documents[:, right][:, :n] >= 0
    return (a[:, :n] == b[:, :n]) & given


def correlations(wanted: Ranking, got: Ranking, places: np.ndarray) -> tuple[float | None, float | None]:
    """Means of Spearman's and Kendall's correlation of scores on the reference's first documents, over queries.

    A query on which one side orders nothing is left out; None where that leaves nobody.

    Args:
        places: [Nq, n] where the reference's first n documents stand in `got`; -1 counts as behind all others.
    """
    n = places.shape[1]
    finite = np.where(np.isfinite(got.scores), got.scores.astype(np.float64), np.inf)
    lowest = finite.min(axis=1, keepdims=True, initial=np.inf)
    last = np.where(np.isfinite(lowest), lowest, 0.0) - 1.0
    theirs = np.where(places < 0, last, np.take_along_axis(got.scores, np.maximum(places, 0), axis=1))
    ours, given = wanted.scores[:, :n].astype(np.float64), wanted.documents[:, :n] >= 0
    found = []
    for a, b, held in zip(ours, theirs, given, strict=True):
        a, b = a[held], b[held]
        if len(a) >= 2 and (a != a[0]).any() and (b != b[0]).any():
            found.append(rank_correlations(a, b))
    if not found:
        return None, None
    return float(np.mean([s for s, _ in found])), float(np.mean([k for _, k in found]))


def rank_correlations(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Spearman's rho and Kendall's tau-b of two score vectors [n] that are not constant; equal infinities are ties.

    As scipy.stats.spearmanr and kendalltau define them, without the p-values that take most of their time.
    """
    from scipy.stats import rankdata

    ranks = rankdata(a), rankdata(b)
    signs = [np.sign(r[:, None] - r[None, :]) for r in ranks]  # of ranks: the difference of two infinities is NaN
    tau = (signs[0] * signs[1]).sum() / np.sqrt((signs[0] ** 2).sum() * (signs[1] ** 2).sum())
    return float(np.corrcoef(*ranks)[0, 1]), float(tau)
