"""Agreement beyond errors: rankings and gradients."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr

from maxsim_bench.measure.agreement import gradients, rankings


def test_equal_scores_agree_fully_at_every_depth_that_there_is() -> None:
    scores = torch.randn(3, 60)
    found = rankings(scores, scores.clone())
    assert found == {
        "mean_rel_err": 0.0,
        "topk_overlap_20": 1.0,
        "topk_overlap_50": 1.0,
        "spearman": pytest.approx(1.0),
    }
    assert set(rankings(scores[:, :20], scores[:, :20])) == {"mean_rel_err", "spearman"}


def test_the_correlation_is_scipys_and_an_overlap_is_a_share() -> None:
    torch.manual_seed(0)
    want = torch.randn(1, 40)
    got = want + 0.5 * torch.randn(1, 40)
    found = rankings(got, want)
    assert found["spearman"] == pytest.approx(spearmanr(got[0], want[0]).statistic)
    best = [set(x[0].topk(20).indices.tolist()) for x in (got, want)]
    assert found["topk_overlap_20"] == len(best[0] & best[1]) / 20


def test_a_reversed_ranking_is_minus_one_and_relative_errors_leave_zeros_and_infinities_out() -> None:
    want = torch.tensor([[4.0, 2.0, 0.0, float("-inf")]])
    found = rankings(torch.tensor([[-4.0, 1.0, 5.0, 9.0]]), want)
    assert found["spearman"] == pytest.approx(-1.0)
    assert found["mean_rel_err"] == pytest.approx((2.0 + 0.5) / 2)


def test_no_score_gives_nothing_and_one_document_no_ranking() -> None:
    assert rankings(torch.zeros(1, 0), torch.zeros(1, 0)) == {}
    assert rankings(torch.ones(1, 1), torch.ones(1, 1)) == {"mean_rel_err": 0.0}


def test_gradients_have_direction_and_size_by_side_and_a_zero_one_has_neither() -> None:
    want = [torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])]
    found = gradients([torch.tensor([6.0, 8.0]), torch.tensor([0.0, 1.0])], want)
    assert found == {
        "cosine_grad_q": pytest.approx(1.0), "rel_err_grad_q": pytest.approx(1.0),
        "cosine_grad_d": pytest.approx(0.0), "rel_err_grad_d": pytest.approx(2**0.5),
    }  # fmt: skip
    assert gradients([torch.zeros(2), torch.ones(2)], [torch.ones(2), torch.zeros(2)]) == {}
