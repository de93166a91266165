"""The audit says how far rankings moved and why, and names what is wrong with a broken backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.retrieve.audit import audit, bootstrap_interval, identical, rank_correlations, ranking_of
from maxsim_bench.retrieve.diagnose import diagnose
from maxsim_bench.retrieve.metrics import evaluate
from maxsim_bench.retrieve.rank import rank
from maxsim_bench.retrieve.scoring import Scorer


@pytest.fixture
def audited(fake, cell, collection):
    """Audit and diagnosis of one fake backend on a made-up collection."""

    def run(score, made=None, **changes):
        made = made or collection()
        backend = fake(score, **changes)
        reference = Scorer(registry.get("reference"), cell(), "cpu")
        scorer = Scorer(backend, cell(), "cpu")
        base, found = rank(made.dataset, made.queries, made.documents, reference, {"it": scorer})
        one = found["it"]
        assert one.failure is None, one.failure
        told = diagnose(made.dataset, made.queries, made.documents, reference, scorer, one.errors, backend.relative)
        return audit(made.dataset, ranking_of(made.dataset, base), one, backend.relative), told

    return run


def test_a_right_backend_moves_nothing_and_is_told_nothing(audited) -> None:
    made, told = audited("right")
    assert told == []
    assert made.delta["ndcg_at_10"] == 0.0
    assert made.interval == (0.0, 0.0)
    assert made.moved == []
    assert made.overlap == {10: 1.0, 20: 1.0, 100: 1.0}
    assert made.spearman == pytest.approx(1.0)
    assert made.kendall == pytest.approx(1.0)
    assert made.errors.max_rel.max() < 1e-6


def test_zero_padding_that_takes_part_is_caught_and_named(audited, collection) -> None:
    made, told = audited("unmasked", collection(d=3))
    assert made.errors.max_rel.max() > 1e-3
    assert any("padding takes part in the maximum" in t and "token of 0 added" in t for t in told)
    assert made.delta["ndcg_at_10"] == 0.0, "it is caught by its scores, although nobody's first ten moved"


def test_a_backend_that_reads_the_padding_of_masked_documents_is_caught_and_named(audited, collection) -> None:
    """Padding holds 9.0, so reading it cannot stay unnoticed even where every similarity is positive."""

    def reads(Q, q_valid, D, d_valid):
        S = torch.einsum("nid,bjd->nbij", Q, D)
        return S.amax(-1).masked_fill(~q_valid[:, None, :], 0.0).sum(-1)

    made = collection(shift=1.0)
    _, told = audited(reads, made, refuses=lambda c: None if c.layout == "masked" else "padded only")
    assert any("padding takes part in the maximum" in t and "token of 9 added" in t for t in told)


def test_sums_in_bfloat16_are_caught_and_named(audited) -> None:
    made, told = audited("bf16_sum")
    assert any("every score is a bfloat16 number" in t for t in told)
    assert made.errors.half == "bfloat16"


def test_two_exchanged_documents_are_caught_and_named(audited) -> None:
    made, told = audited("swapped")
    assert any("document 'd002' has the scores of document 'd003'" in t for t in told)
    assert any("document 'd003' has the scores of document 'd002'" in t for t in told)
    assert made.delta["ndcg_at_10"] < -0.05
    assert {m.query for m in made.moved} >= {"q2", "q3"}
    assert all(m.cause == "error" for m in made.moved if m.query in ("q2", "q3"))


def test_a_mistake_that_fits_nothing_known_is_told_with_its_worst_pair(audited) -> None:
    def crooked(Q, q_valid, D, d_valid):
        S = torch.einsum("nid,bjd->nbij", Q, D).masked_fill(~d_valid[None, :, None, :], float("-inf"))
        scores = S.amax(-1).masked_fill(~q_valid[:, None, :], 0.0).sum(-1)
        scores[0, 5] += 0.3
        return scores

    _, told = audited(crooked)
    assert len(told) == 1
    assert "unexplained" in told[0]
    assert "'d005'" in told[0]


def test_a_query_moved_by_less_than_the_tolerance_is_rounding_of_that_size(audited, collection) -> None:
    made = collection()
    noise = torch.Generator().manual_seed(5)

    def noisy(Q, q_valid, D, d_valid):
        S = torch.einsum("nid,bjd->nbij", Q, D).masked_fill(~d_valid[None, :, None, :], float("-inf"))
        scores = S.amax(-1).masked_fill(~q_valid[:, None, :], 0.0).sum(-1)
        return scores * (1 + 5e-3 * torch.rand(scores.shape, generator=noise))

    result, told = audited(noisy, made, relative=1e-2)
    assert told == []
    assert result.moved
    assert {m.cause for m in result.moved} == {"rounding"}
    assert all(0 < m.size < 0.05 for m in result.moved)


def test_documents_with_equal_reference_scores_that_change_places_are_a_tie(audited, collection) -> None:
    made = collection(documents=30)
    twin = made.documents.select([*range(20), *([20] * 10)])  # ten documents alike
    made = type(made)(made.dataset, made.queries, twin)

    def nudged(Q, q_valid, D, d_valid):
        S = torch.einsum("nid,bjd->nbij", Q, D).masked_fill(~d_valid[None, :, None, :], float("-inf"))
        scores = S.amax(-1).masked_fill(~q_valid[:, None, :], 0.0).sum(-1)
        scores[:, 20:] += 1e-6 * torch.arange(10).flip(0)
        return scores

    result, _ = audited(nudged, made, relative=1e-4)
    assert any(m.cause == "tie" and m.size == 0.0 for m in result.moved)
    exact, _ = audited("right", made)
    assert exact.ties > 0
    assert exact.ties_across_cut > 0


def test_equality_to_the_bit_is_suspicious_where_the_arithmetic_cannot_give_it(fake, cell, collection) -> None:
    made = collection(noise=2.0)
    reference = Scorer(registry.get("reference"), cell(), "cpu")
    base, found = rank(made.dataset, made.queries, made.documents, reference, {"it": reference})
    wanted = ranking_of(made.dataset, base)
    assert audit(made.dataset, wanted, found["it"], 0.0).suspicious == []
    assert "to the bit" in audit(made.dataset, wanted, found["it"], 0.0, should_differ=True).suspicious[0]


def test_the_bootstrap_interval_holds_the_mean_and_shrinks_with_queries() -> None:
    random = np.random.default_rng(0)
    few, many = (bootstrap_interval(random.normal(0.1, 0.05, n)) for n in (20, 2000))
    assert few[0] < 0.1 < few[1]
    assert many[1] - many[0] < (few[1] - few[0]) / 5
    assert bootstrap_interval([]) == (0.0, 0.0)
    assert bootstrap_interval([0.25]) == (0.25, 0.25)


def test_the_bootstrap_interval_has_its_coverage() -> None:
    """Normal differences: 95 % of the intervals should hold the truth; within 5 points over 200 draws."""
    random = np.random.default_rng(1)
    held = 0
    for i in range(200):
        low, high = bootstrap_interval(random.normal(0.0, 1.0, 60), seed=i)
        held += low <= 0.0 <= high
    assert 180 <= held <= 199


def test_identical_measures_of_systems_that_should_differ_are_told() -> None:
    one = evaluate({"q": {"a": 1.0, "b": 0.5}}, {"q": {"b": 1}})
    other = evaluate({"q": {"a": 1.0, "b": 0.5}}, {"q": {"a": 1}})
    assert identical({"x": one, "y": other}) == []
    assert identical({"x": one, "y": one, "z": other})[0].startswith("x and y have identical measures")


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlations_are_those_of_scipy(ties: bool) -> None:
    from scipy import stats

    random = np.random.default_rng(2)
    a, b = (random.integers(0, 12, 100) if ties else random.normal(size=100) for _ in range(2))
    b = b + a
    spearman, kendall = rank_correlations(a, b)
    assert spearman == pytest.approx(stats.spearmanr(a, b).statistic)
    assert kendall == pytest.approx(stats.kendalltau(a, b).statistic)
    infinite = np.array([3.0, 2.0, -np.inf, -np.inf])
    assert rank_correlations(infinite, infinite) == (pytest.approx(1.0), pytest.approx(1.0))
