"""Rows as they are made follow from the samples that are kept of them; what was changed since is told, and no more."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.nvml import Conditions
from maxsim_bench.measure.timer import Timing, TimingBudget
from maxsim_bench.record.contradictions import contradictions
from maxsim_bench.record.row import Row
from maxsim_bench.run.protocol import CellRequest, Hello
from maxsim_bench.run.rows import Frame, Outcome, build_row, sample_record

CELL = Cell(
    experiment="tiny", gpu="h200", op="forward", Nq=1, B=9, Lq=2, Ld=3, d=4, dtype="fp16", timing_policy="cold_l2"
)
BACKENDS = ("eager", "fused", "chunked")


def measured(
    counts: dict[str, int] | None = None, *, seed: int = 0, clock: int = 1900, version: str = "v1"
) -> tuple[list[Row], dict[str, Any]]:
    """Rows and records of one measurement of the cell, made by what makes them of a worker's timings."""
    rng = random.Random(seed)
    timings = {}
    for place, (name, count) in enumerate((counts or dict.fromkeys(BACKENDS, 25)).items()):
        times = [rng.lognormvariate(0.0, 0.1) / (1 + place) for _ in range(count)]
        timings[name] = Timing("cold_l2", times, list(range(count)), [len(BACKENDS) * i + place for i in range(count)])
    request = CellRequest(
        cell=CELL, backends=tuple(timings), versions={n: version if n == "fused" else "v1" for n in timings},
        baseline="eager", budget=TimingBudget(), ceilings=None, fresh=False, timeout_s=1.0,
    )  # fmt: skip
    conditions = Conditions(sm_clock_mhz=[clock])
    frame = Frame(request, Hello("cuda", "NVIDIA H200", "GPU-0", {}, "env"), {}, None, None, 1, conditions)
    outcomes = {
        name: Outcome(timing=timing, baseline_timing=timings["eager"], interleaved_with=tuple(timings))
        for name, timing in timings.items()
    }
    rows = [build_row(frame, name, outcome) for name, outcome in outcomes.items()]
    return rows, {row.key: sample_record(outcomes[row.backend], conditions) for row in rows}


def changed(rows: list[Row], backend: str, **update: Any) -> list[Row]:
    """The rows with one backend's changed."""
    return [row.model_copy(update=update) if row.backend == backend else row for row in rows]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 25, 1000])
def test_what_a_worker_makes_of_its_timings_follows_from_the_samples_it_keeps(count: int) -> None:
    rows, samples = measured({"eager": count, "fused": count + 7, "chunked": max(count - 1, 2)})
    assert all(row.speedup is not None and row.latency_p20_ms and row.latency_p80_ms for row in rows)
    assert contradictions(rows, samples) == {}


@pytest.mark.parametrize("field", ["latency_ms", "latency_p20_ms", "latency_p80_ms", "speedup"])
@pytest.mark.parametrize("factor", [1 + 1e-6, 0.5])
def test_each_of_them_is_held_against_the_samples(field: str, factor: float) -> None:
    rows, samples = measured()
    row = rows[1]
    wrong = factor * getattr(row, field)
    how = {
        "latency_ms": "the median of its samples", "latency_p20_ms": "the 20 % quantile of its samples",
        "latency_p80_ms": "the 80 % quantile of its samples", "speedup": "the median of its 25 paired ratios",
    }  # fmt: skip
    found = contradictions(changed(rows, "fused", **{field: wrong}), samples)
    assert found == {row.key: f"{field} is {wrong!r}, but {how[field]} is {getattr(row, field)!r}"}


def test_rounding_is_no_contradiction() -> None:
    rows, samples = measured()
    speedup = rows[1].speedup
    assert speedup is not None
    assert contradictions(changed(rows, "fused", speedup=speedup * (1 + 1e-12)), samples) == {}


def test_everything_that_is_wrong_of_a_row_is_told_at_once() -> None:
    rows, samples = measured()
    found = contradictions(changed(rows, "fused", latency_p80_ms=9.0, speedup=9.0), samples)
    (told,) = found.values()
    assert [part.partition(" is ")[0] for part in told.split("; ")] == ["latency_p80_ms", "speedup"]


def test_samples_of_the_baseline_that_were_changed_contradict_every_ratio_to_it() -> None:
    rows, samples = measured()
    samples[rows[0].key]["ms"] = [2 * ms for ms in samples[rows[0].key]["ms"]]
    found = contradictions(rows, samples)
    assert {key: told.partition(" is ")[0] for key, told in found.items()} == {
        rows[0].key: "latency_ms", rows[1].key: "speedup", rows[2].key: "speedup",
    }  # fmt: skip


def test_a_baseline_that_took_no_turns_is_told() -> None:
    rows, samples = measured()
    found = contradictions(changed(rows, "fused", speedup_baseline="lik"), samples)
    assert found == {rows[1].key: "speedup is over lik, which took no turns with it"}


def test_a_ratio_of_one_common_round_is_none() -> None:
    rows, samples = measured()
    samples[rows[1].key]["round"] = [0, *range(100, 124)]
    assert contradictions(rows, samples) == {
        rows[1].key: f"speedup is {rows[1].speedup!r}, but its samples and its baseline's have 1 rounds in common"
    }


@pytest.mark.parametrize(
    "again",
    [{"seed": 1, "clock": 1800}, {"seed": 1}],
    ids=["under other readings", "a day later under the same readings"],
)
def test_a_baseline_that_was_measured_again_is_not_the_one_of_the_ratio(again: dict[str, Any]) -> None:
    """An older version of ours keeps its row; its baseline's key is the same, and its samples are replaced."""
    old, before = measured()
    new, after = measured(version="v2", **again)
    if "clock" not in again:
        new = [row.model_copy(update={"measured_at": "2090-01-01T00:00:00+00:00"}) for row in new]
    rows = {row.key: row for row in [*old, *new]}
    assert len(rows) == len(BACKENDS) + 1
    assert contradictions(rows.values(), before | after) == {}
    wrong = [row.model_copy(update={"speedup": 9.0}) if row.backend == "fused" else row for row in rows.values()]
    assert contradictions(wrong, before | after).keys() == {new[1].key}, "the new one is judged, by the new baseline"


@pytest.mark.parametrize(("seconds", "judged"), [(2, True), (3, False)])
def test_rows_of_one_measurement_are_written_within_seconds(seconds: int, judged: bool) -> None:
    """A processor has no readings that tell two runs apart: what is written later is taken for measured again."""
    rows, samples = measured()
    at = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    wrong = changed(rows, "fused", speedup=9.0, measured_at=(at + timedelta(seconds=seconds)).isoformat())
    wrong = changed(wrong, "eager", measured_at=at.isoformat())
    wrong = changed(wrong, "chunked", measured_at=at.isoformat())
    assert contradictions(wrong, samples).keys() == ({rows[1].key} if judged else set())


def test_an_older_row_of_the_baseline_judges_the_ratios_that_were_made_of_it() -> None:
    old, before = measured()
    later = old[0].model_copy(update={"backend_version": "v2", "measured_at": "2090-01-01T00:00:00+00:00"})
    wrong = [*changed(old, "fused", speedup=9.0), later]
    assert contradictions(wrong, before | {later.key: before[old[0].key]}).keys() == {old[1].key}


@pytest.mark.parametrize("one", [None, "2026-01-01T00:00:00"])
def test_without_a_time_in_common_a_ratio_to_another_row_is_not_judged(one: str | None) -> None:
    rows, samples = measured()
    wrong = changed(rows, "fused", speedup=9.0, measured_at=one)
    assert contradictions(wrong, samples) == {}
    own = changed(rows, "eager", speedup=9.0, measured_at=one)
    assert contradictions(own, samples).keys() == {rows[0].key}, "that to itself is 1 at any time"


@pytest.mark.parametrize(
    ("latency_ms", "record", "told"),
    [
        (2.0, {"ms": [3.0, 1.0, 2.0]}, None),
        (2.5, {"ms": [4.0, 1.0, 3.0, 2.0]}, None),
        (0.3, {"ms": [0.1 + 0.2]}, None),
        (2.0000001, {"ms": [3.0, 1.0, 2.0]}, "latency_ms is 2.0000001, but the median of its samples is 2.0"),
        (2.0, {"ms": [2.0, 4.0]}, "latency_ms is 2.0, but the median of its samples is 3.0"),
        (2.0, {"ms": []}, "latency_ms is 2.0, but of its samples there is none"),
        (2.0, {"ms": [math.nan]}, "latency_ms is 2.0, but the median of its samples is nan"),
        (2.0, {"ms": [1.0, math.inf]}, "latency_ms is 2.0, but the median of its samples is nan"),
        (2.0, {"ms": [10**400]}, "latency_ms is 2.0, but the median of its samples is inf"),
        (2.0, {"ms": [10**400, 10**400]}, "latency_ms is 2.0, but the median of its samples is inf"),
        (2.0, {"first_call_ms": 1.0}, None),
        (2.0, [1.0], None),
        (2.0, None, None),
        (2.0, {"ms": ["x"]}, None),
    ],
)
def test_a_time_without_spread_or_baseline_is_the_median_of_its_samples_or_told(
    row: Any, latency_ms: float, record: Any, told: str | None
) -> None:
    one = row(latency_ms=latency_ms)
    assert contradictions([one], {one.key: record}) == ({} if told is None else {one.key: told})


@pytest.mark.parametrize(
    ("ms", "given"),
    [([0.0] * 25, "inf"), ([10**400] * 25, "inf"), ([math.nan] * 25, "nan")],
    ids=["zero", "huge", "nan"],
)
def test_times_that_are_none_give_no_ratio(ms: list[Any], given: str) -> None:
    """Whoever computes with them refuses them; here they are told and end nothing."""
    rows, samples = measured()
    samples[rows[1].key]["ms"] = ms
    (told,) = contradictions(rows, samples).values()
    assert told.endswith(f"; speedup is {rows[1].speedup!r}, but the median of its 25 paired ratios is {given}")


def test_a_record_that_no_timer_wrote_judges_nothing() -> None:
    rows, samples = measured()
    samples[rows[0].key]["round"] = [0]
    assert contradictions(changed(rows, "fused", speedup=9.0), samples) == {}
