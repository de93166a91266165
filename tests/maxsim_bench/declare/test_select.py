"""Filters compare by the type of the axis and say what is wrong with them."""

from __future__ import annotations

import pytest

from maxsim_bench.declare.experiment import AXES, DeclarationError, Experiment
from maxsim_bench.declare.select import parse_where, select

PLAN = Experiment.model_validate(
    {
        "name": "tiny", "title": "t", "backends": ["eager", "fused"],
        "axes": {"Lq": [8, 32, 128], "dtype": ["fp16", "fp32"], "chunk": ["none", 4], "memory_cap": ["none", "40GB"]},
        "leave_out": [{"when": {"Lq": 8}, "backends": "fused", "why": "w"}],
    }
).plan("h200")  # fmt: skip

NEITHER = "compares with neither a whole number nor an axis."


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
        (["Lq>=0_032"], 16),
        (["memory_cap>=40GB"], 12),
        (["memory_cap>Lq"], 12),
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
        parse_where(["Lq", "lq=3", "Lq=x", "dtype>fp16", "dtype=fp61", "memory_cap<none", "Lq>=ld", "Lq>8,16", "Lq>=0"])
    assert caught.value.problems == [
        "--where Lq: no filter. Write AXIS=VALUE, AXIS=ONE,OTHER or AXIS>=NUMBER.",
        "--where lq=3: unknown axis 'lq'. Did you mean 'Lq'?",
        "--where Lq=x: Lq = x, but input should be a valid integer.",
        f"--where dtype>fp16: '> fp16' {NEITHER} Choose from {', '.join(sorted(AXES))}.",
        "--where dtype=fp61: dtype = fp61, but input should be 'fp16', 'bf16' or 'fp32'.",
        "--where memory_cap<none: < needs one size.",
        f"--where Lq>=ld: '>= ld' {NEITHER} Did you mean 'Ld'?",
        f"--where Lq>8,16: '> 8,16' {NEITHER} Choose from {', '.join(sorted(AXES))}.",
        "--where Lq>=0: '>= 0': 0 never holds: input should be greater than or equal to 1.",
    ]
    with pytest.raises(DeclarationError) as caught:
        parse_where(["variant.drawn=0", "variant.loss!=a=b"])
    assert caught.value.problems == [
        "--where variant.drawn=0: variant.drawn = 0, but a number of documents is a whole number, at least 1.",
        "--where variant.loss!=a=b: variant.loss = a=b, but a variant is a word or a number without ';' and '='.",
    ]


@pytest.mark.parametrize("where", ["Lq>dtype", "layout<=Lq", "dtype<layout", "variant.loss>Lq", "variant.loss>3"])
def test_axes_that_are_no_whole_numbers_are_not_put_in_order(where: str) -> None:
    with pytest.raises(DeclarationError, match=rf"^--where {where}: .* compares whole numbers, and \S+ is none\. "):
        parse_where([where])
