"""The table of what no scorer can avoid: the faster reader, paired with ours, worst first; and no rival of anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.report.elements import artefacts
from maxsim_bench.report.elements.floor import floor
from maxsim_bench.report.load import load
from maxsim_bench.report.tables import Table


def timed(made: Any, at: Any, **times: float) -> list[Row]:
    """Rows of one cell with these times in ms."""
    pattern: Row = made.modelled(at, "fused")
    return [
        pattern.model_copy(update={"backend": name, "latency_ms": ms, "latency_p20_ms": ms, "latency_p80_ms": ms})
        for name, ms in times.items()
    ]


@pytest.fixture
def rows(made: Any) -> list[Row]:
    near, far, packed = (
        made.cell("forward_floor", variant="against=floor", B=10_000),
        made.cell("forward_floor", variant="against=floor", B=1000, timing_policy="host"),
        made.cell("forward_floor", variant="against=floor", layout="packed", length_distribution="uniform:20:512"),
    )
    return [
        *timed(made, near, fused=1.0, read_streaming=0.9, read_persistent=0.95, empty_launch=0.002),
        *timed(made, far, fused=0.05, read_streaming=0.04, read_persistent=0.02, empty_launch=0.01),
        *timed(made, packed, fused=0.1, empty_launch=0.002),
    ]


def only(results: Any) -> Table:
    (table,) = floor(results)
    return table


def test_the_faster_reader_counts_and_the_worst_cell_comes_first(made: Any, rows: list[Row]) -> None:
    frame = only(made.results(rows)).frame
    assert list(frame["B"]) == [1000, 10_000, 1000]
    assert list(frame["reader"]) == ["read_persistent", "read_streaming", ""]
    assert list(frame["share"][:2]) == pytest.approx([0.4, 0.9])
    assert list(frame["beyond_us"][:2]) == pytest.approx([30.0, 100.0])
    assert list(frame["empty_ms"]) == [0.01, 0.002, 0.002]
    readers = {(r.cell.B, r.backend): r.percent_of_ceiling for r in rows}
    assert list(frame["reader_percent"][:2]) == [readers[1000, "read_persistent"], readers[10_000, "read_streaming"]]


def test_a_cell_without_a_reader_has_empty_places_and_one_without_ours_no_line(made: Any, rows: list[Row]) -> None:
    table = only(made.results([row for row in rows if (row.backend, row.cell.B) != ("fused", 10_000)]))
    assert len(table.frame) == 2
    line = dict(zip([c.key for c in table.columns], table.cells()[-1], strict=True))
    assert line["Ld"] == "uniform:20:512 (packed)"
    assert [line[key] for key in ("read_ms", "reader", "reader_percent", "share")] == [""] * 4
    assert line["ours_ms"] == "0.100"


def test_shares_are_of_rounds_that_both_were_in(made: Any, rows: list[Row], tmp_path: Path) -> None:
    """The clock drifts to half its rate, on which both agree; the reader goes on alone for as long again."""
    folder = made.written(tmp_path / "results", rows)
    drift = np.repeat([1.0, 2.0], 20)
    near = {row.backend: row for row in rows if row.cell.B == 10_000}
    kept = {
        near["fused"].key: {"ms": drift.tolist(), "round": list(range(40))},
        near["read_streaming"].key: {"ms": [*(0.8 * drift), *[9.0] * 40], "round": list(range(80))},
    }
    append_samples(folder / "h200" / "forward_floor.csv", kept)
    frame = only(load([folder])).frame.set_index("B")
    assert frame.loc[10_000, "share"] == pytest.approx(0.8)
    assert frame.loc[10_000, "interval"] == "80.0 to 80.0 %"


def test_without_rows_there_is_no_table(made: Any) -> None:
    assert list(floor(made.results(made.sweep([made.cell()], ["fused"])))) == []


def test_who_scores_nothing_beats_nobody(made: Any, rows: list[Row]) -> None:
    """Neither a loss of ours nor a cell that was compared."""
    others = made.sweep([made.cell()], ["eager", "fused"])
    table = next(a for a in artefacts(made.results([*rows, *others])) if a.name == "losses/slower")
    assert isinstance(table, Table)
    assert table.frame.empty
    assert "0 of 1 cells" in table.caption


def test_what_scores_nothing_has_times_and_memory_and_no_speed_up_nor_share_of_a_ceiling(
    made: Any, rows: list[Row]
) -> None:
    tables = {a.name: a for a in artefacts(made.results(rows)) if isinstance(a, Table)}
    shown = {key: {c.key for c in tables[f"forward_floor/{key}"].columns} for key in ("latency", "ceiling")}
    assert {"fused", "read_streaming", "empty_launch"} <= shown["latency"]
    assert "fused" in shown["ceiling"]
    assert not {"read_streaming", "read_persistent", "empty_launch"} & shown["ceiling"]
    assert "forward_floor/speedup" not in tables
