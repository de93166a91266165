"""Ratios of two backends on one cell from the rounds that both were timed in: what drifts falls on both alike.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import common_rounds
from maxsim_bench.report.compare.statistics import Effect, paired_effect
from maxsim_bench.report.load import Results


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
