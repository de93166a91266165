"""Results folders as the report reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples, samples_path
from maxsim_bench.record.store import Store
from maxsim_bench.report.load import ReportError, csv_files, load, newest


def test_committed_results_are_read_without_this_machines_own(tmp_path: Path, made: Any) -> None:
    made.written(tmp_path / "results", made.sweep([made.cell()], ["eager", "fused"]))
    Store(tmp_path / "results" / "local" / "forward.csv").append(made.sweep([made.cell(B=7)], ["fused"]))
    assert set(load([tmp_path / "results"]).frame["B"]) == {1000.0}
    both = load([tmp_path / "results", tmp_path / "results" / "local"])
    assert set(both.frame["source"]) == {"h200/forward.csv", "local/forward.csv"}


def test_files_beside_the_rows_are_no_rows(tmp_path: Path, made: Any) -> None:
    made.written(tmp_path, made.sweep([made.cell()], ["fused"]))
    (tmp_path / "h200" / "fidelity").mkdir()
    (tmp_path / "h200" / "fidelity" / "scifact-0123.csv").write_text("query,reference\n")
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "x.csv").write_text("no rows\n")
    assert [p.name for p in csv_files(tmp_path)] == ["forward.csv"]
    assert "h200/fidelity/scifact-0123.csv" in load([tmp_path]).paths


def test_of_several_versions_the_newest_measurement_counts(made: Any) -> None:
    old = made.modelled(made.cell(), "fused")
    new = old.model_copy(update={"backend_version": "2.0", "latency_ms": 1.0, "measured_at": "2027-01-01T00:00:00Z"})
    assert newest([(new, "a"), (old, "b")]) == [(new, "a")]
    assert newest([(old, "b"), (new, "a")]) == [(new, "a")]


def test_what_was_not_measured_is_nan_and_numbers_are_floats(made: Any) -> None:
    row = Row(
        cell=made.cell(chunk=None), backend="eager", backend_version="1", gpu="x", status="oom", error="no memory"
    )
    frame = made.results([row]).frame
    assert math.isnan(frame.at[0, "latency_ms"])
    assert math.isnan(frame.at[0, "chunk"])
    assert frame["B"].dtype == "float64"
    assert frame.at[0, "device"] == "h200"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nowhere: no such results"):
        load([tmp_path / "nowhere"])


def test_an_empty_folder_gives_an_empty_report(tmp_path: Path) -> None:
    results = load([tmp_path])
    assert results.rows == ()
    assert list(results.frame["B"]) == []


def _cut_row(csv: Path) -> None:
    csv.write_bytes(csv.read_bytes()[:-5])


def _cut_header(csv: Path) -> None:
    csv.write_bytes(csv.read_bytes()[:5])


def _empty(csv: Path) -> None:
    csv.write_bytes(b"")


def _no_samples(csv: Path) -> None:
    samples_path(csv).unlink()


def _cut_samples(csv: Path) -> None:
    samples_path(csv).write_bytes(samples_path(csv).read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "rows", "told"),
    [
        (_cut_row, 1, "h200/forward.csv: the last line is cut; 1 rows read"),
        (_cut_header, 0, "h200/forward.csv: no header: not read"),
        (_empty, 0, "h200/forward.csv: no header: not read"),
        (_no_samples, 2, "samples of h200/forward.csv are missing: no paired ratios"),
        (_cut_samples, 2, "samples of h200/forward.csv are cut: 2 of 2 timed rows have no paired ratios"),
    ],
)
def test_what_was_lost_of_a_file_is_told(
    tmp_path: Path, made: Any, caplog: pytest.LogCaptureFixture, damage: Any, rows: int, told: str
) -> None:
    root = made.written(tmp_path / "results", made.sweep([made.cell()], ["eager", "fused"]))
    assert load([root]).warnings == ()
    damage(root / "h200" / "forward.csv")
    results = load([root])
    assert len(results.rows) == rows
    assert results.warnings == (told,)
    assert caplog.messages == [told]


def _changed(field: str, factor: float) -> Any:
    def change(csv: Path, row: Row) -> None:
        stored = next(one for one in Store(csv).rows() if one.key == row.key)
        Store(csv).replace([stored.model_copy(update={field: factor * getattr(stored, field)})])

    return change


def _other_samples(csv: Path, row: Row) -> None:
    append_samples(csv, {row.key: {"ms": [1.0, 2.0, 3.0], "round": [0, 1, 2]}})


def _no_sample(csv: Path, row: Row) -> None:
    append_samples(csv, {row.key: {"ms": [], "round": []}})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_changed("latency_ms", 1.001), ", but the median of its samples is "),
        (_changed("latency_p20_ms", 0.9), ", but the 20 % quantile of its samples is "),
        (_changed("latency_p80_ms", 1.1), ", but the 80 % quantile of its samples is "),
        (_changed("speedup", 2.0), ", but the median of its 40 paired ratios is "),
        (_other_samples, "but the median of its samples is 2.0; latency_p20_ms is "),
        (_no_sample, "but of its samples there is none "),
    ],
)
def test_a_row_that_its_own_samples_contradict_is_told_with_what_is_wrong(
    tmp_path: Path, made: Any, caplog: pytest.LogCaptureFixture, change: Any, told: str
) -> None:
    rows = made.sweep([made.cell()], ["eager", "fused"])
    root = made.written(tmp_path / "results", rows)
    assert load([root]).contradictions == ()
    change(root / "h200" / "forward.csv", rows[1])
    results = load([root])
    (sentence,) = results.contradictions
    assert sentence.startswith("h200/forward.csv: ")
    assert told in sentence
    assert rows[1].key in sentence
    assert results.warnings == results.contradictions
    assert caplog.messages == [sentence]


def test_samples_that_no_timer_gives_are_refused_with_file_and_row(tmp_path: Path, made: Any) -> None:
    """The report pairs them by round, as `compare` does."""
    rows = made.sweep([made.cell()], ["eager", "fused"])
    root = made.written(tmp_path / "results", rows)
    append_samples(root / "h200" / "forward.csv", {rows[0].key: {"ms": [1.0, 2.0], "round": [0]}})
    with pytest.raises(
        ReportError, match=rf"forward\.samples\.jsonl\.gz: 2 samples in 1 rounds of {rows[0].key}\. Res"
    ):
        load([root]).samples("h200/forward.csv")


@pytest.mark.parametrize("content", [b"", b"x\n1\n", b"query,reference,fused\nq,1.0,x\n", b"query,reference\n\xff,1\n"])
def test_a_file_of_queries_that_is_damaged_is_named(tmp_path: Path, made: Any, content: bytes) -> None:
    rows = made.sweep([made.cell()], ["fused"])
    root = made.written(tmp_path / "results", rows)
    side = root / "h200" / "fidelity" / f"x-{rows[0].cell.hash()}.csv"
    side.parent.mkdir()
    side.write_bytes(content)
    with pytest.raises(ReportError, match=rf"{side.name}: no table of queries: .*Restore the file"):
        load([root]).per_query(rows[0])
