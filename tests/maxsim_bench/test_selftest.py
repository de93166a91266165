"""The audit of comparisons: it counts what it says, sees a slow-down that is there, and judges only a GPU."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxsim_bench import selftest as module
from maxsim_bench.cli import main
from maxsim_bench.declare.cell import Cell
from maxsim_bench.machine import Machine
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.report.compare import Thresholds, rate, read_thresholds
from maxsim_bench.report.compare.audit import (
    WANTED,
    Power,
    SelfTest,
    Try,
    Way,
    audited,
    read_selftest,
    read_tries,
)
from maxsim_bench.selftest import SelfTestError, selftest, selftest_lines

ROOT = Path(__file__).parents[2]
PROCESSOR = Machine("cpu", "cpu", "A processor", 1 << 30, 2)
CELL = Cell(
    experiment="tiny", gpu="cpu", op="forward", Nq=1, B=20, Lq=16, Ld=64, d=64, dtype="fp32", layout="dense",
    pairing="all", inputs="random", timing_policy="host",
)  # fmt: skip
BUDGET = TimingBudget(seconds=0.1, max_samples=200, warmup_seconds=0.02)


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else measures on this machine is none of these tests' business."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def thresholds() -> Thresholds:
    """As declared, but a tenth matters: the test machine is shared."""
    declared = read_thresholds(ROOT / "experiments" / "compare" / "thresholds.toml")
    return declared.model_copy(update={"interleaved_percent": 10.0})


def record(*, alarms: tuple[int, int] = (0, 300), found: int = 100, gated: bool = True) -> SelfTest:
    goals = tuple(
        Power(percent=p, reached_percent=p + 0.05, found=rate(found, 100), wanted=w) for p, w in WANTED.items()
    )
    told = (Power(percent=2.0, reached_percent=1.9, found=rate(12, 50), wanted=None),)
    return SelfTest(
        key="h200", gpu="NVIDIA H200", measured_at="2026-01-01T00:00:00+00:00", revision="abc", environment_id="e",
        budget={"seconds": 0.3}, false_discovery_rate=0.01, cells=("Nq=1 B=1000",), left_out=(), gated=gated,
        seconds=140.2,
        ways=(
            Way(name="interleaved", margin_percent=1.0, false_alarms=rate(*alarms), undecided=7, power=goals),
            Way(
                name="times of two sessions", margin_percent=2.0, false_alarms=rate(1, 50), undecided=3, power=told
            ),
        ),
    )  # fmt: skip


TRIES = [Try("Nq=1 B=1000", n, {"base": [1.0, 1.1], "again": [1.0, 1.2], "2": [1.1, 1.15]}) for n in range(2)]


def test_a_slow_down_of_a_half_is_found_and_the_same_build_is_not_always_an_alarm(thresholds: Thresholds) -> None:
    """A shared processor hides a slow-down or stretches it: one of three self-tests has to be undisturbed."""
    budget = TimingBudget(seconds=0.6, max_samples=400, warmup_seconds=0.02)
    for _ in range(3):
        done, tries = selftest(2, thresholds, machine=PROCESSOR, cells=[CELL], percents=(50.0,), budget=budget)
        interleaved = done.ways[0]
        (power,) = interleaved.power
        if power.found.hits == 2 and interleaved.false_alarms.hits == 0 and 15 < power.reached_percent < 120:
            break
    assert (power.found.hits, power.found.tries) == (2, 2)
    assert 15 < power.reached_percent < 120
    assert (interleaved.false_alarms.hits, interleaved.false_alarms.tries) == (0, 2)
    assert [way.false_alarms.tries for way in done.ways] == [2, 1, 1]
    assert done.cells == ("Nq=1 B=20 Lq=16 Ld=64 d=64 dtype=fp32",)
    assert [(one.number, set(one.times_ms)) for one in tries] == [
        (0, {"base", "again", "50"}),
        (1, {"base", "again", "50"}),
    ]


def test_time_that_is_up_ends_the_tries_and_too_few_are_refused(thresholds: Thresholds) -> None:
    with pytest.raises(SelfTestError, match=r"0\.001 seconds were enough for 0 tries only"):
        selftest(50, thresholds, machine=PROCESSOR, cells=[CELL], percents=(), budget=BUDGET, within_s=0.001)


def test_the_table_shows_rates_intervals_and_goals() -> None:
    assert "\n".join(selftest_lines(record())) == (
        "NVIDIA H200: 1 cells, 140 s\n"
        "interleaved, a difference matters from 1 %\n"
        " injected  measured  tries   seen     rate  95 % interval      goal\n"
        "     none              300      0    0.00%  0.00% to 1.22%     upper end ≤ 2%\n"
        "      2 %    2.05 %    100    100  100.00%  96.38% to 100.00%  ≥ 50%\n"
        "      5 %    5.05 %    100    100  100.00%  96.38% to 100.00%  ≥ 95%\n"
        "     10 %   10.05 %    100    100  100.00%  96.38% to 100.00%  ≥ 99%\n"
        "times of two sessions, a difference matters from 2 %\n"
        " injected  measured  tries   seen     rate  95 % interval      goal\n"
        "     none               50      1    2.00%  0.05% to 10.65%\n"
        "      2 %    1.90 %     50     12   24.00%  13.06% to 38.17%\n"
        "every goal is met"
    )


def test_too_many_false_alarms_fail_on_a_gpu_and_are_told_on_a_processor() -> None:
    gated, told = record(alarms=(3, 300)), record(alarms=(3, 300), gated=False)
    assert (gated.exit_code, told.exit_code) == (1, 0)
    assert gated.missed() == ["false alarms may be as frequent as 2.89%, more than 2%"]
    assert selftest_lines(told)[-1] == "on a GPU this would fail: " + gated.missed()[0]


def test_fewer_comparisons_than_the_goal_speaks_of_fail_however_good_they_are() -> None:
    assert record(alarms=(0, 299)).missed() == ["299 comparisons are fewer than 300"]


def test_too_little_power_fails_with_the_sizes_that_were_missed() -> None:
    assert record(found=96).missed() == ["a slow-down of 10 % was found in 96.0% of tries, less than 99%"]
    assert record(found=100).exit_code == 0


def test_a_slow_down_that_no_cell_could_be_given_counts_as_missed() -> None:
    whole = record()
    interleaved = whole.ways[0].model_copy(update={"power": whole.ways[0].power[1:]})
    assert whole.model_copy(update={"ways": (interleaved,)}).missed() == [
        "a slow-down of 2 % could not be injected into any cell"
    ]


@pytest.mark.parametrize(("tries", "cells"), [(2, []), (1, [CELL])])
def test_nothing_to_compare_is_refused(thresholds: Thresholds, tries: int, cells: list[Cell]) -> None:
    with pytest.raises(SelfTestError, match="nothing to compare"):
        selftest(tries, thresholds, machine=PROCESSOR, cells=cells)


def test_the_command_prints_the_table_and_keeps_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run on one small cell; the numbers are the record's, whatever they are."""
    shutil.copytree(ROOT / "experiments" / "compare", tmp_path / "experiments" / "compare")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "headline_cells", lambda machine: [CELL])
    monkeypatch.setattr("maxsim_bench.machine.this_machine", lambda: PROCESSOR)
    done = CliRunner().invoke(main, ["selftest", "--aa", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    folder = tmp_path / "results" / "cpu"
    kept = read_selftest(folder / "selftest.json")
    lines = done.stdout.splitlines()
    assert lines == [*selftest_lines(kept), "results/cpu/selftest.json"]
    assert lines[0].startswith("A processor: 1 cells, ")
    assert done.stderr.startswith("Nq=1 B=20 Lq=16 Ld=64 d=64 dtype=fp32: preparing\n2 tries in ")
    assert [p.found.tries for p in kept.ways[0].power] == [2, 2, 2]
    assert kept.gated is False
    declared = read_thresholds(tmp_path / "experiments" / "compare" / "thresholds.toml")
    assert audited(read_tries(folder), declared) == kept.ways, "the raw times beside the record give its rates again"


def test_the_command_prints_its_record_as_json_and_fails_where_a_gpu_misses_a_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "selftest", lambda *a, **k: (record(alarms=(3, 300)), TRIES))
    arguments = ["selftest", "--aa", "2", "--json", "--into", str(tmp_path), "--experiments", str(ROOT / "experiments")]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["missed"] == ["false alarms may be as frequent as 2.89%, more than 2%"]
    assert read_selftest(tmp_path / "selftest.json") == record(alarms=(3, 300))
    assert read_tries(tmp_path) == TRIES
