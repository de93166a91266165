"""Statistics of timing samples: pure functions of lists of numbers.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A statistic with its confidence interval, in the unit of the samples."""

    value: float
    low: float
    high: float

    @property
    def width_percent(self) -> float:
        """Half the interval's width, in percent of the value: 1.0 means "within 1 %"."""
        return 50.0 * (self.high - self.low) / self.value if self.value else float("inf")


def median(samples: Sequence[float]) -> float:
    """Median, the mean of the two middle values for an even count. Raises ValueError for no samples."""
    return quantile(samples, 0.5)


def quantile(samples: Sequence[float], q: float) -> float:
    """Quantile `q` in [0, 1], interpolated (Hyndman & Fan 1996, type 7). Raises ValueError for no samples."""
    if not len(samples):
        raise ValueError("no samples: a quantile needs at least one")
    return float(np.quantile(np.asarray(samples, dtype=np.float64), q))


@functools.lru_cache(maxsize=4096)
def median_ranks(count: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """1-based ranks of the order statistics that enclose the median, None where `count` is too small (below 6 at 95 %).

    Distribution-free: the number of samples below the median is Binomial(n, 1/2) (Conover, Practical Nonparametric
    Statistics, 3rd ed. 1999, section 3.2; Le Boudec, Performance Evaluation, 2010, theorem 2.1).
    """
    from scipy import stats

    low = int(stats.binom.ppf((1 - confidence) / 2, count, 0.5))
    return (low, count + 1 - low) if low >= 1 else None


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Median with its order-statistic interval; None for too few samples to have one."""
    ranks = median_ranks(len(samples), confidence)
    if ranks is None:
        return None
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    return Interval(median(samples), float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1]))


def paired_ratio(
    numerator: Sequence[float], denominator: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Interval | None:
    """Median ratio of paired samples with its percentile bootstrap interval (Efron & Tibshirani 1993, chapter 13).

    The percentile interval and not BCa: the jackknife of a median takes two values only, so that BCa's acceleration is
    meaningless for it (same book, section 14.3).

    Args:
        numerator, denominator: equally long; entry i of both was taken in the same round.
        seed: of the resampling.

    Returns:
        None for fewer than two pairs; low and high are NaN for fewer than a `median_interval` needs, of which a
        bootstrap covers the median less often than it says.

    Raises:
        ValueError: for unequal lengths or a denominator that is not positive.
    """
    from scipy import stats

    if len(numerator) != len(denominator):
        raise ValueError(f"paired samples need equal counts, got {len(numerator)} and {len(denominator)}")
    below = np.asarray(denominator, dtype=np.float64)
    if len(below) < 2:
        return None
    if not (below > 0).all():
        raise ValueError("a ratio needs positive times in its denominator")
    ratios = np.asarray(numerator, dtype=np.float64) / below
    if median_ranks(len(ratios), confidence) is None:
        return Interval(float(np.median(ratios)), float("nan"), float("nan"))
    if (ratios == ratios[0]).all():
        return Interval(float(ratios[0]), float(ratios[0]), float(ratios[0]))
    interval = stats.bootstrap(
        (ratios,), np.median, n_resamples=999, confidence_level=confidence, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return Interval(float(np.median(ratios)), float(interval.low), float(interval.high))


def is_stable(values: Sequence[float], window: int = 5, percent: float = 2.0) -> bool:
    """True when the medians of the last two windows of `window` values lie within `percent` of each other."""
    if len(values) < 2 * window:
        return False
    last, before = median(values[-window:]), median(values[-2 * window : -window])
    return abs(last - before) <= percent / 100 * last
