"""Two runs against each other: decisions, refusals, spellings."""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsim_bench.cli import main
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples, read_samples, samples_path
from maxsim_bench.record.store import Store
from maxsim_bench.report.compare import (
    CompareError,
    Run,
    Selection,
    Thresholds,
    compare_results,
    compare_runs,
    decide_interleaved,
    rate,
    read_run,
    read_thresholds,
)
from maxsim_bench.report.compare.compare import decisions
from maxsim_bench.report.compare.decide import decide_exact, decide_sampled
from maxsim_bench.report.compare.statistics import (
    Effect,
    adjusted,
    independent_effect,
    paired_effect,
    samples_needed,
    steps,
)
from maxsim_bench.report.compare.thresholds import Threshold
from maxsim_bench.report.load import ReportError

THRESHOLDS = Path(__file__).parents[3] / "experiments" / "compare" / "thresholds.toml"


@pytest.fixture(scope="module")
def thresholds() -> Thresholds:
    return read_thresholds(THRESHOLDS)


@pytest.fixture
def rows(made: Any) -> list[Row]:
    return made.sweep([made.cell(B=B) for B in (100, 1000, 10_000)], ["eager", "fused"])


def slower(rows: list[Row], factor: float, backend: str = "fused") -> list[Row]:
    """The rows with one backend's times multiplied, as a lost optimisation would."""
    return [
        row.model_copy(update={"latency_ms": factor * row.latency_ms, "speedup": row.speedup / factor})
        if row.backend == backend and row.latency_ms is not None and row.speedup is not None
        else row
        for row in rows
    ]


def run(folder: Path, rows: list[Row], made: Any, **sampling: Any) -> str:
    return str(made.written(folder, rows, **sampling))


def of(comparison: Any, backend: str, metric: str) -> set[str]:
    return {one.decision for one in comparison.decided if (one.backend, one.metric) == (backend, metric)}


def test_the_same_rows_with_other_noise_are_the_same(tmp_path: Path, rows: list[Row], made: Any) -> None:
    done = compare_results(
        run(tmp_path / "a", rows, made), run(tmp_path / "b", rows, made, seed=1), thresholds=THRESHOLDS
    )
    assert set(decisions(done)) == {"SAME"}
    assert done.exit_code == 0


@pytest.mark.parametrize(("factor", "expected"), [(1.1, "SLOWER"), (0.9, "FASTER")])
def test_a_change_is_found_for_the_backend_that_changed_alone(
    tmp_path: Path, rows: list[Row], made: Any, factor: float, expected: str
) -> None:
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", slower(rows, factor), made, seed=1)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    assert of(done, "fused", "latency_ms") == {expected}
    assert of(done, "fused", "speedup") == {expected}
    assert of(done, "eager", "latency_ms") == {"SAME"}
    assert done.exit_code == (1 if expected == "SLOWER" else 0)
    assert done.decided[0].decision == expected


def test_wide_scatter_is_undecided_and_says_how_many_samples_would_settle_it(
    tmp_path: Path, rows: list[Row], made: Any
) -> None:
    base, new = run(tmp_path / "a", rows, made, noise=0.2), run(tmp_path / "b", rows, made, noise=0.2, seed=1)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    undecided = [one for one in done.decided if one.metric == "latency_ms"]
    assert {one.decision for one in undecided} == {"UNDECIDED"}
    assert all(one.needed is not None and one.needed > 40 for one in undecided)
    assert done.exit_code == 0


def test_a_run_against_itself_is_the_same_measurement_and_short(tmp_path: Path, rows: list[Row], made: Any) -> None:
    """However wide its samples scatter: nobody asks how many of them would settle it."""
    base = run(tmp_path / "a", rows, made, noise=0.2)
    done = CliRunner().invoke(main, ["compare", base, base, "--thresholds", str(THRESHOLDS), "--fail-on", "undecided"])
    assert done.exit_code == 0, done.output
    found = compare_results(base, base, thresholds=THRESHOLDS)
    count = len(found.decided)
    assert done.stdout.startswith(f"### {base} against {base}: 0 slower, 0 faster, 0 undecided, {count} the same")
    assert f"{count} the same ({count} not measured again)\n\nNothing moved.\n" in done.stdout
    assert len(done.stdout.splitlines()) < 10
    assert found.agreements() == [], "a row says nothing of how well it repeats"
    assert json.loads(found.json())["same_measurements"] == count
    assert f"({count} not measured again)" in found.html()


@pytest.mark.parametrize("change", [{"measured_at": "2026-01-03T00:00:00Z"}, {"backend_version": "1.1"}])
def test_a_row_of_another_time_or_version_is_another_measurement(
    tmp_path: Path, rows: list[Row], made: Any, change: dict[str, Any]
) -> None:
    """Equal samples do not make them one."""
    again = [row.model_copy(update=change) if row.backend == "fused" else row for row in rows]
    base, new = run(tmp_path / "a", rows, made, noise=0.2), run(tmp_path / "b", again, made, noise=0.2)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    assert of(done, "fused", "latency_ms") == {"UNDECIDED"}
    assert {one.reason for one in done.decided if one.backend == "eager"} == {"the same measurement"}


def test_rows_that_nobody_measured_again_make_no_test_stricter(tmp_path: Path, rows: list[Row], made: Any) -> None:
    """The false-discovery rate is one of differences that could have been found."""
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", rows, made)
    other = run(tmp_path / "c", slower(rows[:2], 1.1), made, seed=1)
    alone = compare_results(run(tmp_path / "d", rows[:2], made), other, thresholds=THRESHOLDS)
    samples = [Path(folder) / "h200" / "forward.csv" for folder in (new, other)]
    append_samples(samples[0], read_samples(samples[1]))
    Store(samples[0]).replace(Store(samples[1]).rows())
    among = compare_results(base, new, thresholds=THRESHOLDS)
    tested = [[one.q_value for one in found.decided if one.effect is not None] for found in (alone, among)]
    assert sorted(tested[0]) == sorted(tested[1])


def test_memory_is_compared_exactly_with_a_floor_in_bytes(tmp_path: Path, rows: list[Row], made: Any) -> None:
    grown = [r.model_copy(update={"peak_extra_bytes": (r.peak_extra_bytes or 0) + (5 << 20)}) for r in rows]
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", grown, made)
    assert of(compare_results(base, new, thresholds=THRESHOLDS), "fused", "peak_extra_bytes") == {"SLOWER"}
    little = [r.model_copy(update={"peak_extra_bytes": (r.peak_extra_bytes or 0) + 1000}) for r in rows]
    other = run(tmp_path / "c", little, made)
    assert of(compare_results(base, other, thresholds=THRESHOLDS), "fused", "peak_extra_bytes") == {"SAME"}


def test_on_another_machine_only_ratios_to_the_baseline_are_compared(
    tmp_path: Path, rows: list[Row], made: Any
) -> None:
    elsewhere = [r.model_copy(update={"environment_id": "other", "latency_ms": 3 * (r.latency_ms or 0)}) for r in rows]
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", elsewhere, made, seed=1)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    assert of(done, "fused", "latency_ms") == set()
    assert of(done, "fused", "speedup") == {"SAME"}
    assert "absolute times were not compared" in done.notes[0]


def test_a_backend_that_stopped_working_is_a_loss(tmp_path: Path, rows: list[Row], made: Any) -> None:
    broken = Row(
        **{**{k: getattr(rows[1], k) for k in ("cell", "backend", "backend_version", "gpu", "environment_id")}},
        status="crash", error="illegal memory access",
    )  # fmt: skip
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", [rows[0], broken, *rows[2:]], made)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    assert (done.decided[0].decision, done.decided[0].metric) == ("SLOWER", "status") or "status" in {
        d.metric for d in done.decided if d.decision == "SLOWER"
    }
    assert any("illegal memory access" in d.reason for d in done.decided)


def test_clocks_that_moved_explain_a_difference(
    tmp_path: Path, rows: list[Row], made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 % slower at 8 % lower clocks is the same number of cycles."""
    base = read_run(run(tmp_path / "a", rows, made))
    new = read_run(run(tmp_path / "b", slower(rows, 1.08), made, seed=1))
    slow = {s: m.__class__(**{**m.__dict__, "clock": 1900.0 / 1.08}) for s, m in new.measured.items()}
    done = compare_runs(base, new.__class__("new", slow), read_thresholds(THRESHOLDS))
    one = next(d for d in done.decided if (d.backend, d.metric) == ("fused", "latency_ms"))
    assert (one.decision, one.reason.split(",")[0]) == ("UNDECIDED", "clocks moved")


# A host that moved.


def hosted(made: Any, policy: str = "host", gpu: str = "h200") -> list[Row]:
    """Eager and ours on one cell, timed by the policy on the device."""
    rows: list[Row] = made.sweep([made.cell(timing_policy=policy)], ["eager", "fused"])
    return [row.model_copy(update={"cell": row.cell.model_copy(update={"gpu": gpu})}) for row in rows]


def ratio_of(base: str, new: str, thresholds: Path = THRESHOLDS) -> Any:
    """The one decision on a ratio to the baseline."""
    (found,) = [one for one in compare_results(base, new, thresholds=thresholds).decided if one.metric == "speedup"]
    return found


# Times of eager and of ours in the second run over the first's: one session on a machine that was warming up.
WARMED = (0.093 / 0.164, 0.058 / 0.081)


@pytest.mark.parametrize(
    ("eager", "fused"),
    [WARMED, (1 / WARMED[0], 1 / WARMED[1]), (1.2, 1.2)],  # a ratio that stayed might hide a loss as well
)
def test_where_the_host_moved_a_ratio_of_calls_from_python_is_undecided_and_says_by_how_much(
    tmp_path: Path, made: Any, eager: float, fused: float
) -> None:
    rows = hosted(made)
    base = run(tmp_path / "a", rows, made, noise=1e-4)
    new = run(tmp_path / "b", slower(slower(rows, eager, "eager"), fused), made, noise=1e-4, seed=1)
    found = ratio_of(base, new)
    assert (found.decision, found.needed) == ("UNDECIDED", None)
    told = re.match(r"the host moved: the baseline took ([\d.]+) % (more|less) time, beyond 5 %, and ", found.reason)
    assert told is not None, found.reason
    assert (float(told[1]), told[2]) == (
        pytest.approx(100 * abs(eager - 1), abs=0.2),
        "more" if eager > 1 else "less",
    )
    done = compare_results(base, new, thresholds=THRESHOLDS)
    assert of(done, "fused", "latency_ms") == {"FASTER" if fused < 1 else "SLOWER"}, "times speak for themselves"


@pytest.mark.parametrize("host", [1.0, 1.03, 0.97])
@pytest.mark.parametrize(("factor", "expected"), [(1.1, "SLOWER"), (1.0, "SAME"), (0.9, "FASTER")])
def test_where_the_host_stayed_a_ratio_of_calls_from_python_is_decided(
    tmp_path: Path, made: Any, host: float, factor: float, expected: str
) -> None:
    rows = hosted(made)
    base = run(tmp_path / "a", rows, made)
    new = run(tmp_path / "b", slower(slower(rows, host, "eager"), host * factor), made, seed=1)
    assert ratio_of(base, new).decision == expected


@pytest.mark.parametrize(("policy", "gpu"), [("cold_l2", "h200"), ("graph", "h200"), ("host", "cpu")])
def test_only_where_dispatch_is_in_the_time_does_the_host_matter(
    tmp_path: Path, made: Any, policy: str, gpu: str
) -> None:
    rows = hosted(made, policy, gpu)
    base = run(tmp_path / "a", rows, made)
    new = run(tmp_path / "b", slower(slower(rows, WARMED[0], "eager"), WARMED[1]), made, seed=1)
    assert ratio_of(base, new).decision == "SLOWER"


def test_the_limit_is_declared_and_without_one_every_ratio_is_decided(tmp_path: Path, made: Any) -> None:
    rows = hosted(made)
    base = run(tmp_path / "a", rows, made)
    new = run(tmp_path / "b", slower(slower(rows, 1.08, "eager"), 1.3), made, seed=1)
    declared = "host_moved_percent = 5.0"
    assert ratio_of(base, new).decision == "UNDECIDED"
    for instead in ("host_moved_percent = 10.0", ""):
        mine = tmp_path / "mine.toml"
        assert declared in THRESHOLDS.read_text()
        mine.write_text(THRESHOLDS.read_text().replace(declared, instead))
        assert ratio_of(base, new, mine).decision == "SLOWER"


# Refusals.


def test_runs_without_a_common_row_are_refused(tmp_path: Path, rows: list[Row], made: Any) -> None:
    other = made.sweep([made.cell(B=7)], ["fused"])
    with pytest.raises(CompareError, match="no row in common"):
        compare_results(run(tmp_path / "a", rows, made), run(tmp_path / "b", other, made), thresholds=THRESHOLDS)


def test_a_vanished_row_is_refused_by_name(tmp_path: Path, rows: list[Row], made: Any) -> None:
    with pytest.raises(CompareError, match=r"1 rows of .* are not in .*\n  fused: forward on H200: .*B = 10K"):
        compare_results(run(tmp_path / "a", rows, made), run(tmp_path / "b", rows[:-1], made), thresholds=THRESHOLDS)


def with_change(source: str, **changes: Any) -> Run:
    """A run whose first row is changed."""
    found = read_run(source)
    first, *others = found.measured
    changed = replace(found.measured[first], **changes)
    return Run(found.name, {first: changed, **{key: found.measured[key] for key in others}})


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_base_of_zero_or_nan_is_refused(
    tmp_path: Path, rows: list[Row], made: Any, thresholds: Thresholds, value: float
) -> None:
    source = run(tmp_path / "a", rows, made)
    spoilt = with_change(source, values={"latency_ms": value})
    with pytest.raises(CompareError, match=r"latency_ms of eager on .* is (0|nan|inf)"):
        compare_runs(spoilt, read_run(source), thresholds)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("field", "told"),
    [("host_baseline_ms", "the baseline"), ("samples", "a sample"), ("ratios", "a ratio to the baseline")],
)
def test_raw_numbers_that_are_not_positive_and_finite_are_refused_by_name(
    tmp_path: Path, rows: list[Row], made: Any, thresholds: Thresholds, field: str, told: str, bad: float
) -> None:
    source = run(tmp_path / "a", rows, made)
    spoilt = with_change(source, **{field: bad if field == "host_baseline_ms" else (1.0, bad)})
    for pair in ((spoilt, read_run(source)), (read_run(source), spoilt)):
        with pytest.raises(CompareError, match=f"{told} of eager on forward on H200: .*B = 100.* is {bad}"):
            compare_runs(*pair, thresholds)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"ms": [1.0, 0.0], "round": [0, 1]}, "a sample is 0.0"),
        ({"ms": [1.0, -1.0], "round": [0, 1]}, "a sample is -1.0"),
        ({"ms": [1.0, math.nan], "round": [0, 1]}, "a sample is nan"),
        ({"ms": [1.0, math.inf], "round": [0, 1]}, "a sample is inf"),
        ({"ms": [1.0, 10**400], "round": [0, 1]}, "a sample is inf"),
        ({"ms": [1.0, "x"], "round": [0, 1]}, "a sample is x"),
        ({"ms": 1.0}, "no list of samples"),
        ({"ms": [1.0, 2.0], "round": [0]}, "2 samples in 1 rounds"),
    ],
)
def test_samples_that_no_timer_gives_are_refused_with_file_and_cell(
    tmp_path: Path, rows: list[Row], made: Any, record: dict[str, Any], told: str
) -> None:
    source = run(tmp_path / "a", rows, made)
    append_samples(Path(source) / "h200" / "forward.csv", {rows[0].key: record})
    with pytest.raises(
        CompareError, match=rf"forward\.samples\.jsonl\.gz: {told}.* of eager on forward on H200: .*B = 100"
    ):
        read_run(source)


def with_other(source: str, row: Row, field: str = "latency_ms", factor: float = 0.5) -> str:
    """The run after somebody changed a number of a row's, and not its samples."""
    store = Store(Path(source) / "h200" / "forward.csv")
    stored = next(one for one in store.rows() if one.key == row.key)
    store.replace([stored.model_copy(update={field: factor * getattr(stored, field)})])
    return source


@pytest.mark.parametrize("field", ["latency_ms", "latency_p20_ms", "latency_p80_ms", "speedup"])
def test_a_row_that_its_own_samples_contradict_is_refused_by_name_where_a_run_is_read_alone(
    tmp_path: Path, rows: list[Row], made: Any, field: str
) -> None:
    """Of a history and of repetitions: the times that are compared and those that are shown would be of two runs."""
    source = with_other(run(tmp_path / "a", rows, made), rows[1], field)
    with pytest.raises(CompareError, match=rf"h200/forward\.csv: {field} is .*: fused on forward on H200: .*B = 100"):
        read_run(source)


def test_a_speed_up_is_held_against_the_baseline_it_was_made_of_though_that_has_a_newer_row(
    tmp_path: Path, rows: list[Row], made: Any
) -> None:
    newer = rows[0].model_copy(update={"backend_version": "2.0", "measured_at": "2090-01-01T00:00:00Z"})
    source = run(tmp_path / "a", [newer, *rows], made)
    assert read_run(source).contradicted == {}
    with pytest.raises(CompareError, match=r"speedup is .*: fused on forward"):
        read_run(with_other(source, rows[1], "speedup"))


@pytest.mark.parametrize("spoilt", ["a", "b"])
@pytest.mark.parametrize("field", ["latency_ms", "speedup"])
def test_a_row_that_its_own_samples_contradict_in_one_run_is_left_out_and_the_rest_is_compared(
    tmp_path: Path, rows: list[Row], made: Any, spoilt: str, field: str
) -> None:
    sources = [run(tmp_path / name, rows, made, seed=seed) for seed, name in enumerate("ab")]
    whole = compare_results(*sources, thresholds=THRESHOLDS)
    with_other(str(tmp_path / spoilt), rows[1], field)
    done = compare_results(*sources, thresholds=THRESHOLDS)
    subject = f"{rows[1].cell.hash()}/fused"
    assert {one.subject for one in done.decided} == {one.subject for one in whole.decided} - {subject}
    (told,) = done.left_out
    assert told.startswith(f"{tmp_path / spoilt}: h200/forward.csv: {field} is ")
    assert told.endswith(f": fused on {next(one.label for one in whole.decided if one.subject == subject)}")
    assert (whole.exit_code, whole.left_out, done.exit_code) == (0, (), 2)
    assert done.notes == (), "it is neither new nor gone"


@pytest.mark.parametrize(
    ("factor", "fail_on", "code"),
    [(1.0, "slower", 2), (1.0, "undecided", 2), (1.0, "nothing", 2), (1.2, "slower", 1), (1.2, "nothing", 2)],
)
@pytest.mark.parametrize("form", ["markdown", "json", "html"])
def test_what_was_left_out_is_told_in_every_format_and_never_passes(
    tmp_path: Path, rows: list[Row], made: Any, factor: float, fail_on: str, code: int, form: str
) -> None:
    base = run(tmp_path / "a", rows, made)
    new = with_other(run(tmp_path / "b", slower(rows, factor), made, seed=1), rows[0])
    arguments = ["compare", base, new, "--thresholds", str(THRESHOLDS), "--fail-on", fail_on, "--format", form]
    done = CliRunner().invoke(main, arguments)
    told = f"{new}: h200/forward.csv: latency_ms is "
    assert done.exit_code == code, done.output
    assert done.stderr.startswith(f"left out, at odds with its own samples: {told}")
    assert done.stderr.count("\n") == 1
    assert told in done.stdout
    if form == "json":
        found = json.loads(done.stdout)
        assert (len(found["left_out"]), found["exit_code"]) == (1, 1 if factor > 1 else 2)
    if form == "markdown":
        assert re.match(
            r"### .* the same.*, 1 left out\n\n\*\*Left out, because .*: 1 row\. .* does not pass\.", done.stdout
        )
    again = CliRunner().invoke(main, ["compare", base, base, "--thresholds", str(THRESHOLDS), "--format", form])
    assert (again.exit_code, again.stderr) == (0, "")
    assert "eft out" not in again.stdout


def test_where_every_row_contradicts_its_samples_nothing_is_compared(
    tmp_path: Path, rows: list[Row], made: Any
) -> None:
    base, new = run(tmp_path / "a", rows[:2], made), run(tmp_path / "b", rows[:2], made)
    with_other(with_other(base, rows[0]), rows[1])
    told = r"^every row that could be compared is at odds .*:\n  .*eager on .*\n  .*fused on .*\nRestore the files"
    with pytest.raises(CompareError, match=told):
        compare_results(base, new, thresholds=THRESHOLDS)


def test_where_nothing_is_left_to_compare_what_was_left_out_is_told(tmp_path: Path, rows: list[Row], made: Any) -> None:
    """A row without a number is in both runs: it is compared, and gives no metric."""
    told = {"cell": rows[0].cell, "backend_version": "1.0", "gpu": rows[0].gpu, "environment_id": "env-h200"}
    refused = Row(**told, backend="lik", status="unsupported", error="needs d = 64")
    base, new = (run(tmp_path / name, [rows[0], refused], made) for name in "ab")
    with pytest.raises(CompareError, match=r"no metric in common.* Left out, .*:\n  .*latency_ms is .*eager on .*\n"):
        compare_results(base, with_other(new, rows[0]), thresholds=THRESHOLDS)


def test_a_contradicted_row_that_vanished_is_refused_as_any_other(tmp_path: Path, rows: list[Row], made: Any) -> None:
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", rows[:-1], made)
    with pytest.raises(CompareError, match=r"1 rows of .* are not in .*\n  .*latency_ms is .*: fused on .*B = 10K"):
        compare_results(with_other(base, rows[-1]), new, thresholds=THRESHOLDS)


def test_a_contradicted_row_that_was_not_chosen_concerns_nobody(tmp_path: Path, rows: list[Row], made: Any) -> None:
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", rows, made, seed=1)
    only = Selection(backends=("fused",))
    done = compare_results(with_other(base, rows[0]), new, thresholds=THRESHOLDS, only=only)
    assert (done.left_out, done.exit_code) == ((), 0)


def test_interleaved_times_that_are_not_positive_are_refused_by_label(thresholds: Thresholds) -> None:
    with pytest.raises(CompareError, match=r"shape 7: new: a sample is not a positive, finite number\. Measure"):
        decide_interleaved([("shape 7", [1.0, 1.0], [1.0, 0.0])], thresholds)


def test_a_metric_that_vanished_is_noted(tmp_path: Path, rows: list[Row], made: Any) -> None:
    without = [
        row.model_copy(update=dict.fromkeys(("speedup", "speedup_low", "speedup_high", "speedup_baseline")))
        for row in rows
    ]
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", without, made, seed=1)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    (note,) = done.notes
    assert note.startswith(f"3 values are in {base} alone: speedup of fused on forward on H200: ")
    assert note in done.markdown()
    assert compare_results(new, base, thresholds=THRESHOLDS).notes == ()


def test_a_run_under_two_fingerprints_is_refused(tmp_path: Path, rows: list[Row], made: Any) -> None:
    mixed = [rows[0].model_copy(update={"environment_id": "other"}), *rows[1:]]
    with pytest.raises(CompareError, match="forward on h200 was measured under 2 fingerprints"):
        compare_results(run(tmp_path / "a", mixed, made), run(tmp_path / "b", rows, made), thresholds=THRESHOLDS)


def test_rows_of_several_fingerprints_are_compared_where_each_kept_its_own(
    tmp_path: Path, rows: list[Row], made: Any
) -> None:
    """Committed results grow by sessions: a row that nobody measured again is the same row in both."""
    grown = [rows[0].model_copy(update={"environment_id": "other"}), *rows[1:]]
    done = compare_results(run(tmp_path / "a", grown, made), run(tmp_path / "b", grown, made), thresholds=THRESHOLDS)
    assert {(one.decision, one.reason) for one in done.decided} == {("SAME", "the same measurement")}
    assert done.notes == ()


def test_a_truncated_csv_is_refused(tmp_path: Path, rows: list[Row], made: Any) -> None:
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", rows, made)
    path = Path(new) / "h200" / "forward.csv"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CompareError, match="last line is cut off"):
        compare_results(base, new, thresholds=THRESHOLDS)


def test_truncated_samples_are_refused(tmp_path: Path, rows: list[Row], made: Any) -> None:
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", rows, made)
    path = samples_path(Path(new) / "h200" / "forward.csv")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CompareError, match="has no samples of 6 timed rows"):
        compare_results(base, new, thresholds=THRESHOLDS)


def test_without_any_samples_times_are_undecided_not_guessed(tmp_path: Path, rows: list[Row], made: Any) -> None:
    later = [row.model_copy(update={"measured_at": "2026-01-03T00:00:00Z"}) for row in rows]
    for name, measured in (("a", rows), ("b", later)):
        Store(tmp_path / name / "h200" / "forward.csv").append(measured)
    done = compare_results(str(tmp_path / "a"), str(tmp_path / "b"), thresholds=THRESHOLDS)
    assert of(done, "fused", "latency_ms") == {"UNDECIDED"}
    assert of(done, "fused", "peak_extra_bytes") == {"SAME"}


def test_samples_that_the_base_has_and_the_new_run_lost_are_refused(tmp_path: Path, rows: list[Row], made: Any) -> None:
    """Without them every loss would be undecided, which fails nothing."""
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", slower(rows, 2), made)
    samples_path(Path(new) / "h200" / "forward.csv").unlink()
    with pytest.raises(CompareError, match=r"b: has no raw samples of eager on forward.*, which .*a has: a loss would"):
        compare_results(base, new, thresholds=THRESHOLDS)
    assert of(compare_results(new, base, thresholds=THRESHOLDS), "fused", "latency_ms") == {"UNDECIDED"}


def test_an_empty_name_is_no_run() -> None:
    """It would be the folder at hand: a variable of a script that was not set."""
    with pytest.raises(CompareError, match="a run without a name"):
        read_run("")


def test_machines_that_differ_without_a_ratio_have_nothing_to_compare(tmp_path: Path, made: Any) -> None:
    bare = [made.modelled(made.cell(), "fused").model_copy(update={"peak_extra_bytes": None, "max_rel_err": None})]
    elsewhere = [bare[0].model_copy(update={"environment_id": "other"})]
    with pytest.raises(CompareError, match="under different fingerprints"):
        compare_results(run(tmp_path / "a", bare, made), run(tmp_path / "b", elsewhere, made), thresholds=THRESHOLDS)


def killed(folder: Path, rows: list[Row], made: Any) -> None:
    made.written(folder, rows[:4])  # whole rows only: that is what a kill leaves


def torn(folder: Path, rows: list[Row], made: Any) -> None:
    path = made.written(folder, rows) / "h200" / "forward.csv"
    path.write_bytes(path.read_bytes()[:-20])


def mixed(folder: Path, rows: list[Row], made: Any) -> None:
    made.written(folder, [rows[0].model_copy(update={"environment_id": "other"}), *rows[1:]])


def vanished(folder: Path, rows: list[Row], made: Any) -> None:
    made.written(folder, rows[1:])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (killed, r"Error: 2 rows of base are not in new:\n.*\n.*\nA row .*If the run was killed, its command goes on"),
        (torn, r"Error: new/h200/forward\.csv: its last line is cut off, so rows may be missing\. Resume the run"),
        (mixed, r"Error: new: forward on h200 was measured under 2 fingerprints \(env-h200, other\), .* with --force"),
        (vanished, r"Error: 1 rows of base are not in new:\n  eager: forward on H200: Nq = 1, B = 100, "),
    ],
)
def test_the_command_refuses_with_a_message_and_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Row], made: Any, spoil: Any, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made.written(Path("base"), rows)
    spoil(Path("new"), rows, made)
    done = CliRunner().invoke(main, ["compare", "base", "new", "--thresholds", str(THRESHOLDS)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.match(told, done.stderr), done.stderr


# Chosen rows, exit codes.


def test_rows_that_were_not_chosen_may_be_missing(tmp_path: Path, rows: list[Row], made: Any) -> None:
    """A repetition of some backends and cells is compared with the whole run that it repeats."""
    part = [row for row in rows if row.backend == "fused" and row.cell.B != 100]
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", part, made, seed=1)
    only = Selection(("forward",), ("fused",), ({"B": ">= 1000"},))
    done = compare_results(base, new, thresholds=THRESHOLDS, only=only)
    assert len({one.subject for one in done.decided}) == 2
    with pytest.raises(CompareError, match="holds no row that was asked for"):
        compare_results(base, new, thresholds=THRESHOLDS, only=Selection(backends=("lik",)))


def test_how_well_a_run_repeats_is_the_share_of_ratios_near_one(tmp_path: Path, rows: list[Row], made: Any) -> None:
    changed = slower(rows[:2], 1.1) + rows[2:]
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", changed, made, seed=1)
    found = {one.metric: one for one in compare_results(base, new, thresholds=THRESHOLDS).agreements()}
    assert (found["latency_ms"].within, found["latency_ms"].compared) == (5, 6)
    assert (found["speedup"].within, found["speedup"].compared) == (2, 3), "a baseline has no ratio to itself"
    assert found["latency_ms"].farthest_percent == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    ("fail_on", "factor", "noise", "code"),
    [
        ("slower", 1.2, 0.005, 1), ("nothing", 1.2, 0.005, 0), ("slower", 1.0, 0.2, 0), ("undecided", 1.0, 0.2, 1),
        ("undecided", 1.0, 0.005, 0),
    ],
)  # fmt: skip
def test_what_fails_is_chosen(
    tmp_path: Path, rows: list[Row], made: Any, fail_on: str, factor: float, noise: float, code: int
) -> None:
    base = run(tmp_path / "a", rows, made, noise=noise)
    new = run(tmp_path / "b", slower(rows, factor), made, noise=noise, seed=1)
    arguments = ["compare", base, new, "--thresholds", str(THRESHOLDS), "--fail-on", fail_on]
    done = CliRunner().invoke(main, [*arguments, "--into", str(tmp_path / "out")])
    assert done.exit_code == code, done.output
    assert (tmp_path / "out" / "comparison.md").read_text() == done.stdout
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["counts"]
    assert (tmp_path / "out" / "comparison.html").read_text().startswith("<!doctype html>")


# Sources.


def test_a_revision_of_git_is_a_run(tmp_path: Path, rows: list[Row], made: Any) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    run(tmp_path / "results", rows, made)
    git("add", "results")
    git("commit", "-qm", "x")
    new = run(tmp_path / "new", slower(rows, 1.2), made, seed=1)
    done = compare_results("HEAD", new, thresholds=THRESHOLDS, repository=tmp_path)
    assert of(done, "fused", "latency_ms") == {"SLOWER"}
    assert len(read_run("HEAD:results/h200", repository=tmp_path).measured) == len(rows)
    with pytest.raises(CompareError, match="nowhere: neither a file nor a folder"):
        read_run("nowhere", repository=tmp_path)


def benchmarks(path: Path, seconds: float, noise: float = 0.002) -> str:
    random = np.random.default_rng(int(1e6 * seconds))
    data = (seconds * random.lognormal(0, noise, 50)).tolist()
    one = {
        "fullname": "tests/benchmarks/test_forward.py::test_textual", "name": "test_textual", "group": "forward",
        "stats": {"median": float(np.median(data)), "data": data}, "extra_info": {"backend": "fused", "speedup": 3.0},
    }  # fmt: skip
    path.write_text(json.dumps({"machine_info": {"node": "n", "cpu": {"brand_raw": "c"}}, "benchmarks": [one]}))
    return str(path)


def test_files_of_pytest_benchmark_are_runs(tmp_path: Path) -> None:
    base, new = benchmarks(tmp_path / "a.json", 1e-3), benchmarks(tmp_path / "b.json", 1.1e-3)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    assert of(done, "fused", "latency_ms") == {"SLOWER"}
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text()[:-30])
    with pytest.raises(CompareError, match=r"a\.json: not whole"):
        compare_results(base, new, thresholds=THRESHOLDS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"benchmarks": []}, "benchmarks: .*at least 1 item"),
        ({"benchmarks": [None]}, r"benchmarks\.0: Input should be an object"),
        ({"machine_info": None}, "machine_info: Input should be an object"),
        ({"stats": {"data": [1.0]}}, r"benchmarks\.0\.stats\.median: Field required"),
        ({"stats": {"median": "x"}}, r"benchmarks\.0\.stats\.median: Input should be a valid number"),
        ({"stats": {"median": 1.0, "data": [1.0, None]}}, r"benchmarks\.0\.stats\.data\.1: Input"),
        ({"extra_info": {"ratios": 5}}, r"benchmarks\.0\.extra_info\.ratios: Input should be a valid array"),
        ({"fullname": None}, r"benchmarks\.0\.fullname: Input should be a valid string"),
    ],
)
def test_json_of_another_shape_is_refused_by_its_place(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    source = benchmarks(tmp_path / "a.json", 1e-3)
    given = json.loads(Path(source).read_text())
    (given if change.keys() & given.keys() else given["benchmarks"][0]).update(change)
    Path(source).write_text(json.dumps(given))
    with pytest.raises(CompareError, match=rf"a\.json: not whole, or no JSON of pytest-benchmark: {told}"):
        read_run(source)


def test_a_benchmark_that_stands_twice_or_took_less_than_no_time_is_refused(tmp_path: Path) -> None:
    source = benchmarks(tmp_path / "a.json", 1e-3)
    given = json.loads(Path(source).read_text())
    given["benchmarks"][0]["stats"] = {"median": -1e-3}
    (tmp_path / "b.json").write_text(json.dumps(given))
    with pytest.raises(CompareError, match="latency_ms of fused on test_textual is -1, so nothing can be compared"):
        compare_results(str(tmp_path / "b.json"), str(tmp_path / "b.json"), thresholds=THRESHOLDS)
    given["benchmarks"] *= 2
    Path(source).write_text(json.dumps(given))
    with pytest.raises(CompareError, match=r"test_forward\.py::test_textual is there twice"):
        read_run(source)


# Spellings.


def test_a_comparison_is_written_for_readers_and_programs(tmp_path: Path, rows: list[Row], made: Any) -> None:
    base, new = run(tmp_path / "a", rows, made), run(tmp_path / "b", slower(rows, 1.2), made, seed=1)
    done = compare_results(base, new, thresholds=THRESHOLDS)
    told = json.loads(done.json())
    assert told["counts"] == done.counts()
    assert told["exit_code"] == 1
    assert "NaN" not in done.json()
    assert done.markdown().count("| SLOWER |") == done.counts()["SLOWER"]
    assert done.html().count('class="SLOWER"') == done.counts()["SLOWER"]
    assert "B = 10K" in done.markdown()


# Rules.


def effect(ratio: float, half: float, p: float = 0.0) -> Effect:
    return Effect(ratio, ratio - half, ratio + half, p, "t", 30, 30)


TWO_PERCENT = Threshold(metric="latency_ms", better="lower", percent=2, test="samples", portable=False)


@pytest.mark.parametrize(
    ("seen", "q", "expected"),
    [
        (effect(1.0, 0.01), 0.5, "SAME"),
        (effect(1.01, 0.005), 0.0, "SAME"),  # established, and too small to matter
        (effect(1.0, 0.05), 0.5, "UNDECIDED"),
        (effect(1.05, 0.01), 0.5, "UNDECIDED"),  # large, but the test does not find it
        (effect(1.019, 0.01), 0.0, "UNDECIDED"),  # established, perhaps beyond the threshold
        (effect(1.05, 0.06), 0.0, "UNDECIDED"),  # the interval holds 1
        (effect(1.05, 0.01), 0.0, "SLOWER"),
        (effect(0.95, 0.01), 0.0, "FASTER"),
    ],
)
def test_decisions_follow_the_rules(seen: Effect, q: float, expected: str) -> None:
    assert decide_sampled(seen, q, TWO_PERCENT, 0.01, None)[0] == expected


@pytest.mark.parametrize("seen", [effect(1.0, 0.01), effect(1.05, 0.01), effect(0.95, 0.01)])
@pytest.mark.parametrize("sides", [(5, 30), (30, 5)])
def test_fewer_than_six_samples_on_a_side_decide_nothing(seen: Effect, sides: tuple[int, int]) -> None:
    few = replace(seen, base_count=sides[0], new_count=sides[1])
    decision, why = decide_sampled(few, 0.0, TWO_PERCENT, 0.01, None)
    assert (decision, why.split(",")[0]) == ("UNDECIDED", "fewer than 6 samples")


def test_a_metric_that_should_rise_is_judged_the_other_way() -> None:
    rising = TWO_PERCENT.model_copy(update={"better": "higher"})
    assert decide_sampled(effect(1.05, 0.01), 0.0, rising, 0.01, None)[0] == "FASTER"


@pytest.mark.parametrize(
    ("base", "new", "expected"), [(1e-4, -1e-4, "SAME"), (1e-4, -9e-4, "SLOWER"), (-9e-4, 0.0, "FASTER")]
)
def test_a_difference_from_the_reference_is_best_near_zero(base: float, new: float, expected: str) -> None:
    delta = Threshold(metric="delta", better="nearer_zero", absolute=2e-4, test="exact", portable=True)
    assert decide_exact(base, new, delta)[0] == expected


def test_the_last_threshold_that_fits_counts(thresholds: Thresholds) -> None:
    forward = {t.metric: t for t in thresholds.of("forward")}
    smoke = {t.metric: t for t in thresholds.of("smoke")}
    assert forward["latency_ms"].percent == 2.0
    assert smoke["latency_ms"].percent == 25.0
    assert forward["peak_extra_bytes"] == smoke["peak_extra_bytes"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('metric = "speedup"', 'metric = "speed"', r"thresholds\.1: .*'speed' is no column of numbers"),
        ('metric = "speedup"', 'metric = "backend"', r"thresholds\.1: .*'backend' is no column of numbers"),
        ('test = "samples"', 'test = "ratios"', r"thresholds\.0: .*'ratios' compares speedup alone; latency_ms needs"),
        ('better = "lower"', 'better = "nearer_zero"', r"thresholds\.0: .*none is nearer to zero"),
        ("percent = 2.0", "percent = inf", r"thresholds\.0\.percent: Input should be a finite number"),
        ("host_moved_percent = 5.0", "host_moved_percent = nan", "host_moved_percent: Input should be a finite"),
    ],
)
def test_a_mistake_in_the_thresholds_is_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "t.toml"
    assert old in THRESHOLDS.read_text()
    path.write_text(THRESHOLDS.read_text().replace(old, new, 1))
    with pytest.raises(ReportError, match=rf"t\.toml: {told}"):
        read_thresholds(path)


def test_no_threshold_and_text_that_is_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("false_discovery_rate = 0.1\nconfidence = 0.9\ninterleaved_percent = 1\nthresholds = []\n")
    with pytest.raises(ReportError, match=r"t\.toml: thresholds: .*nothing would be compared"):
        read_thresholds(path)
    path.write_bytes(b"# \xff")
    with pytest.raises(ReportError, match=r"t\.toml: byte 2 is not UTF-8"):
        read_thresholds(path)


# Statistics, on frozen samples.

FROZEN = ([1.00, 1.02, 0.99, 1.01, 1.03, 0.98, 1.00, 1.02], [1.10, 1.12, 1.09, 1.11, 1.13, 1.08, 1.10, 1.12])


def test_mann_whitney_on_samples_without_overlap() -> None:
    """Exact distribution: two of C(16, 8) orders are as extreme; ties among these samples make scipy approximate."""
    seen = independent_effect(range(1, 9), range(9, 17))
    assert seen.p_value == pytest.approx(2 / math.comb(16, 8))


def test_a_ratio_of_medians_lies_within_its_interval() -> None:
    seen = independent_effect(*FROZEN)
    assert seen.ratio == pytest.approx(1.105 / 1.005, rel=0.01)
    assert seen.low <= seen.ratio <= seen.high


def test_pairs_cancel_a_drift_that_hides_the_difference_from_independent_samples() -> None:
    drift = np.linspace(1, 2, 40)
    base, new = drift, 1.03 * drift * (1 + 1e-4 * np.cos(np.arange(40)))
    assert paired_effect(base.tolist(), new.tolist()).p_value < 1e-6
    assert independent_effect(base.tolist(), new.tolist()).p_value > 0.05


def test_wilcoxon_equals_scipys_value_on_frozen_pairs() -> None:
    """All 8 pairs rise: of 2^8 signs two are as extreme."""
    base = [1.0] * 8
    new = [1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08]
    assert paired_effect(base, new).p_value == pytest.approx(2 / 2**8)


def test_false_discoveries_are_controlled_over_all_tests() -> None:
    """Benjamini & Hochberg by hand: p·m/rank, made monotone; what was not tested does not count."""
    assert adjusted([0.01, 0.04, 0.03, math.nan]) == pytest.approx([0.03, 0.04, 0.04, math.nan], nan_ok=True)
    assert adjusted([]) == []


def test_equal_samples_are_no_difference() -> None:
    for seen in (independent_effect([1.0] * 5, [1.0] * 5), paired_effect([1.0] * 5, [1.0] * 5)):
        assert (seen.ratio, seen.p_value) == (1.0, 1.0)


@pytest.mark.parametrize("bad", [[1.0], [1.0, 0.0], [1.0, math.nan], [1.0, -1.0]])
def test_samples_that_are_no_times_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="base:"):
        independent_effect(bad, [1.0, 2.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=12), st.floats(0.01, 100))
def test_scaling_both_runs_changes_no_ratio(values: list[float], factor: float) -> None:
    other = [1.5 * v for v in values]
    one = independent_effect(values, other)
    scaled = independent_effect([factor * v for v in values], [factor * v for v in other])
    assert scaled.ratio == pytest.approx(one.ratio)


def test_more_samples_are_needed_the_wider_the_interval() -> None:
    narrow, wide = samples_needed(effect(1.0, 0.03), 0.02), samples_needed(effect(1.0, 0.06), 0.02)
    assert narrow is not None
    assert wide is not None
    assert narrow == math.ceil(30 * (0.03 / 0.02) ** 2)
    assert wide == pytest.approx(30 * 9, abs=1)
    assert samples_needed(effect(1.02, 0.01), 0.02) is None


def test_clopper_pearson_intervals() -> None:
    """0 of 300: the upper 95 % bound is 1 − 0.025^(1/300)."""
    seen = rate(0, 300)
    assert (seen.rate, seen.low) == (0.0, 0.0)
    assert seen.high == pytest.approx(1 - 0.025 ** (1 / 300))
    with pytest.raises(ValueError, match="is no rate"):
        rate(1, 0)


def test_interleaved_runs_of_one_build_raise_no_alarm_and_an_injected_loss_is_found(thresholds: Thresholds) -> None:
    """The audit in small: 100 comparisons of a build with itself; then 5 % more time in one of them."""
    random = np.random.default_rng(0)

    def pairs(factor: float) -> list[tuple[str, list[float], list[float]]]:
        drift = random.lognormal(0, 0.01, (100, 30))
        return [
            (
                f"cell {i}",
                (d * random.lognormal(0, 0.005, 30)).tolist(),
                (factor * d * random.lognormal(0, 0.005, 30)).tolist(),
            )
            for i, d in enumerate(drift)
        ]

    same = decide_interleaved(pairs(1.0), thresholds)
    assert sum(one.decision in ("FASTER", "SLOWER") for one in same) == 0
    found = decide_interleaved(pairs(1.05), thresholds)
    assert sum(one.decision == "SLOWER" for one in found) >= 95


# Steps.


def test_a_step_is_found_where_it_is_and_an_outlier_is_none() -> None:
    random = np.random.default_rng(1)
    level = np.concatenate([np.full(12, 3.0), np.full(10, 2.8)]) * random.lognormal(0, 0.004, 22)
    assert steps(level.tolist()) == [12]
    flat = 3.0 * random.lognormal(0, 0.004, 20)
    flat[7] *= 1.5
    assert steps(flat.tolist()) == []


def test_a_slow_drift_of_small_losses_becomes_a_step() -> None:
    drift = [3.0 * 0.996**i for i in range(30)]
    assert len(steps(drift)) >= 1


def test_short_or_constant_series_have_no_steps() -> None:
    assert steps([]) == []
    assert steps([1.0]) == []
    assert steps([2.0] * 15) == []
