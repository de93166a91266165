"""Counted traffic: what was counted, and when it cannot be the traffic of the call that was timed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from maxsim_bench.declare.estimate import known_gpus
from maxsim_bench.record.row import Row
from maxsim_bench.report import counted


def a_row(made: Any, *, gigabytes: object, milliseconds: float = 1.0, **update: Any) -> Row:
    row = made.modelled(made.cell("traffic", Lq=128, Ld=1024), "fused")
    extra = json.dumps({"hbm_gb_counted": gigabytes})
    return row.model_copy(update={"extra": extra, "latency_ms": milliseconds, **update})


def test_the_bound_is_the_data_sheet_of_the_rows_card(made: Any) -> None:
    """What is counted at that very rate can be; nothing is known of a card that no data sheet is at hand of."""
    most = known_gpus()["h200"].bandwidth_gbs * 1e-3  # of a millisecond
    assert counted.refuted(a_row(made, gigabytes=most)) is None
    told = counted.refuted(a_row(made, gigabytes=most * 1.001))
    assert told is not None
    assert told.endswith("another launch was counted than timed")
    other = a_row(made, gigabytes=most * 1.001)
    assert counted.refuted(other.model_copy(update={"cell": other.cell.model_copy(update={"gpu": "b300"})})) is None


def test_a_call_reads_all_of_its_inputs(made: Any) -> None:
    inputs = a_row(made, gigabytes=0.1).input_bytes
    assert inputs
    assert counted.refuted(a_row(made, gigabytes=inputs / 1e9)) is None
    assert "not all of it was counted" in (counted.refuted(a_row(made, gigabytes=0.999 * inputs / 1e9)) or "")
    assert counted.refuted(a_row(made, gigabytes=1e-6, input_bytes=None)) is None


@pytest.mark.parametrize("gigabytes", [None, "none"])
def test_what_was_not_counted_is_not_refuted(made: Any, gigabytes: object) -> None:
    row = a_row(made, gigabytes=gigabytes)
    assert (counted.traffic_gb(row), counted.traffic_gbs(row), counted.refuted(row)) == (None, None, None)
    assert counted.traffic_gb(row.model_copy(update={"extra": None})) is None


def test_the_rate_is_bytes_over_the_median_time(made: Any) -> None:
    assert counted.traffic_gbs(a_row(made, gigabytes=0.5, milliseconds=0.25)) == pytest.approx(2000)
