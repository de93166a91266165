"""Self-tests and repeated sweeps in the report: from what lies beside a card's rows to a table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.report.compare import Thresholds, rate, read_thresholds
from maxsim_bench.report.compare.audit import WANTED, Power, SelfTest, Try, Way, audited, read_selftest, read_tries
from maxsim_bench.report.elements.audits import audit_tables
from maxsim_bench.report.load import ReportError, load

THRESHOLDS = Path(__file__).parents[3] / "experiments" / "compare" / "thresholds.toml"


@pytest.fixture(scope="module")
def thresholds() -> Thresholds:
    return read_thresholds(THRESHOLDS)


@pytest.fixture
def root(tmp_path: Path, made: Any, rows: list[Row]) -> Path:
    return Path(made.written(tmp_path / "results", rows))


@pytest.fixture
def rows(made: Any) -> list[Row]:
    return list(made.sweep([made.cell(B=B) for B in (1000, 10_000)], ["eager", "fused"]))


def selftest(alarms: int = 1, gated: bool = True) -> SelfTest:
    power = tuple(
        Power(percent=p, reached_percent=p, found=rate(400, 400), wanted=w) for p, w in WANTED.items() if p > 2
    )
    way = Way(name="interleaved", margin_percent=1.0, false_alarms=rate(alarms, 400), undecided=3, power=power)
    return SelfTest(
        key="h200", gpu="NVIDIA H200", measured_at="2026-01-01T00:00:00+00:00", revision="abc", environment_id="e",
        budget={"seconds": 0.3}, false_discovery_rate=0.01, cells=("Nq=1",), ways=(way,), left_out=(), gated=gated,
        seconds=100.0,
    )  # fmt: skip


def tries(noise: float, drift: float = 0.0, count: int = 40) -> list[Try]:
    """Made-up tries: what a session shares (drift) falls on all its builds, noise on each call."""
    random = np.random.default_rng(0)
    found = []
    for number in range(count):
        level = random.lognormal(0, drift)
        factors = {"base": 1.0, "again": 1.0, "2": 1.02, "5": 1.05, "10": 1.1}
        times = {name: (level * f * random.lognormal(0, noise, 30)).tolist() for name, f in factors.items()}
        found.append(Try("one cell", number, times))
    return found


def test_quiet_builds_raise_no_alarm_in_any_way_and_slow_downs_beyond_the_margin_are_found(
    thresholds: Thresholds,
) -> None:
    interleaved, times, ratios = audited(tries(noise=0.005), thresholds)
    assert [(w.name, w.margin_percent) for w in (interleaved, times, ratios)] == [
        ("interleaved", 1.0), ("times of two sessions", 2.0), ("ratios of two sessions", 3.0),
    ]  # fmt: skip
    assert [(w.false_alarms.hits, w.false_alarms.tries) for w in (interleaved, times, ratios)] == [
        (0, 40), (0, 20), (0, 20),
    ]  # fmt: skip
    assert [p.found.rate for p in interleaved.power] == [1.0, 1.0, 1.0]
    for way in (times, ratios):
        assert [p.found.rate for p in way.power[1:]] == [1.0, 1.0]
    assert [p.reached_percent for p in ratios.power] == pytest.approx([2, 5, 10], abs=0.3)
    assert [p.wanted for p in interleaved.power] == [0.5, 0.95, 0.99]
    assert [p.wanted for p in times.power] == [None, None, None]


def test_drift_between_sessions_alarms_times_but_neither_turns_nor_ratios(thresholds: Thresholds) -> None:
    """Why absolute times are no verdict on a machine that drifts."""
    interleaved, times, ratios = audited(tries(noise=0.005, drift=0.05), thresholds)
    assert interleaved.false_alarms.hits == ratios.false_alarms.hits == 0
    assert times.false_alarms.hits > 5


def test_a_record_and_its_raw_times_are_read_as_written(tmp_path: Path) -> None:
    kept = tries(noise=0.01, count=2)
    path = selftest().write(tmp_path, kept)
    assert read_selftest(path) == selftest()
    assert read_tries(tmp_path) == kept
    selftest().write(tmp_path, kept[:1])
    assert read_tries(tmp_path) == kept[:1], "a second self-test replaces the first"
    path.write_text(path.read_text()[:40])
    with pytest.raises(ReportError, match=r"selftest\.json: no record of a self-test"):
        read_selftest(path)


def test_a_self_test_beside_the_rows_is_a_table_with_its_verdict(root: Path) -> None:
    selftest().write(root / "h200", [])
    (table,) = audit_tables(load([root]), THRESHOLDS)
    assert table.sources == ("h200/selftest.json",)
    (cells,) = table.cells()
    assert cells == [
        "H200", "interleaved", "1 %", "1 of 400", "3 of 400", "1.38 %", "too small to inject",
        "100.0 % of 400 (measured 5.0 %)", "100.0 % of 400 (measured 10.0 %)",
    ]  # fmt: skip
    assert table.notes == ("NVIDIA H200: a slow-down of 2 % could not be injected into any cell.",)
    selftest(gated=False).write(root / "h200", [])
    assert next(audit_tables(load([root]), THRESHOLDS)).notes == ()


Repeated = Callable[..., None]


@pytest.fixture
def repeated(tmp_path: Path, root: Path, made: Any) -> Repeated:
    """Lays rows down as one run of `repeat/`, each with noise of its own."""

    def lay(number: str, rows: Sequence[Row], **changed: Any) -> None:
        seed = sum(number.encode())
        run = made.written(tmp_path / "runs" / number, [row.model_copy(update=changed) for row in rows], seed=seed)
        shutil.copytree(run / "h200", root / "h200" / "repeat" / number)

    return lay


def test_every_two_successive_runs_of_a_sweep_are_a_line_and_none_of_them_is_a_row_of_the_report(
    root: Path, rows: list[Row], repeated: Repeated
) -> None:
    """Run 2 finds one of two of ours 10 % slower; run 10, after it and not after run 1, is of another environment."""
    ours = [row for row in rows if row.backend == "fused"]
    late = [r.model_copy(update={"latency_ms": 1.1 * (r.latency_ms or 0)}) if r.cell.B == 1000 else r for r in ours]
    repeated("1", rows, measured_at="2026-01-02T03:04:05+00:00")
    repeated("10", rows, measured_at="2026-02-01T00:00:59+00:00", environment_id="other")
    repeated("2", [*late, *(r for r in rows if r.backend == "eager")], measured_at="2026-01-02T03:09:00+00:00")
    results = load([root])
    assert len(results.rows) == len(rows)
    (table,) = audit_tables(results, THRESHOLDS)
    assert table.sources == tuple(f"h200/repeat/{n}/forward.csv" for n in (1, 10, 2))
    second, tenth = table.cells()
    assert second[:6] == ["H200", "forward", "1, 2", "2026-01-02 03:04, 2026-01-02 03:09", "the same", "the same"]
    assert (second[6], second[8]) == ("3 of 4", "1 / 0 / 0 / 3")
    assert float(second[7].removesuffix(" %")) == pytest.approx(10, abs=1)
    assert (second[9], second[11]) == ("1 of 2", "1 / 0 / 0 / 1")
    assert tenth[2:6] == ["2, 10", "2026-01-02 03:09, 2026-02-01 00:00", "another", "the same"]
    assert tenth[6:9] == ["", "", ""], "times of two environments are not compared"
    assert (tenth[9], tenth[11]) == ("1 of 2", "0 / 0 / 1 / 1")


def test_a_backend_of_another_source_is_named_and_a_part_is_compared_with_the_whole(
    rows: list[Row], root: Path, repeated: Repeated
) -> None:
    repeated("1", rows)
    repeated("2", [row for row in rows if row.backend == "fused"], backend_version="2.0")
    ((line,)) = next(audit_tables(load([root]), THRESHOLDS)).cells()
    assert line[5] == "fused (ours) changed"
    assert line[6] == "2 of 2"
    assert line[9] == "", "without the baseline there is no ratio"


def test_one_run_is_no_repetition_and_a_run_without_a_number_is_refused(
    rows: list[Row], root: Path, repeated: Repeated
) -> None:
    repeated("1", rows)
    assert list(audit_tables(load([root]), THRESHOLDS)) == []
    repeated("again", rows)
    with pytest.raises(ReportError, match=r"repeat/again/forward\.csv: runs in repeat/ are numbered"):
        list(audit_tables(load([root]), THRESHOLDS))


def test_without_either_there_is_no_table(root: Path) -> None:
    assert list(audit_tables(load([root]), THRESHOLDS)) == []


def test_the_record_holds_nothing_but_json(tmp_path: Path) -> None:
    path = selftest().write(tmp_path, [])
    told = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told["ways"][0]["false_alarms"]["hits"] == 1
