"""nDCG@10 and its companions over rankings, by ir-measures, under the rules of docs/semantics.md.

Room: `retrieve`. May import: record, backends. Rankings come in as scores; they are put into trec_eval's order (score
descending, then document id descending) and cut here, once, and handed to ir-measures with their rank as score: its
providers break ties each in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maxsim_bench.retrieve.dataset import DataError, Qrels

Run = Mapping[str, Mapping[str, float]]

# Row field → what ir-measures computes. Gain is linear, as trec_eval's; relevant means a grade of at least 1.
MEASURES = {
    "ndcg_at_10": "nDCG@10",
    "ndcg_at_5": "nDCG@5",
    "recall_at_10": "R@10",
    "recall_at_100": "R@100",
    "mrr_at_10": "RR@10",
}
DEPTH = 100  # the deepest cut of any measure


class ScoreError(ValueError):
    """Scores that rank nothing: NaN; the message names query and document."""


@dataclass(frozen=True)
class Evaluation:
    """Measures of one run.

    Attributes:
        means: field of `MEASURES` → mean over the evaluated queries.
        per_query: query → field → value.
        missing: evaluated queries for which the run holds nothing; each counts 0.
        without_relevant: queries of the judgements with nothing relevant, left out of every mean.
        unjudged: queries of the run that nobody judged, ignored.
        suspicious: what makes these numbers unfit to publish before somebody has looked, in words.
    """

    means: dict[str, float]
    per_query: dict[str, dict[str, float]]
    missing: tuple[str, ...] = ()
    without_relevant: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = field(default=())


def ranked(scores: Mapping[str, float], *, drop: str | None = None, query: str = "?") -> list[str]:
    """Document ids by score descending, then id descending, which is trec_eval's order; `drop` is left out.

    Raises:
        ScoreError: for a NaN, naming query and document.
    """
    for document, score in scores.items():
        if math.isnan(score):
            raise ScoreError(f"query {query!r}, document {document!r}: the score is NaN. Nothing can be ranked by it.")
    order = sorted((d for d in scores if d != drop), reverse=True)
    return sorted(order, key=lambda d: -scores[d])


def evaluate(run: Run, qrels: Qrels, *, drop_own_id: bool = False) -> Evaluation:
    """Measures of a run given as query → document → score; the run is not changed.

    Args:
        drop_own_id: leave a document out whose id is the query's, before any cut.

    Raises:
        DataError: if run and judgements share no query, or no judged document was ever retrieved by any query and
            the ids look as if they belong to different collections.
        ScoreError: for a NaN score.
    """
    rankings = {
        q: ranked(documents, drop=q if drop_own_id else None, query=q)[:DEPTH]
        for q, documents in run.items()
        if q in qrels
    }
    unjudged = tuple(q for q in run if q not in qrels)
    return evaluate_rankings(rankings, qrels, unjudged=unjudged, retrieved=run)


def evaluate_rankings(
    rankings: Mapping[str, Sequence[str]],
    qrels: Qrels,
    *,
    unjudged: tuple[str, ...] = (),
    retrieved: Run | None = None,
) -> Evaluation:
    """Measures of rankings that are in their final order; see `evaluate`. `retrieved` widens the overlap check."""
    import ir_measures

    _require_overlap(rankings, qrels, retrieved)
    without = tuple(q for q, judged in qrels.items() if not any(g > 0 for g in judged.values()))
    asked = [q for q in qrels if q not in set(without)]
    for query, documents in rankings.items():
        if len(set(documents)) < len(documents):
            twice = next(d for i, d in enumerate(documents) if d in documents[:i])
            raise DataError(f"query {query!r}: document {twice!r} is ranked twice. A ranking holds a document once.")
    judged = {q: {d: int(g) for d, g in qrels[q].items()} for q in asked}
    scored = {q: {d: float(-i) for i, d in enumerate(rankings[q])} for q in asked if rankings.get(q)}
    measures = {_measure(text): name for name, text in MEASURES.items()}
    per_query = {q: dict.fromkeys(MEASURES, 0.0) for q in asked}
    if scored and asked:
        for value in ir_measures.iter_calc(list(measures), judged, scored):
            per_query[value.query_id][measures[value.measure]] = float(value.value)
    means = {m: sum(values[m] for values in per_query.values()) / len(asked) for m in MEASURES} if asked else {}
    missing = tuple(q for q in asked if not rankings.get(q))
    return Evaluation(means, per_query, missing, without, unjudged, tuple(suspicions(means)))


def suspicions(means: Mapping[str, float]) -> list[str]:
    """0.0 or 1.0 everywhere is the mark of ids that do not match or of a leak, not of a system."""
    for extreme in (0.0, 1.0):
        if means and all(value == extreme for value in means.values()):
            return [f"every measure is {extreme}: look at ids and judgements before believing it"]
    return []


def _measure(text: str) -> Any:
    """A measure object; ir-measures' own parser needs a part of Python that 3.14 removed."""
    import ir_measures

    name, _, cut = text.partition("@")
    return getattr(ir_measures, name) @ int(cut)


def _require_overlap(rankings: Mapping[str, Sequence[str]], qrels: Qrels, retrieved: Run | None) -> None:
    """No query in common, or no judged document among the retrieved ones, means ids of different collections."""
    if not any(q in qrels for q in rankings):
        raise DataError(
            f"no query of the run is judged: it has queries like {next(iter(rankings), None) or _first(retrieved)!r}, "
            f"the judgements {next(iter(qrels), None)!r}. These files do not belong together."
        )
    documents = {d for ids in rankings.values() for d in ids} | {d for ids in (retrieved or {}).values() for d in ids}
    judged = {d for ids in qrels.values() for d in ids}
    if documents and not documents & judged:
        raise DataError(
            f"no judged document is in any ranking: the run has documents like {min(documents)!r}, the judgements "
            f"{min(judged)!r}. If these ids are of one collection, the run is empty of everything relevant; check both."
        )


def _first(run: Run | None) -> str | None:
    return next(iter(run), None) if run else None
