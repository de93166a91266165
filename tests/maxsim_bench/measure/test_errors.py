"""Comparing scores with a reference."""

from __future__ import annotations

import math

import pytest
import torch

from maxsim_bench.measure.errors import Errors, compare, dot, norm_of_difference, pieces

INF, NAN = math.inf, math.nan


def test_equal_tensors_are_exact() -> None:
    x = torch.tensor([1.0, -2.0, 0.0])
    assert compare(x, x.clone()).exact


def test_equal_infinities_and_nan_on_both_sides_differ_by_nothing() -> None:
    x = torch.tensor([INF, -INF, NAN, 1.0])
    assert compare(x, x.clone()) == Errors(0.0, 0.0, 0.0)


@pytest.mark.parametrize(("got", "want"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, -INF), (INF, -INF), (NAN, INF)])
def test_a_nan_or_infinity_on_one_side_is_an_infinite_error(got: float, want: float) -> None:
    errors = compare(torch.tensor([got, 1.0]), torch.tensor([want, 1.0]))
    assert errors.max_abs == INF
    assert errors.max_rel == INF


def test_absolute_mean_and_relative_errors() -> None:
    errors = compare(torch.tensor([10.5, 20.0]), torch.tensor([10.0, 20.0]))
    assert errors == Errors(0.5, 0.25, 0.05)


def test_a_score_that_cancels_to_nearly_nothing_is_judged_on_the_scale_of_the_others() -> None:
    errors = compare(torch.tensor([1e-6, 10.0]), torch.tensor([2e-6, 10.0]))
    assert errors.max_rel == pytest.approx(1e-6)


def test_half_precision_is_compared_in_double() -> None:
    errors = compare(torch.tensor([1.0], dtype=torch.float16), torch.tensor([1.0 + 2**-20], dtype=torch.float32))
    assert errors.max_abs == 2**-20


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\[2\].*\[3\]"):
        compare(torch.zeros(2), torch.zeros(3))


def test_nothing_compared_with_nothing_is_exact() -> None:
    assert compare(torch.zeros(0, 4), torch.zeros(0, 4)).exact


def test_errors_by_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are as large as the inputs: they are compared a piece at a time, beside which there is always room."""
    generator = torch.Generator().manual_seed(1)
    got, want = (torch.randn(7, 9, generator=generator) for _ in range(2))
    whole, product = compare(got, want), float(got.double().flatten() @ want.double().flatten())
    monkeypatch.setattr("maxsim_bench.measure.errors._PIECE", 5)
    by_pieces = compare(got, want)
    assert (by_pieces.max_abs, by_pieces.max_rel) == (whole.max_abs, whole.max_rel)
    assert by_pieces.mean_abs == pytest.approx(whole.mean_abs, rel=1e-12)
    assert dot(got, want) == pytest.approx(product, rel=1e-12)
    assert norm_of_difference(got, want) == pytest.approx(float((got.double() - want.double()).norm()), rel=1e-12)
    assert max(piece.numel() for parts in pieces(got, want) for piece in parts) == 5
