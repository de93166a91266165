"""What a row says beside its time: shares of the library's own product, and of copies from host memory, in the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.ceilings import Ceilings
from maxsim_bench.measure.timer import Timing
from maxsim_bench.run.rows import _rates, _share_of_copy, _share_of_library, _share_of_starved
from maxsim_bench.run.work import Work, work_of


def ceilings(**measured: float) -> Ceilings:
    return Ceilings("cuda", {"fp16": 800.0}, 4500.0, 0.002, 0.01, all_measured=measured)


def test_the_share_is_of_the_library_and_not_of_a_faster_loop(make_cell: Callable[..., Cell]) -> None:
    work = work_of(make_cell(Nq=1, B=1000, Lq=1024, Ld=1024, d=128, dtype="fp16"))
    ms = work.flops / 380e12 * 1e3
    shares = _share_of_library(work, ceilings(matmul_fp16=760.0, mma_loop_fp16=800.0), ms)
    assert shares == {"percent_of_matmul": pytest.approx(50.0)}


def test_without_a_library_product_of_the_unit_nothing_is_said(make_cell: Callable[..., Cell]) -> None:
    work = work_of(make_cell(Nq=1, B=10, Lq=32, Ld=32, d=128, dtype="bf16"))
    assert _share_of_library(work, ceilings(matmul_fp16=760.0), 1.0) == {}
    assert _share_of_library(work, None, 1.0) == {}
    assert _share_of_library(None, ceilings(matmul_fp16=760.0), 1.0) == {}


def test_samples_that_the_host_may_have_held_up_are_counted_where_events_timed_them() -> None:
    timed = Timing("cold_l2", samples_ms=[1.0] * 8, starved=3)
    assert _share_of_starved(timed) == {"starved_samples_percent": 37.5}
    assert _share_of_starved(replace(timed, policy="host")) == {}


STREAMED = Work(flops=16e9, bytes_min=5e8, pairs=6500, unit="fp16", host_bytes=5e8)


def test_a_call_whose_documents_come_from_host_memory_is_judged_by_the_copy() -> None:
    """10 GB/s of 50: 20 %, where the read bandwidth alone would say 0.2 %."""
    card = replace(ceilings(), host_copy_gbs=50.0)
    told = _rates(STREAMED, card, 50.0)
    assert (told["percent_of_ceiling"], told["ceiling"]) == (pytest.approx(20.0), "copy")
    assert _share_of_copy(STREAMED, card, 50.0) == {"percent_of_copy": pytest.approx(20.0)}
    assert told["achieved_gbs"] == pytest.approx(10.0)


def test_documents_on_the_device_and_sessions_without_the_rate_say_nothing_of_copies() -> None:
    card = replace(ceilings(), host_copy_gbs=50.0)
    here = replace(STREAMED, host_bytes=0.0)
    assert (_rates(here, card, 50.0)["ceiling"], _share_of_copy(here, card, 50.0)) == ("memory", {})
    assert (_rates(STREAMED, ceilings(), 50.0)["ceiling"], _share_of_copy(STREAMED, ceilings(), 50.0)) == ("memory", {})
    assert _share_of_copy(STREAMED, None, 50.0) == _share_of_copy(None, card, 50.0) == {}


def test_where_products_bind_the_share_of_the_copy_stands_beside() -> None:
    card = replace(ceilings(), host_copy_gbs=50.0)
    many = replace(STREAMED, flops=16e12)
    told = _rates(many, card, 40.0)
    assert (told["percent_of_ceiling"], told["ceiling"]) == (pytest.approx(50.0), "compute")
    assert _share_of_copy(many, card, 40.0) == {"percent_of_copy": pytest.approx(25.0)}
