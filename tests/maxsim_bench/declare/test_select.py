"""Filters compare by the type of the axis and say what is wrong with them."""

from __future__ import annotations

import pytest

from maxsim_bench.declare.experiment import DeclarationError, Experiment
from maxsim_bench.declare.select import parse_where, select

PLAN = Experiment.model_validate(
    {
        "name": "tiny", "title": "t", "backends": ["eager", "fused"],
        "axes": {"Lq": [8, 32, 128], "dtype": ["fp16", "fp32"], "chunk": ["none", 4], "memory_cap": ["none", "40GB"]},
        "leave_out": [{"when": {"Lq": 8}, "backends": "fused", "why": "w"}],
    }
).plan("h200")  # fmt: skip


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ([], 24),
        (["Lq=32"], 8),
        (["Lq=32,128"], 16),
        (["Lq >= 32", "Lq<128"], 8),
        (["Lq!=32", "dtype=fp16"], 8),
        (["chunk=none", "memory_cap=40GB"], 6),
        (["Lq=1024"], 0),
        (["chunk<Lq"], 12),
        (["chunk>Lq"], 0),
    ],
)
def test_a_filter_keeps_the_cells_that_meet_all_conditions(where: list[str], count: int) -> None:
    assert len(select(PLAN, parse_where(where))) == count


def test_a_backend_filter_drops_the_cells_it_does_not_measure() -> None:
    kept = select(PLAN, [], ["fused"])
    assert len(kept) == 16
    assert {p.backends for p in kept} == {("fused",)}


def test_every_wrong_filter_is_told_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_where(["Lq", "lq=3", "Lq=x", "dtype>fp16", "dtype=fp61", "Lq>dtype", "layout<=Nq"])
    assert caught.value.problems == [
        "--where Lq: no filter. Write AXIS=VALUE, AXIS=ONE,OTHER or AXIS>=NUMBER.",
        "--where lq=3: unknown axis 'lq'. Did you mean 'Lq'?",
        "--where Lq=x: Lq = x, but input should be a valid integer.",
        "--where dtype>fp16: > needs one number or axis.",
        "--where dtype=fp61: dtype = fp61, but input should be 'fp16', 'bf16' or 'fp32'.",
        "--where Lq>dtype: '> dtype' compares whole numbers, and dtype is none. Write a value, or a list of values.",
        "--where layout<=Nq: '<= Nq' compares whole numbers, and layout is none. Write a value, or a list of values.",
    ]
