"""Operations and compulsory bytes of a cell, against figures worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.work import unit_of, work_of


def test_every_query_meets_every_document(make_cell: Callable[..., Cell]) -> None:
    work = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8, dtype="fp16"))
    assert work.flops == 2 * 2 * 3 * 4 * 5 * 8
    assert work.bytes_min == 2 * 4 * 8 * 2 + 3 * 5 * 8 * 2 + 2 * 3 * 4
    assert work.pairs == 6


def test_only_real_tokens_count(make_cell: Callable[..., Cell]) -> None:
    work = work_of(make_cell(Nq=1, B=3, Lq=4, Ld=5, d=8, dtype="fp32", layout="masked"), [1, 0, 5])
    assert work.flops == 2 * 4 * 6 * 8
    assert work.bytes_min == 4 * 8 * 4 + 6 * 8 * 4 + 3 * 4


def test_a_search_reads_the_corpus_and_writes_k_results(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(op="search", k=2, Nq=2, B=3, Lq=4, Ld=5, d=8, dtype="fp16")
    assert work_of(cell).bytes_min == 2 * 4 * 8 * 2 + 3 * 5 * 8 * 2 + 2 * 2 * 12
    coded = make_cell(op="search", k=2, Nq=2, B=3, Lq=4, Ld=5, d=8, dtype="fp16", quantiser="int8_per_token")
    assert work_of(coded).bytes_min == 2 * 4 * 8 * 2 + 3 * 5 * 8 + 2 * 2 * 12


def test_pairs_and_candidates_meet_once(make_cell: Callable[..., Cell]) -> None:
    pairs = work_of(make_cell(Nq=3, B=3, Lq=4, Ld=5, d=8, pairing="pairs"))
    assert (pairs.pairs, pairs.flops) == (3, 2 * 3 * 4 * 5 * 8)
    candidates = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8, pairing="candidates"))
    assert (candidates.pairs, candidates.flops) == (6, 2 * 6 * 4 * 5 * 8)


def test_a_training_step_adds_sparse_gradients_and_writes_both(make_cell: Callable[..., Cell]) -> None:
    forward = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8))
    step = work_of(make_cell(Nq=2, B=3, Lq=4, Ld=5, d=8, op="training_step"))
    assert step.flops - forward.flops == 4 * 6 * 4 * 8
    assert step.bytes_min - forward.bytes_min == (2 * 4 + 3 * 5) * 8 * 4


@pytest.mark.parametrize(
    ("axes", "unit"),
    [
        ({"dtype": "bf16"}, "bf16"),
        ({"dtype": "fp32"}, "fp32"),
        ({"dtype": "fp32", "precision": "tf32"}, "tf32"),
        ({"dtype": "fp16", "quantiser": "int8_per_token"}, "int8"),
    ],
)
def test_the_unit_follows_the_operands(make_cell: Callable[..., Cell], axes: dict[str, str], unit: str) -> None:
    assert unit_of(make_cell(**axes)) == unit


def test_a_cell_without_sizes_has_no_work(make_cell: Callable[..., Cell]) -> None:
    with pytest.raises(ValueError, match="B is not set"):
        work_of(make_cell(B=None))
