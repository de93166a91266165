"""The corpus of a search lies in pinned host memory, whatever its layout."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.backends.lengths import draw_lengths
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.cell_inputs import draw_inputs, resident_bytes

CELL = Cell(
    experiment="t", gpu="h200", op="search", Nq=3, B=9000, Lq=5, Ld=60, d=24, dtype="fp16", layout="packed", k=4,
    pairing="all", length_distribution="cranfield",
)  # fmt: skip


@pytest.mark.gpu
def test_a_packed_corpus_has_the_lengths_of_its_distribution_and_unit_rows_in_pinned_memory() -> None:
    made = draw_inputs(CELL, "cuda", 0)
    lengths = draw_lengths("cranfield", 9000, seed=CELL.seed, Ld=60)
    assert made.d_lengths is not None
    assert made.cu_seqlens is not None
    assert made.d_lengths.tolist() == lengths.tolist()
    assert made.D.is_pinned()
    assert list(made.D.shape) == [int(lengths.sum()), 24] == [int(made.cu_seqlens[-1]), 24]
    assert torch.allclose(made.D.float().norm(dim=1), torch.ones(len(made.D)), atol=2e-3)
    assert resident_bytes(made, "cuda") == made.Q.nbytes
    again, other = draw_inputs(CELL, "cuda", 0), draw_inputs(CELL, "cuda", 1)
    assert torch.equal(made.D, again.D)
    assert other.D.shape != made.D.shape or not torch.equal(made.D, other.D)


def test_a_processor_searches_where_the_documents_are() -> None:
    made = draw_inputs(CELL.model_copy(update={"B": 20}), "cpu", 0)
    assert made.D.device.type == made.Q.device.type == "cpu"
    assert not made.D.is_pinned()
