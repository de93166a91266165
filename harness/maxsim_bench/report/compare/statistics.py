"""Statistics of comparisons: pure functions of lists of numbers, each scipy's own with its source.

Room: `report`. Imports nothing else of ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 999
FEWEST = 6  # samples with an interval: the whole range of fewer holds the median less often than in 95 % (1 - 2 / 2^n)
MOST_SAMPLES = 1_000_000


@dataclass(frozen=True)
class Effect:
    """new / base with its interval and the probability of such a difference between equals.

    Attributes:
        ratio, low, high: ratio of medians (independent samples) or median of ratios (paired), bootstrap interval.
        p_value: two-sided; NaN where nothing was tested.
        test: name of the test.
        base_count, new_count: samples on both sides.
    """

    ratio: float
    low: float
    high: float
    p_value: float
    test: str
    base_count: int
    new_count: int

    @property
    def trusted(self) -> bool:
        """Whether there are samples enough for the interval to cover as often as it says."""
        return min(self.base_count, self.new_count) >= FEWEST


def independent_effect(
    base: Sequence[float], new: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Effect:
    """Two runs: Mann & Whitney (1947), and the percentile bootstrap of the ratio of medians (Efron & Tibshirani 1993).

    Raises:
        ValueError: for fewer than two samples on a side, or one that is not positive and finite.
    """
    from scipy import stats

    a, b = _positive(base, "base"), _positive(new, "new")
    p_value = float(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue) if np.ptp(np.concatenate([a, b])) else 1.0
    ratio = float(np.median(b) / np.median(a))
    if not np.ptp(a) and not np.ptp(b):
        return Effect(ratio, ratio, ratio, p_value, "Mann-Whitney U", len(a), len(b))

    def ratios(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(np.median(y, axis=axis) / np.median(x, axis=axis))

    interval = stats.bootstrap(
        (a, b), ratios, n_resamples=RESAMPLES, confidence_level=confidence, method="percentile", vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return Effect(ratio, float(interval.low), float(interval.high), p_value, "Mann-Whitney U", len(a), len(b))


def paired_effect(base: Sequence[float], new: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Effect:
    """One interleaved run, entry i of both from one round: Wilcoxon (1945) signed ranks of log ratios, and the
    percentile bootstrap of their median.

    Raises:
        ValueError: for unequal counts, fewer than two pairs, or a value that is not positive and finite.
    """
    from scipy import stats

    a, b = _positive(base, "base"), _positive(new, "new")
    if len(a) != len(b):
        raise ValueError(f"paired samples need equal counts, got {len(a)} and {len(b)}")
    logs = np.log(b / a)
    ratio = float(np.exp(np.median(logs)))
    if not np.ptp(logs):
        p_value = 1.0 if logs[0] == 0 else 2.0 ** (1 - len(logs))  # every pair says the same: a sign test
        return Effect(ratio, ratio, ratio, p_value, "Wilcoxon signed rank", len(a), len(b))
    p_value = float(stats.wilcoxon(logs).pvalue)
    interval = stats.bootstrap(
        (logs,), np.median, n_resamples=RESAMPLES, confidence_level=confidence, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    low, high = math.exp(interval.low), math.exp(interval.high)
    return Effect(ratio, low, high, p_value, "Wilcoxon signed rank", len(a), len(b))


def _positive(values: Sequence[float], side: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        raise ValueError(f"{side}: {len(array)} samples, but a comparison needs at least two")
    if not np.isfinite(array).all() or not (array > 0).all():
        raise ValueError(f"{side}: a sample is not a positive, finite number")
    return array


def adjusted(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for the number of tests, controlling the false-discovery rate (Benjamini & Hochberg 1995).

    NaN (nothing was tested) stays NaN and does not count as a test.
    """
    from scipy import stats

    array = np.asarray(p_values, dtype=np.float64)
    tested = ~np.isnan(array)
    if tested.any():
        array[tested] = stats.false_discovery_control(array[tested], method="bh")
    return [float(p) for p in array]


def samples_needed(effect: Effect, margin: float) -> int | None:
    """Samples a side that would narrow the interval so that it no longer holds the nearest threshold.

    The width of an interval falls with the square root of the count, so count × (half width / distance)². None where
    the ratio sits so near a threshold that a million samples would not settle it.
    """
    half = (effect.high - effect.low) / 2
    distance = abs(abs(effect.ratio - 1) - margin)
    count = max(effect.base_count, effect.new_count)
    wanted = count * (half / distance) ** 2 if distance > 0 else math.inf
    return max(count + 1, math.ceil(wanted)) if wanted <= MOST_SAMPLES else None


@dataclass(frozen=True)
class Rate:
    """`hits` of `tries` with the exact interval of the rate (Clopper & Pearson 1934)."""

    hits: int
    tries: int
    rate: float
    low: float
    high: float


def rate(hits: int, tries: int, *, confidence: float = 0.95) -> Rate:
    """A rate with its interval. Raises ValueError for no tries or more hits than tries."""
    from scipy import stats

    if tries < 1 or not 0 <= hits <= tries:
        raise ValueError(f"{hits} of {tries} is no rate")
    interval = stats.binomtest(hits, tries).proportion_ci(confidence_level=confidence, method="exact")
    return Rate(hits, tries, hits / tries, float(interval.low), float(interval.high))


def steps(values: Sequence[float], *, penalty: float = 3.0, noise_floor: float = 0.003, least: int = 3) -> list[int]:
    """Indices at which a series of positive values steps to another level.

    The piecewise-constant fit that minimises Σ|log value − level| + γ · (number of levels), found exactly by dynamic
    programming over the last step (Friedrich, Kempe, Liebscher & Winkler, "Complexity penalized M-estimation: fast
    computation", Journal of Computational and Graphical Statistics 17(1), 2008; airspeed velocity detects steps
    the same way). A level is the median of its values.

    Args:
        penalty: γ in units of the noise times log n.
        least: values a level has at least, so that one outlier is no level.
        noise_floor: least noise (of the logarithm) that is assumed: a quiet series must not step at its own jitter.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    count = len(logs)
    if count < 2 * least:
        return []
    # Differences of neighbours are free of steps but for a few; their median size over 0.6745·√2 estimates sigma.
    sigma = max(float(np.median(np.abs(np.diff(logs)))) / (0.6745 * math.sqrt(2)), noise_floor)
    gamma = penalty * sigma * math.log(max(count, 3))
    best, last = [0.0], [0]
    for end in range(1, count + 1):
        costs = [best[start] + gamma + _deviation(logs[start:end]) for start in range(end - least + 1)]
        start = int(np.argmin(costs)) if costs else 0
        best.append(costs[start] if costs else math.inf)
        last.append(start)
    found, end = [], count
    while end > 0:
        end = last[end]
        if end > 0:
            found.append(end)
    return found[::-1]


def _deviation(values: np.ndarray) -> float:
    return float(np.abs(values - np.median(values)).sum())
