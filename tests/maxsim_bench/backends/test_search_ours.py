"""A corpus that repeats the documents that were drawn is searched, and judged, as if each had been drawn by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import drawn_documents
from maxsim_bench.run.cell_inputs import draw_inputs
from maxsim_bench.run.truth import truth_of

CELL = Cell(
    experiment="t", gpu="cpu", op="search", Nq=3, B=300, Lq=5, Ld=7, d=16, dtype="fp32", layout="dense", k=40,
    pairing="all", inputs="random",
)  # fmt: skip


def repeating(drawn: int) -> Cell:
    return CELL.model_copy(update={"variant": f"drawn={drawn};host=pageable"})


def digits(*shape: int) -> torch.Tensor:
    """Small integers: every score is exact, and many are equal."""
    return torch.randint(-1, 2, shape).float()


@pytest.mark.parametrize("name", ["search", "search_int8"])
@pytest.mark.parametrize("drawn", [1, 100, 130, 299, 300])
def test_a_repeated_corpus_is_searched_like_one_that_holds_every_copy(name: str, drawn: int) -> None:
    backend, cell = registry.get(name), repeating(drawn)
    inputs = draw_inputs(cell, "cpu", 0)
    assert len(inputs.D) == drawn_documents(cell) == drawn
    inputs = replace(inputs, Q=digits(3, 5, 16), D=digits(*inputs.D.shape))
    copies = replace(inputs, D=torch.cat([inputs.D] * (300 // len(inputs.D) + 1))[:300])
    scores, numbers = cast("Any", backend.prepare(cell, inputs)())
    expected, places = cast("Any", backend.prepare(CELL, copies)())
    assert torch.equal(scores, expected)
    assert torch.equal(numbers, places), "of equal scores the lower number first"


@pytest.mark.parametrize(("drawn", "read"), [(100, 100), (100, 299), (130, 130), (130, 260)])
def test_who_leaves_a_part_of_a_repeated_corpus_out_is_wrong(drawn: int, read: int) -> None:
    """The last document is a copy of what every query looks for."""
    cell, search = repeating(drawn), registry.get("search")
    inputs = draw_inputs(cell, "cpu", 0)
    inputs.Q[:] = inputs.Q[0]
    inputs.D[299 % drawn, :5] = inputs.Q[0]
    known = truth_of(cell, inputs, registry.get("reference"))
    assert known.judge(search.prepare(cell, inputs)(), 1e-5).wrong is None
    short = search.prepare(cell.model_copy(update={"B": read}), inputs)
    assert "better documents were missed" in str(known.judge(short(), 1e-5).wrong)


@pytest.mark.parametrize(("k", "caught"), [(10, False), (250, True)])
def test_as_many_results_as_ten_documents_have_copies_tell_that_a_part_was_not_read(k: int, caught: bool) -> None:
    """25 copies of each document: the best ten are of one, and any ten of its copies are as good."""
    cell = repeating(200).model_copy(update={"B": 5000, "k": k})
    inputs = draw_inputs(cell, "cpu", 0)
    known = truth_of(cell, inputs, registry.get("reference"))
    most = registry.get("search").prepare(cell.model_copy(update={"B": 4800}), inputs)
    assert (known.judge(most(), 1e-5).wrong is not None) == caught


@pytest.mark.parametrize(("name", "layout"), [
    ("search_int8_rescored", "dense"), ("search", "packed"), ("search", "masked"), ("search_int8", "packed"),
])  # fmt: skip
def test_what_cannot_be_repeated_is_refused(name: str, layout: str) -> None:
    backend, other = (
        registry.get(name),
        {"layout": layout, "length_distribution": None if layout == "dense" else "uniform:1:7"},
    )
    assert "variant drawn" in str(backend.supports(repeating(130).model_copy(update=other), "cpu"))
    assert backend.supports(CELL.model_copy(update=other), "cpu") is None
