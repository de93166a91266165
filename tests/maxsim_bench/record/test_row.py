"""A record holds every axis and field, and only what writing a row gives is read back as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.ceilings import Binding
from maxsim_bench.record.row import MEASURED, Row

MakeRow = Callable[..., Row]


def test_the_columns_are_the_hash_every_axis_and_every_field(row: MakeRow) -> None:
    assert list(row().to_record()) == Row.columns()
    assert set(Row.columns()) == {"cell_hash", "gpu_name"} | set(Cell.model_fields) | set(Row.model_fields) - {"cell"}
    assert len(Row.columns()) == len(set(Row.columns()))


@pytest.mark.parametrize("name", MEASURED)
def test_a_failed_row_holds_no_measurement(row: MakeRow, name: str) -> None:
    value = "compute" if name == "ceiling" else 1
    assert getattr(row(**{name: value}), name) == value
    with pytest.raises(ValueError, match=f"'oom' holds no measurement, but {name} is filled"):
        row(status="oom", **{name: value})


def test_the_binding_ceiling_is_one_of_those_that_are_measured(row: MakeRow) -> None:
    for name in get_args(Binding):
        assert row(ceiling=name).ceiling == name
    with pytest.raises(ValueError, match="ceiling"):
        row(ceiling="disk")


def test_a_failed_row_says_why(row: MakeRow) -> None:
    with pytest.raises(ValueError, match="needs an `error`"):
        row(status="timeout", error=None)


def test_a_row_that_is_ok_has_a_time_where_its_cell_is_timed(row: MakeRow) -> None:
    assert row(latency_ms=None).latency_ms is None  # what is not timed: rankings, gradients
    timed = row(cell=row().cell.model_copy(update={"timing_policy": "cold_l2"}))
    record = {k: "" if v is None else str(v) for k, v in timed.to_record().items()}
    assert Row.from_record(record) == timed
    with pytest.raises(ValueError, match="'ok' of a cell that is timed needs latency_ms"):
        Row.from_record(record | {"latency_ms": ""})


@pytest.mark.parametrize("text", ["2.", ".5", "1_000", " 1.0", "1,0", "0x1", "1e", "2.5.1", "None"])
def test_only_a_number_as_python_writes_it_is_one(row: MakeRow, text: str) -> None:
    record = {k: "" if v is None else str(v) for k, v in row().to_record().items()}
    with pytest.raises(ValueError, match=r"latency_ms is .* which is no float"):
        Row.from_record(record | {"latency_ms": text})
    with pytest.raises(ValueError, match=r"samples is .* which is no int"):
        Row.from_record(record | {"samples": text})


@pytest.mark.parametrize("name", ["samples", "peak_extra_bytes", "order"])
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_whole_number_beyond_every_float_is_refused_in_one_line(row: MakeRow, name: str, digits: int) -> None:
    record = {k: "" if v is None else str(v) for k, v in row().to_record().items()}
    assert Row.from_record(record | {name: str(2**62)}).samples
    with pytest.raises(ValueError, match=rf"^{name} is 9{{20}}…, a number of {digits} digits"):
        Row.from_record(record | {name: "9" * digits})


def test_rows_with_nan_in_the_same_place_are_the_same(row: MakeRow) -> None:
    assert row(max_abs_err=float("nan")).same_as(row(max_abs_err=float("nan")))
    assert not row(max_abs_err=1.0).same_as(row(max_abs_err=2.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("latency_ms", bad) for bad in (-1.0, 0.0, float("nan"), float("inf"))),
        *(("speedup", bad) for bad in (-1.0, 0.0, float("nan"), float("inf"))),
        ("samples", 0),
        ("peak_extra_bytes", -1),
        ("input_bytes", -1),
        ("tflops", float("nan")),
        ("extra", "{'a': 1}"),
        ("extra", "[1]"),
        pytest.param("extra", '{"a":' * 10_000, id="deep"),
        pytest.param("extra", f'{{"a": [{"9" * 400}]}}', id="beyond every float"),
        ("measured_at", "yesterday"),
        ("measured_at", "2026-01-02T08:34:05+05:30"),
    ],
)
def test_what_no_measurement_gives_is_refused(row: MakeRow, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is "):
        row(**{name: value})


@pytest.mark.parametrize("at", ["2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05"])
def test_a_time_is_in_utc_said_or_not(row: MakeRow, at: str) -> None:
    assert row(measured_at=at).measured_at == at


def test_zero_bytes_are_a_measurement(row: MakeRow) -> None:
    assert row(peak_extra_bytes=0, prepare_bytes=0, extra='{"a": 1}').prepare_bytes == 0
