"""Measures follow trec_eval's ties, count what is missing, and refuse what cannot be judged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.metrics import ScoreError, evaluate, evaluate_rankings, ranked


@pytest.mark.parametrize(
    ("qrels", "run", "ndcg"),
    [
        ({"q": {"d": 1}}, {"q": {"q": 9, "d": 1}}, 1 / math.log2(3)),
        ({"q": {"a": 1}}, {"q": {"a": 1, "b": 1}}, 1 / math.log2(3)),
        ({"q": {"z": 1}}, {"q": {"z": 1, "b": 1}}, 1.0),
        ({"q1": {"a": 1}, "q2": {"b": 1}}, {"q1": {"a": 1}}, 0.5),
        ({"q": {"a": 1, "b": 1}}, {"q": {"a": 1}}, 0.613147),
        ({"q": {"a": 3, "b": 2, "c": 1}}, {"q": {"b": 3, "a": 2, "x": 1.5, "c": 1}}, 0.907936),
    ],
    ids=["self-retrieval", "tie lost", "tie won", "missing query", "ideal", "graded, linear gain"],
)
def test_a_known_run_has_its_known_ndcg(qrels, run, ndcg) -> None:
    assert evaluate(run, qrels).means["ndcg_at_10"] == pytest.approx(ndcg, abs=5e-6)


def test_a_query_that_is_a_document_can_be_dropped_without_changing_the_callers_run() -> None:
    run = {"q": {"q": 9.0, "d": 1.0}}
    assert evaluate(run, {"q": {"d": 1}}, drop_own_id=True).means["ndcg_at_10"] == 1.0
    assert run == {"q": {"q": 9.0, "d": 1.0}}


def test_ties_are_broken_by_id_descending_whatever_the_order_of_the_run() -> None:
    assert ranked({"a": 1.0, "c": 1.0, "b": 1.0, "z": 0.5}) == ["c", "b", "a", "z"]
    assert ranked({"d10": 1.0, "d9": 1.0}) == ["d9", "d10"], "ids are strings"


def test_every_measure_breaks_ties_alike() -> None:
    """ir-measures' providers do not: MRR would come from one that does."""
    made = evaluate({"q": {"a": 1.0, "b": 1.0}}, {"q": {"a": 1}}).means
    assert made["mrr_at_10"] == 0.5
    assert made["recall_at_10"] == 1.0


def test_a_query_without_relevant_documents_is_left_out_and_named() -> None:
    made = evaluate({"q1": {"a": 1}, "q2": {"b": 1}}, {"q1": {"a": 1}, "q2": {"b": 0, "c": -1}})
    assert made.means["ndcg_at_10"] == 1.0
    assert made.without_relevant == ("q2",)
    assert "q2" not in made.per_query


def test_missing_and_unjudged_queries_are_named() -> None:
    made = evaluate({"q1": {"a": 1, "b": 0.5}, "x": {"a": 1}}, {"q1": {"b": 1}, "q2": {"b": 1}})
    assert made.missing == ("q2",)
    assert made.unjudged == ("x",)
    assert made.per_query["q2"] == dict.fromkeys(made.per_query["q2"], 0.0)


def test_a_nan_score_is_an_error_that_names_query_and_document() -> None:
    with pytest.raises(ScoreError, match=r"query 'q7', document 'd3'"):
        evaluate({"q7": {"d1": 1.0, "d3": math.nan}}, {"q7": {"d1": 1}})


def test_infinite_scores_rank() -> None:
    assert ranked({"a": -math.inf, "b": 0.0, "c": math.inf, "d": -math.inf}) == ["c", "b", "d", "a"]


def test_numpy_scores_and_grades_are_taken() -> None:
    made = evaluate({"q": {"a": np.float32(1), "b": np.float32(0.5)}}, {"q": {"b": np.int64(1)}})
    assert made.means["ndcg_at_10"] == pytest.approx(1 / math.log2(3))


def test_a_document_twice_in_a_ranking_is_an_error() -> None:
    with pytest.raises(DataError, match="'a' is ranked twice"):
        evaluate_rankings({"q": ["a", "b", "a"]}, {"q": {"a": 1}})


@pytest.mark.parametrize(
    ("run", "told"),
    [({"1": {"a": 1.0}}, "no query of the run is judged"), ({"q": {"x": 1.0}}, "no judged document"), ({}, "no query")],
)
def test_a_run_of_other_ids_is_an_error_and_never_a_zero(run, told) -> None:
    with pytest.raises(DataError, match=told):
        evaluate(run, {"q": {"a": 1}})


def test_zero_or_one_everywhere_is_flagged() -> None:
    assert "1.0" in evaluate({"q": {"a": 1}}, {"q": {"a": 1}}).suspicious[0]
    worthless = evaluate({"q": {"a": 1.0}, "p": {"b": 0.0}}, {"q": {"b": 1}, "p": {"a": 1}})
    assert "0.0" in worthless.suspicious[0]
    assert evaluate({"q": {"a": 1, "b": 0.5}}, {"q": {"b": 1}}).suspicious == ()


def test_the_measures_agree_with_their_definitions() -> None:
    """Ten relevant documents, found at ranks 3, 7 and 60."""
    ranking = [f"x{i}" for i in range(100)]
    for rank, document in ((3, "r0"), (7, "r1"), (60, "r2")):
        ranking[rank - 1] = document
    made = evaluate_rankings({"q": ranking}, {"q": {f"r{i}": 1 for i in range(10)}}).means
    gain = sum(1 / math.log2(rank + 1) for rank in (3, 7))
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, 11))
    assert made["ndcg_at_10"] == pytest.approx(gain / ideal)
    assert made["ndcg_at_5"] == pytest.approx((1 / 2) / sum(1 / math.log2(r + 1) for r in range(1, 6)))
    assert made["recall_at_10"] == pytest.approx(0.2)
    assert made["recall_at_100"] == pytest.approx(0.3)
    assert made["mrr_at_10"] == pytest.approx(1 / 3)
