"""Ratios of two backends on one cell from the rounds that both were timed in: what drifts falls on both alike.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import common_rounds
from maxsim_bench.report.compare.statistics import Effect, paired_effect
from maxsim_bench.report.load import Results, results_of


@dataclass
class Pairs:
    """Paired ratios of a report's rows; each file of samples is read once."""

    results: Results
    _samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    _sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = self.results.frame["source"].to_list()
        self._sources = {row.key: source for row, source in zip(self.results.rows, sources, strict=True)}

    def ratio(self, row: Row, base: Row) -> Effect | None:
        """Time of `row` over that of `base`: the median over rounds with its 95 % bootstrap interval.

        None where they were not timed against each other, or no samples were kept that are positive and finite.
        """
        source = self._sources[base.key]
        if row.cell != base.cell or self._sources[row.key] != source or source not in self.results.paths:
            return None
        if source not in self._samples:
            self._samples[source] = self.results.samples(source)
        kept = self._samples[source]
        times, base_times = common_rounds(kept.get(row.key), kept.get(base.key))
        if len(times) < 2 or not all(0 < ms < math.inf for ms in times + base_times):
            return None
        return paired_effect(base_times, times)


def timed_together(results: Results, subject: str, others: Collection[str]) -> Results:
    """`results` in which a cell's row of `subject` is the newest that took turns with a row of one of `others`.

    Where `subject` was measured again alone, its newest row and theirs are of two sessions, perhaps of two machines,
    and a table that compares them shows the earlier row instead. A cell where none took turns with any keeps its rows.
    """
    sources = results.frame["source"].to_list()
    samples = {source: results.samples(source) for source in set(sources) if source in results.paths}
    theirs: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.backend in others:
            theirs.setdefault(row.cell.hash(), []).append(row)

    def took_turns(row: Row, source: str) -> bool:
        kept = samples.get(source, {})
        return any(
            len(common_rounds(kept.get(row.key), kept.get(other.key))[0]) >= 2
            for other in theirs.get(row.cell.hash(), [])
        )

    earlier: dict[str, list[Row]] = {}
    for row, _ in sorted(results.earlier, key=lambda pair: pair[0].measured_at or "", reverse=True):
        if row.backend == subject:
            earlier.setdefault(row.cell.hash(), []).append(row)
    rows = [
        row
        if row.backend != subject or took_turns(row, source)
        else next((r for r in earlier.get(row.cell.hash(), []) if took_turns(r, source)), row)
        for row, source in zip(results.rows, sources, strict=True)
    ]
    shown = results_of(zip(rows, sources, strict=True), results.paths, results.environments)
    return replace(shown, earlier=results.earlier, warnings=results.warnings)
