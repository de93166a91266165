"""Samples of documents, and whether inputs were written to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from maxsim_bench.backends.base import Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.check import ResultError, checksum, draw, results, select


def test_a_sample_is_sorted_distinct_reproducible_and_no_larger_than_asked() -> None:
    sample = draw(1000, 20, seed=5)
    assert sample == sorted(set(sample)) == draw(1000, 20, seed=5)
    assert len(sample) == 20
    assert sample[:4] == [0, 1, 2, 3]
    assert sample[-4:] == [996, 997, 998, 999]
    assert draw(5, 20, seed=0) == [0, 1, 2, 3, 4]


def test_packed_documents_are_selected_whole(make_cell: Callable[..., Cell]) -> None:
    D = torch.arange(12.0).view(6, 2)
    offsets = torch.tensor([0, 1, 3, 3, 6])
    inputs = Inputs(torch.ones(1, 2, 2), D, d_lengths=offsets.diff().int(), cu_seqlens=offsets)
    part = select(make_cell(layout="packed", B=4), inputs, [1, 2, 3])
    assert part.cu_seqlens is not None
    assert part.cu_seqlens.tolist() == [0, 2, 2, 5]
    assert torch.equal(part.D, D[1:6])


def test_pairs_take_their_queries_along(make_cell: Callable[..., Cell]) -> None:
    inputs = Inputs(torch.arange(8.0).view(4, 1, 2), torch.arange(8.0).view(4, 1, 2))
    part = select(make_cell(pairing="pairs"), inputs, [0, 3])
    assert torch.equal(part.Q, part.D)
    assert part.Q.shape == (2, 1, 2)


def test_a_checksum_by_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widening a corpus at once takes four times its size, so it is summed a block of rows at a time."""
    x = torch.randn(7, 5, 16).half()
    whole = checksum(Inputs(x, x))
    monkeypatch.setattr("maxsim_bench.run.check._SUMMED_ROWS", 4)
    assert checksum(Inputs(x, x)) == whole


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_checksum_sees_changes_and_exchanged_rows(dtype: torch.dtype) -> None:
    x = torch.randn(7, 5, 3).to(dtype)
    before = checksum(Inputs(x, x.clone()))
    assert before == checksum(Inputs(x.clone(), x.clone()))
    swapped = x[torch.tensor([1, 0, 2, 3, 4, 5, 6])]
    assert before != checksum(Inputs(x, swapped))
    changed = x.clone()
    changed[3, 2, 1] += 1
    assert before != checksum(Inputs(x, changed))


def test_an_output_that_is_no_tensor_is_refused_by_name() -> None:
    with pytest.raises(ResultError, match="returns NoneType"):
        results(None)
    assert len(results((torch.ones(2), torch.ones(2, dtype=torch.int64)))) == 1
