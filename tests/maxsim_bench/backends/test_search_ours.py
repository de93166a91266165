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
@pytest.mark.parametrize("drawn", [1, 100, 130, 299, 300, 500])
def test_a_repeated_corpus_is_searched_like_one_that_holds_every_copy(name: str, drawn: int) -> None:
    backend, cell = registry.get(name), repeating(drawn)
    inputs = draw_inputs(cell, "cpu", 0)
    assert len(inputs.D) == drawn_documents(cell) == min(drawn, 300)
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


def test_what_is_scored_again_cannot_be_a_repeated_block() -> None:
    rescored = registry.get("search_int8_rescored")
    assert "repeated block" in str(rescored.supports(repeating(130), "cpu"))
    assert rescored.supports(repeating(300), "cpu") is None
