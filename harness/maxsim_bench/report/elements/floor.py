"""What nothing but the unavoidable work costs: ours beside kernels that only read its operands, and beside none.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from maxsim_bench.record.row import Row
from maxsim_bench.report import names
from maxsim_bench.report.elements import element
from maxsim_bench.report.load import Results
from maxsim_bench.report.paired import Pairs, timed_together
from maxsim_bench.report.tables import CELL, Column, Table

EXPERIMENT, OURS = "forward_floor", "fused"


@element
def floor(results: Results) -> Iterator[Table]:
    """One line a cell that ours was timed on: the faster reader, the empty launch, ours, and the reader's share."""
    results = timed_together(results.experiment(EXPERIMENT), OURS, names.READERS)
    rows: dict[tuple[str, str], Row] = {(row.cell.hash(), row.backend): row for row in results.rows}
    pairs = Pairs(results)
    lines = [
        _line(rows, str(at), pairs)
        for at in dict.fromkeys(results.frame["cell_hash"])
        if (str(at), OURS) in rows and rows[str(at), OURS].status == "ok"
    ]
    if not lines:
        return
    yield Table(
        f"{EXPERIMENT}/floor", "What reading the operands costs, and what ours takes beyond it", _COLUMNS,
        pd.DataFrame(lines).sort_values("share", kind="stable", na_position="last").reset_index(drop=True),
        tuple(sorted(set(results.frame["source"]))),
        "Reading only: the faster of two kernels that read every byte of the queries and documents once and write one "
        "sum a program, checked against the sums of the operands; they score nothing, and one launch of them holds all "
        "that an event pair or the host's clock charges anybody. Empty launch: a kernel that returns at once. All in "
        "one interleaved run under one timer; on a processor every policy is the wall clock, and nothing is launched. "
        "Of the ceiling: the rate at which the reader read, as a share of the best streaming read of the session. "
        "Share: the reader's time over ours, the median over the rounds that both were in with a 95 % bootstrap "
        "interval, and so not the quotient of the two times beside it; without an interval, where the two took no "
        "turns, the quotient of two medians. Beyond 100 % neither reader was a floor. Worst first.",
    )  # fmt: skip


_COLUMNS = [
    Column("device", "GPU", names.card, right=False),
    Column("policy", "timed", right=False),
    Column("B", "B", names.count),
    Column("Lq", "Lq"),
    Column("Ld", "Ld", right=False),
    Column("d", "d"),
    Column("read_ms", "reading only [ms]"),
    Column("reader", "by", names.backend, right=False),
    Column("reader_percent", "reading, of the ceiling", lambda v: "" if pd.isna(v) else f"{v:.1f} %"),
    Column("empty_ms", "empty launch [ms]"),
    Column("ours_ms", "fused (ours) [ms]"),
    Column("share", "reading, of ours", lambda v: "" if pd.isna(v) else f"{100 * v:.1f} %"),
    Column("interval", "95 % interval", right=False),
    Column("beyond_us", "ours beyond reading [µs]"),
    CELL,
]


def _line(rows: dict[tuple[str, str], Row], at: str, pairs: Pairs) -> dict[str, Any]:
    """One cell; a number or a word that no row gives stays empty."""
    own = rows[at, OURS]
    assert own.latency_ms is not None, "a row that is ok has a time"
    cell, times = own.cell, {name: _time(rows.get((at, name))) for name in names.NO_SCORERS}
    ragged = cell.layout == "packed"
    line: dict[str, Any] = {
        "device": cell.gpu, "policy": names.POLICIES.get(cell.timing_policy or "", cell.timing_policy), "B": cell.B,
        "Lq": cell.Lq, "Ld": f"{cell.length_distribution} (packed)" if ragged else str(cell.Ld), "d": cell.d,
        "read_ms": float("nan"), "reader": "", "reader_percent": float("nan"), "empty_ms": times[names.EMPTY],
        "ours_ms": own.latency_ms,
        "share": float("nan"), "interval": "", "beyond_us": float("nan"), "cell_hash": at,
    }  # fmt: skip
    readers = {name: times[name] for name in names.READERS if not pd.isna(times[name])}
    if not readers:
        return line
    reader = min(readers, key=lambda name: readers[name])
    line |= {
        "read_ms": readers[reader], "reader": reader, "reader_percent": rows[at, reader].percent_of_ceiling,
        "share": readers[reader] / own.latency_ms,
        "beyond_us": 1e3 * (own.latency_ms - readers[reader]),
    }  # fmt: skip
    effect = pairs.ratio(rows[at, reader], own)
    if effect is not None:
        line["share"] = effect.ratio
        line["interval"] = f"{100 * effect.low:.1f} to {100 * effect.high:.1f} %" if effect.trusted else ""
    return line


def _time(row: Row | None) -> float:
    """Median milliseconds; NaN without a row that has one."""
    return float("nan") if row is None or row.latency_ms is None else row.latency_ms
