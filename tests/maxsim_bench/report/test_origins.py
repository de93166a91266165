"""From a row to where it comes from: the commit is its session's, not that of another session under the same id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maxsim_bench.record.environments import add_environments
from maxsim_bench.record.row import Row
from maxsim_bench.report.claims.ledger import Ledger
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.load import Results, load
from maxsim_bench.report.origins import origins
from maxsim_bench.report.page import environments

EARLIER = {
    "gpu": "a",
    "captured_at": "2026-01-01T10:00:00+00:00",
    "git_commit": "1" * 40,
    "ceilings": {"read_gbs": 4500},
}
LATER = {**EARLIER, "captured_at": "2026-01-01T20:00:00+00:00", "git_commit": "2" * 40, "ceilings": "unknown: crashed"}


def measured(made: Any, folder: Path) -> Results:
    """Two rows under one environment id, one of each session."""
    rows: list[Row] = []
    for backend, hour in (("eager", 11), ("fused", 21)):
        at = f"2026-01-01T{hour}:00:00+00:00"
        rows.append(made.modelled(made.cell(), backend).model_copy(update={"environment_id": "e", "measured_at": at}))
    made.written(folder, rows)
    add_environments(folder / "h200", {"e": EARLIER})
    add_environments(folder / "h200", {"e": LATER})
    return load([folder])


def test_a_row_is_shown_with_the_commit_of_its_own_session(tmp_path: Path, made: Any) -> None:
    ledger = Ledger(paper=None, entries=())  # type: ignore[arg-type]  # no claim leads to these rows
    found = origins(measured(made, tmp_path), ledger, Declared({}), tmp_path)
    (page,) = found.pages.values()
    shown = {line["row"].backend: line["commit"] for cell in page["cells"] for line in cell["rows"]}
    assert shown == {"eager": "1" * 12, "fused": "2" * 12}


def test_an_environment_counts_the_rows_of_each_session(tmp_path: Path, made: Any) -> None:
    (one,) = [e for e in environments(measured(made, tmp_path)) if e["id"] == "e"]
    assert [(s["began"][11:13], s["rows"], s["commit"]) for s in one["sessions"]] == [
        ("10", "1", "1" * 12),
        ("20", "1", "2" * 12),
    ]
    assert [s["reached"] for s in one["sessions"]] == ["read [GB/s] 4500", "not measured"]


def test_a_session_tells_how_fast_copies_from_host_memory_were(tmp_path: Path, made: Any) -> None:
    results = measured(made, tmp_path)
    reached = {"read_gbs": 4500, "host_copy_gbs": 55.25}
    results.environments["e"]["sessions"][0]["ceilings"] = reached
    (one,) = [e for e in environments(results) if e["id"] == "e"]
    assert one["sessions"][0]["reached"] == "read [GB/s] 4500, copy from host memory [GB/s] 55.25"


def test_sessions_that_are_alike_are_one_line_with_the_rows_of_all(tmp_path: Path, made: Any) -> None:
    """Every sweep of a command keeps one; what differs in anything that is shown stays apart."""
    results = measured(made, tmp_path)
    first, other = results.environments["e"]["sessions"]
    again = {**first, "captured_at": other["captured_at"]}
    results.environments["e"]["sessions"][1] = again
    (one,) = [e for e in environments(results) if e["id"] == "e"]
    (line,) = one["sessions"]
    assert (line["began"], line["rows"], line["commit"]) == (
        f"{first['captured_at']} and 1 more until {other['captured_at']}", "2", "1" * 12,
    )  # fmt: skip
    for apart in ({"git_commit": "2" * 40}, {"ceilings": {"read_gbs": 4400}}, {"packages": {"numpy": "2"}}):
        results.environments["e"]["sessions"][1] = {**again, **apart}
        (one,) = [e for e in environments(results) if e["id"] == "e"]
        assert [line["rows"] for line in one["sessions"]] == ["1", "1"], apart
