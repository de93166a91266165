"""Records of tracked runs, and what their series say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.report.compare import read_run
from maxsim_bench.report.history import (
    Tracked,
    find_steps,
    read_history,
    relative,
    series,
    tracked,
    write_tracked,
    write_trend,
)
from maxsim_bench.report.load import ReportError


def record(day: int, speedup: float, fingerprint: str = "f", latency: float = 1.0) -> Tracked:
    return Tracked(
        measured_at=f"2026-01-{day:02}T00:00:00Z", revision=f"{day:040x}", fingerprints=(fingerprint,),
        labels={"s": "fused (ours), forward"}, values={"s": {"speedup": speedup, "latency_ms": latency}},
    )  # fmt: skip


def test_a_run_becomes_one_small_record(tmp_path: Path, made: Any) -> None:
    rows = made.sweep([made.cell(), made.cell(B=100_000, Lq=1024, Ld=1024)], ["eager", "fused"])
    run = read_run(str(made.written(tmp_path / "results", rows)))
    one = tracked(run, measured_at="2026-01-02T03:04:05Z", revision="abc")
    assert len(one.values) == sum(row.status == "ok" for row in rows)
    path = write_tracked(one, tmp_path / "history")
    assert path.name == "2026-01-02T03-04-05Z-abc.json"
    assert read_history(tmp_path / "history") == [one]
    write_tracked(one.model_copy(update={"values": {}}), tmp_path / "history")
    assert read_history(tmp_path / "history") == [one], "a record that is there is left as it is"


def test_a_lost_speed_up_shows_as_a_step_at_its_revision() -> None:
    history = [record(day, 3.0 if day < 7 else 2.5) for day in range(1, 13)]
    found = list(find_steps(history, "speedup"))
    assert [(step.at, step.revision) for step in found] == [(6, history[6].revision)]
    assert found[0].percent == pytest.approx(100 * (2.5 / 3 - 1))


def test_absolute_times_of_other_machines_are_left_out() -> None:
    history = [record(1, 3, "old"), record(2, 3, "new"), record(3, 3, "new")]
    assert list(series(history, "latency_ms").columns) == [1, 2]
    assert list(series(history, "speedup").columns) == [0, 1, 2]


def test_series_are_shown_relative_to_their_beginning() -> None:
    table = relative(series([record(1, 4.0), record(2, 2.0)], "speedup"))
    assert table.loc["s"].to_list() == [1.0, 0.5]


def test_the_page_loads_nothing_and_names_the_steps(tmp_path: Path) -> None:
    for day in range(1, 13):
        write_tracked(record(day, 3.0 if day < 7 else 2.5), tmp_path / "history")
    html = write_trend(tmp_path / "history", tmp_path / "trend.html").read_text()
    assert "-16.7 %" in html
    assert "http" not in html
    assert html.count("data:image/png;base64,") == 2


def test_no_history_is_a_page_that_says_so(tmp_path: Path) -> None:
    html = write_trend(tmp_path / "history", tmp_path / "trend.html").read_text()
    assert "0 runs" in html
    assert "No series stepped" in html


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[:40], "Invalid JSON"),
        (lambda text: b"\xff" + text, "Invalid JSON"),
        (lambda text: text.replace(b"3.0", b"NaN"), "finite number"),
        (lambda text: text.replace(b'"s": "fused', b'"t": "fused'), "s has no label"),
    ],
)
def test_a_record_that_is_cut_off_or_damaged_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], told: str
) -> None:
    path = write_tracked(record(1, 3.0), tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ReportError, match=rf"{path.name}: no record of a run: .*{told}"):
        read_history(tmp_path)
