"""The decision on one cell, backend and metric: from UNDECIDED upwards, on evidence, each with its reason.

Room: `report`. May import: record, declare. A comparison starts as UNDECIDED and becomes

    SAME      if the interval of the ratio lies within the practical threshold,
    FASTER or SLOWER
              if the test finds a difference after control of the false-discovery rate over the whole comparison, the
              interval excludes 1, the ratio lies beyond the threshold, and (where clocks moved) it still does in clock
              cycles.

A ratio to a baseline under the policy `host` stays UNDECIDED where the host itself became faster or slower. A row that
nobody measured again is SAME, however its samples scatter.

FASTER and SLOWER mean better and worse for every metric, memory and nDCG included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from maxsim_bench.report.compare.sources import Measured
from maxsim_bench.report.compare.statistics import FEWEST, Effect, independent_effect, samples_needed
from maxsim_bench.report.compare.thresholds import Threshold

Decision = Literal["SAME", "FASTER", "SLOWER", "UNDECIDED"]
SAME_MEASUREMENT = "the same measurement"  # the reason of what was not measured again
CLOCK_MOVED = 0.01  # share by which mean SM clocks may differ before a difference must be confirmed in cycles


@dataclass(frozen=True)
class Decided:
    """One decision.

    Attributes:
        base, new: the values of the metric (a median, where there are samples).
        effect: ratio new / base with interval and test; None where the metric does not scatter.
        q_value: p-value adjusted over the whole comparison.
        change: difference in percent of the base, or absolute where `threshold` is.
        reason: which rule decided.
        needed: samples a side that would settle an UNDECIDED, None where unknown.
    """

    subject: str
    label: str
    backend: str
    metric: str
    decision: Decision
    reason: str
    base: float | None
    new: float | None
    threshold: str
    effect: Effect | None = None
    q_value: float = math.nan
    needed: int | None = None


_RAW: Mapping[str, Literal["samples", "ratios"]] = {"samples": "samples", "ratios": "ratios"}  # test → what it reads


def same_measurement(base: Measured, new: Measured, threshold: Threshold) -> bool:
    """Whether both runs hold one row that nobody measured again: equal in version, time, value and every raw number.

    Without a time of measuring, equal raw times are what tells. A value alone tells nothing: two runs may reach one.
    """
    raw = ("samples", *((_RAW[threshold.test],) if threshold.test in _RAW else ()))
    return (
        (base.measured_at is not None or base.samples is not None)
        and (base.version, base.measured_at) == (new.version, new.measured_at)
        and base.values[threshold.metric] == new.values[threshold.metric]
        and all(getattr(base, field) == getattr(new, field) for field in raw)
    )


def effect_of(base: Measured, new: Measured, threshold: Threshold, confidence: float) -> Effect | None:
    """The effect that the threshold's test sees, None where it needs samples that were not kept."""
    field = _RAW.get(threshold.test)
    if field is None:
        return None
    before, after = getattr(base, field), getattr(new, field)
    if before is None or after is None or min(len(before), len(after)) < 2:
        return None
    return independent_effect(before, after, confidence=confidence)


def decide_sampled(
    effect: Effect, q_value: float, threshold: Threshold, rate: float, cycles: float | None
) -> tuple[Decision, str]:
    """By the rules above. `cycles`: the ratio in clock cycles where clocks moved, else None."""
    margin = threshold.margin
    low, high = 1 - margin, 1 + margin
    if not effect.trusted:
        return "UNDECIDED", f"fewer than {FEWEST} samples, of which no interval holds what it says"
    if low <= effect.low and effect.high <= high:
        return "SAME", "the interval lies within the threshold"
    found = q_value <= rate and not effect.low <= 1 <= effect.high
    if not found:
        return "UNDECIDED", "the interval is wider than the threshold, and no difference is established"
    if low <= effect.ratio <= high:
        return "UNDECIDED", "a difference is established, but whether it exceeds the threshold is not"
    if cycles is not None and low <= cycles <= high:
        return "UNDECIDED", "clocks moved, and in clock cycles it lies within the threshold"
    better = (effect.ratio < 1) == (threshold.better == "lower")
    return ("FASTER" if better else "SLOWER"), "established, and beyond the threshold"


def decide_exact(base: float, new: float, threshold: Threshold) -> tuple[Decision, str]:
    """Two numbers that do not scatter: beyond every part of the threshold, or not."""
    before, after = (abs(base), abs(new)) if threshold.better == "nearer_zero" else (base, new)
    change = after - before
    beyond_absolute = threshold.absolute is None or abs(change) > threshold.absolute
    beyond_percent = threshold.percent is None or abs(change) > threshold.margin * abs(before)
    if not (beyond_absolute and beyond_percent):
        return "SAME", "within the threshold"
    better = (change > 0) == (threshold.better == "higher")
    return ("FASTER" if better else "SLOWER"), "beyond the threshold"


def cycles_ratio(effect: Effect, base: Measured, new: Measured, threshold: Threshold) -> float | None:
    """The ratio in clock cycles where mean clocks differ by more than 1 %; a ratio to a baseline has none."""
    if threshold.test != "samples" or not base.clock or not new.clock:
        return None
    moved = new.clock / base.clock
    return effect.ratio * moved if abs(moved - 1) > CLOCK_MOVED else None


def host_moved(base: Measured, new: Measured, threshold: Threshold, limit_percent: float | None) -> str | None:
    """Why a ratio to the baseline says nothing, None where it does: the baseline's own time moved with the host."""
    before, after = base.host_baseline_ms, new.host_baseline_ms
    if threshold.test != "ratios" or limit_percent is None or before is None or after is None:
        return None
    moved = 100 * (after / before - 1)
    if abs(moved) <= limit_percent:
        return None
    return (
        f"the host moved: the baseline took {abs(moved):.1f} % {'more' if moved > 0 else 'less'} time, beyond "
        f"{limit_percent:g} %, and dispatch is another share of every backend's call"
    )


def described(threshold: Threshold) -> str:
    """The threshold for a reader."""
    parts = [f"{threshold.percent:g} %"] if threshold.percent is not None else []
    parts += [f"{threshold.absolute:g}"] if threshold.absolute is not None else []
    return " and ".join(parts)


def needed_for(decision: Decision, effect: Effect | None, threshold: Threshold) -> int | None:
    """How many samples would settle an UNDECIDED."""
    return samples_needed(effect, threshold.margin) if decision == "UNDECIDED" and effect is not None else None
