"""Samples of documents, and whether inputs were written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from maxsim_bench.backends.base import Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.check import (
    NoRoomError,
    ResultError,
    beside_inputs,
    checksum,
    draw,
    poison_free_memory,
    results,
    select,
)


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
    x, odd = torch.randn(7, 5, 16).half(), torch.randn(7, 5, 3).half()
    whole = checksum(Inputs(x, odd))
    monkeypatch.setattr("maxsim_bench.run.check._PIECE_BYTES", 100)
    assert checksum(Inputs(x, odd)) == whole


class _Temporaries(TorchDispatchMode):
    """Bytes of the largest tensor made while active, a sum's wider copy of its operand included."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [a for a in args if isinstance(a, torch.Tensor)]
        known = {a.untyped_storage().data_ptr() for a in given}
        made = [t for t in [out] if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in known]
        widened = [8 * a.numel() for a in given if "sum" in str(func) and a.dtype != torch.int64]
        self.largest = max([self.largest, *(t.nbytes for t in made), *widened])
        return out


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((300_000, 4, 16), torch.float16), ((2_000_000, 3), torch.bfloat16), ((3_000_000,), torch.int32)],
)
def test_a_checksum_takes_a_mebibyte_at_a_time_whatever_the_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Beside the full inputs of a cell under a memory cap there is no room for a part of them once more."""
    x = torch.zeros(shape, dtype=dtype)
    with _Temporaries() as seen:
        checksum(Inputs(x, x))
    assert 0 < seen.largest <= 1 << 20


def test_a_part_of_a_tensor_is_summed_wherever_it_begins() -> None:
    x = torch.arange(40, dtype=torch.float16)[1:33].view(4, 8)
    assert checksum(Inputs(x, x)) != checksum(Inputs(x + 1, x))


def test_poison_that_does_not_fit_is_left_out() -> None:
    like = [torch.empty(1 << 20), torch.empty(1 << 4)]
    with _Temporaries() as seen:
        poison_free_memory(like, room=1000)
    assert seen.largest == 4 << 4


def test_memory_that_the_harness_lacks_is_told_from_a_backends() -> None:
    told = "the inputs and the reference's results do not fit: MemoryError: 5 bytes"
    with pytest.raises(NoRoomError, match=told), beside_inputs():
        raise MemoryError("5 bytes")
    with pytest.raises(ResultError), beside_inputs():
        raise ResultError("no memory is short here")


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
