"""The audit of comparisons: it counts what it says, sees a slow-down that is there, and judges only a GPU."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxsim_bench import selftest as module
from maxsim_bench.cli import main
from maxsim_bench.declare.cell import Cell
from maxsim_bench.machine import Machine
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.report.compare import Thresholds, rate, read_thresholds
from maxsim_bench.selftest import Power, SelfTest, SelfTestError, selftest, selftest_lines

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
    return SelfTest(
        key="h200", gpu="NVIDIA H200", measured_at="2026-01-01T00:00:00+00:00", revision="abc", environment_id="e",
        budget=TimingBudget(), interleaved_percent=1.0, false_discovery_rate=0.01, cells=("Nq=1 B=1000",),
        false_alarms=rate(*alarms),
        power=tuple(Power(p, p + 0.05, rate(found, 100), w) for p, w in module.WANTED.items()),
        left_out=(), gated=gated,
    )  # fmt: skip


def test_a_slow_down_of_a_half_is_found_and_the_same_build_raises_no_alarm(thresholds: Thresholds) -> None:
    done = selftest(2, thresholds, machine=PROCESSOR, cells=[CELL], percents=(50.0,), budget=BUDGET)
    (power,) = done.power
    assert (power.found.hits, power.found.tries) == (2, 2)
    assert 30 < power.reached_percent < 75
    assert (done.false_alarms.hits, done.false_alarms.tries) == (0, 2)
    assert done.cells == ("Nq=1 B=20 Lq=16 Ld=64 d=64 dtype=fp32",)


def test_the_table_shows_rates_intervals_and_goals() -> None:
    assert "\n".join(selftest_lines(record())) == (
        "NVIDIA H200: 1 cells, difference that matters 1 %\n"
        " injected  measured  tries   seen     rate  95 % interval      goal\n"
        "     none              300      0    0.00%  0.00% to 1.22%     upper end ≤ 2%\n"
        "      2 %    2.05 %    100    100  100.00%  96.38% to 100.00%  ≥ 50%\n"
        "      5 %    5.05 %    100    100  100.00%  96.38% to 100.00%  ≥ 95%\n"
        "     10 %   10.05 %    100    100  100.00%  96.38% to 100.00%  ≥ 99%\n"
        "every goal is met"
    )


def test_too_many_false_alarms_fail_on_a_gpu_and_are_told_on_a_processor() -> None:
    gated, told = record(alarms=(3, 300)), record(alarms=(3, 300), gated=False)
    assert (gated.exit_code, told.exit_code) == (1, 0)
    assert gated.missed() == ["false alarms may be as frequent as 2.89%, more than 2%"]
    assert selftest_lines(told)[-1] == "on a GPU this would fail: " + gated.missed()[0]


def test_too_little_power_fails_with_the_sizes_that_were_missed() -> None:
    assert record(found=96).missed() == ["a slow-down of 10 % was found in 96.0% of tries, less than 99%"]
    assert record(found=100).exit_code == 0


def test_a_slow_down_that_no_cell_could_be_given_counts_as_missed() -> None:
    assert replace(record(), power=record().power[1:]).missed() == [
        "a slow-down of 2 % could not be injected into any cell"
    ]


def test_no_cell_is_refused(thresholds: Thresholds) -> None:
    with pytest.raises(SelfTestError, match="nothing to count"):
        selftest(1, thresholds, machine=PROCESSOR, cells=[])


def test_the_command_prints_the_table_and_keeps_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run on one small cell; the numbers are the record's, whatever they are."""
    shutil.copytree(ROOT / "experiments" / "compare", tmp_path / "experiments" / "compare")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "headline_cells", lambda machine: [CELL])
    monkeypatch.setattr("maxsim_bench.machine.this_machine", lambda: PROCESSOR)
    done = CliRunner().invoke(main, ["selftest", "--aa", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    kept = json.loads((tmp_path / "results" / "cpu" / "selftest.json").read_text())
    lines = done.stdout.splitlines()
    assert lines[0] == "A processor: 1 cells, difference that matters 1 %"
    assert [line.split()[0] for line in lines[2:6]] == ["none", "2", "5", "10"]
    assert lines[-1] == "results/cpu/selftest.json"
    assert lines[6:-1] == [f"on a GPU this would fail: {reason}" for reason in kept["missed"]]
    assert done.stderr == "Nq=1 B=20 Lq=16 Ld=64 d=64 dtype=fp32, 1 ×\n"
    assert [p["found"]["tries"] for p in kept["power"]] == [1, 1, 1]
    assert kept["gated"] is False


def test_the_command_prints_its_record_as_json_and_fails_where_a_gpu_misses_a_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "selftest", lambda *a, **k: record(alarms=(3, 300)))
    arguments = ["selftest", "--aa", "1", "--json", "--into", str(tmp_path), "--experiments", str(ROOT / "experiments")]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 1
    assert json.loads(done.stdout) == json.loads((tmp_path / "selftest.json").read_text())
    assert json.loads(done.stdout)["false_alarms"]["hits"] == 3
