"""Statistics of timing samples, on frozen numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from maxsim_bench.measure.statistics import (
    Interval,
    is_stable,
    median,
    median_interval,
    median_ranks,
    paired_ratio,
    quantile,
)

FROZEN = [1.31, 1.28, 1.30, 1.29, 1.35, 1.27, 1.30, 1.33, 1.29, 1.31, 1.30, 1.62]


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_quantiles_interpolate_linearly() -> None:
    assert quantile([0.0, 10.0], 0.2) == 2.0


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median([])


def test_the_interval_of_frozen_samples_is_the_third_and_tenth_smallest() -> None:
    assert median_interval(FROZEN) == Interval(1.30, 1.29, 1.33)


@pytest.mark.parametrize("count", [6, 7, 11, 30, 101, 500])
def test_ranks_are_those_of_the_binomial_and_agree_with_scipy(count: int) -> None:
    ranks = median_ranks(count)
    assert ranks is not None
    samples = np.arange(1.0, count + 1)
    want = stats.quantile_test(samples, q=0, p=0.5).confidence_interval(0.95)
    assert ranks == (int(want.low), int(want.high))


def test_five_samples_are_too_few_for_a_95_percent_interval() -> None:
    assert median_interval(FROZEN[:5]) is None
    assert median_interval(FROZEN[:6]) is not None


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        interval = median_interval(list(rng.exponential(size=25)))
        assert interval is not None
        hits += interval.low <= np.log(2) <= interval.high
    assert 0.93 <= hits / 1000 <= 0.99


def test_width_is_half_the_interval_in_percent() -> None:
    assert Interval(100.0, 99.0, 101.0).width_percent == 1.0


def test_paired_ratios_ignore_drift_that_hits_both_sides() -> None:
    """Times that double midway give the same ratio throughout, while a quotient of medians would depend on the cut."""
    base = [2.0] * 10 + [4.0] * 10
    ratio = paired_ratio(base, [b / 2 for b in base])
    assert ratio == Interval(2.0, 2.0, 2.0)


def test_the_bootstrap_interval_holds_the_median_and_is_reproducible() -> None:
    rng = np.random.default_rng(0)
    base, other = list(3 + 0.1 * rng.standard_normal(40)), list(2 + 0.1 * rng.standard_normal(40))
    ratio = paired_ratio(base, other)
    assert ratio is not None
    assert ratio.low < ratio.value < ratio.high
    assert ratio.low > 1.4
    assert ratio.high < 1.6
    assert paired_ratio(base, other) == ratio


def test_one_pair_has_no_ratio_and_few_have_no_interval() -> None:
    """As many as a median's own interval needs: a bootstrap of fewer covers it less often than it says."""
    assert paired_ratio([1.0], [2.0]) is None
    for count in range(2, 9):
        base = [2.0 + 0.1 * (i % 3) for i in range(count)]
        ratio = paired_ratio(base, [1.0] * count)
        assert ratio is not None
        assert ratio.value == median(base)
        enough = median_interval(base) is not None
        assert enough == (count >= 6)
        assert [math.isnan(end) for end in (ratio.low, ratio.high)] == [not enough] * 2


def test_unpaired_or_impossible_times_are_refused() -> None:
    with pytest.raises(ValueError, match="equal counts"):
        paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([1.0, 2.0], [1.0, 0.0])


def test_a_running_median_is_stable_once_two_windows_agree() -> None:
    assert not is_stable([1.0] * 9)
    assert is_stable([9.0] + [1.0] * 10)
    assert not is_stable([2.0] * 5 + [1.0] * 5)
