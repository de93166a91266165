"""Two runs against each other: SAME, FASTER, SLOWER or UNDECIDED for every cell, backend and metric; and their history.

Room: `report`. May import: record, declare. Statistics are scipy's; what counts as a difference is declared in
`experiments/compare/thresholds.toml`.
"""

from maxsim_bench.report.compare.compare import Agreement, Comparison, compare_results, compare_runs, decide_interleaved
from maxsim_bench.report.compare.decide import Decided, Decision
from maxsim_bench.report.compare.sources import CompareError, Run, Selection, read_run
from maxsim_bench.report.compare.statistics import Rate, rate
from maxsim_bench.report.compare.thresholds import Thresholds, read_thresholds

__all__ = [
    "Agreement",
    "CompareError",
    "Comparison",
    "Decided",
    "Decision",
    "Rate",
    "Run",
    "Selection",
    "Thresholds",
    "compare_results",
    "compare_runs",
    "decide_interleaved",
    "rate",
    "read_run",
    "read_thresholds",
]
