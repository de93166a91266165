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


def test_a_quantised_backend_is_charged_its_own_bytes_and_unit() -> None:
    """INT8 documents are one byte an element and their scales; the products are the int8 unit's."""
    from maxsim_bench.backends import registry
    from maxsim_bench.run.work import work_served

    cell = Cell(experiment="t", gpu="cpu", op="forward", Nq=2, B=10, Lq=4, Ld=30, d=16, dtype="fp16", layout="dense")
    given, token, document = (
        work_served(cell, registry.get(name)) for name in ("fused", "fused_int8", "fused_int8_doc")
    )
    assert given == work_of(cell)
    assert (token.unit, document.unit) == ("int8", "int8")
    assert token.flops == given.flops
    assert given.bytes_min - token.bytes_min == 10 * 30 * 16 * 2 - (10 * 30 * 16 + 4 * 10 * 30)
    assert token.bytes_min - document.bytes_min == 4 * (10 * 30 - 10)
