"""What a row says beside its time: the rate as a share of the library's own product in the same run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.ceilings import Ceilings
from maxsim_bench.run.rows import _share_of_library
from maxsim_bench.run.work import work_of


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
