"""Comparing scores with a reference."""

from __future__ import annotations

import math

import pytest
import torch

from maxsim_bench.measure.errors import Errors, compare

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
