"""Rows that their own raw samples contradict: times, spread and speed-up of a CSV against what lies beside it.

Room: `record`. Imports nothing of other rooms. Quantiles and ratios are numpy's over the samples as they were kept,
which is how the timer and the maker of rows come by them; this room may not import theirs, so tests hold both equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeGuard

import numpy as np

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import common_rounds, in_one_company, misshapen

_ROUNDING = 1e-9  # of a number that two programs computed, relatively; what is written is written whole
_QUANTILES = {
    "latency_ms": (0.5, "median"), "latency_p20_ms": (0.2, "20 % quantile"), "latency_p80_ms": (0.8, "80 % quantile"),
}  # fmt: skip
# Rows of one measurement are made one after the other when all of it is timed, and times are kept to the second; to
# measure a cell again takes longer.
_TOGETHER_SECONDS = 2.0


def contradictions(rows: Iterable[Row], samples: Mapping[str, Any]) -> dict[str, str]:
    """Why rows of one CSV do not follow from the samples beside it, in words, by row key; nothing of those that do.

    Told are `latency_ms`, `latency_p20_ms` and `latency_p80_ms` that are not those quantiles of the row's samples, and
    a `speedup` that is not the median ratio over the rounds it has in common with its baseline. A speed-up is judged
    only by a baseline of the same measurement: where the baseline was measured again since, under the same key, the
    samples that the ratio was made of are gone, and nothing is told. Nor is it where no times were kept, or the record
    is `misshapen`, which is for those to refuse who compute with it.

    Args:
        rows: every row of the CSV: a baseline may be of a version that has a newer row.
        samples: row key → record, as `read_samples` returns them.
    """
    given = list(rows)
    by_subject: dict[tuple[str, str], list[Row]] = {}
    for row in given:
        by_subject.setdefault((row.cell.hash(), row.backend), []).append(row)
    found = {}
    for row in given:
        record = samples.get(row.key)
        if row.latency_ms is None or not _holds_times(record):
            continue
        bases = by_subject.get((row.cell.hash(), row.speedup_baseline or ""), [])
        told = [*_of_times(row, record), *_of_speedup(row, record, [(base, samples.get(base.key)) for base in bases])]
        if told:
            found[row.key] = "; ".join(told)
    return found


def _holds_times(record: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(record, Mapping) and "ms" in record and misshapen(record) is None


def _of_times(row: Row, record: Mapping[str, Any]) -> Iterator[str]:
    if not record["ms"]:
        yield f"latency_ms is {row.latency_ms!r}, but of its samples there is none"
        return
    given_all = _quantiles(record["ms"], [share for share, _ in _QUANTILES.values()])
    for (name, (_, called)), given in zip(_QUANTILES.items(), given_all, strict=True):
        written = getattr(row, name)
        if written is not None and not math.isclose(given, written, rel_tol=_ROUNDING):
            yield f"{name} is {written!r}, but the {called} of its samples is {given!r}"


def _of_speedup(row: Row, record: Mapping[str, Any], bases: Iterable[tuple[Row, Any]]) -> Iterator[str]:
    if row.speedup is None:
        return
    company = record.get("interleaved_with")
    if isinstance(company, list) and row.speedup_baseline not in company:
        yield f"speedup is over {row.speedup_baseline}, which took no turns with it"
        return
    for base, other in bases:
        if not _holds_times(other) or not _one_measurement(row, record, base, other):
            continue
        mine, theirs = common_rounds(record, other)
        if len(mine) < 2:
            yield f"speedup is {row.speedup!r}, but its samples and its baseline's have {len(mine)} rounds in common"
            continue
        given = _median_ratio(theirs, mine)
        if not math.isclose(given, row.speedup, rel_tol=_ROUNDING):
            yield f"speedup is {row.speedup!r}, but the median of its {len(mine)} paired ratios is {given!r}"


def _one_measurement(row: Row, record: Mapping[str, Any], base: Row, other: Mapping[str, Any]) -> bool:
    """Whether two rows of a cell were timed in turn: in one company, under the same readings, written together."""
    if not in_one_company(record, other):
        return False
    if row.measured_at is None or base.measured_at is None:
        return row.key == base.key
    one, two = datetime.fromisoformat(row.measured_at), datetime.fromisoformat(base.measured_at)
    if (one.tzinfo is None) != (two.tzinfo is None):
        return False
    return abs((one - two).total_seconds()) <= _TOGETHER_SECONDS


def _quantiles(times: list[float], shares: list[float]) -> list[float]:
    try:
        with np.errstate(invalid="ignore"):  # of an infinite time, which no row's is close to
            return [float(q) for q in np.quantile(np.asarray(times, dtype=np.float64), shares)]
    except OverflowError:  # an integer beyond every float
        return [math.inf] * len(shares)


def _median_ratio(numerator: list[float], denominator: list[float]) -> float:
    try:
        with np.errstate(all="ignore"):  # a time of zero gives no number, which no speed-up is close to
            return float(np.median(np.asarray(numerator, np.float64) / np.asarray(denominator, np.float64)))
    except OverflowError:
        return math.inf
