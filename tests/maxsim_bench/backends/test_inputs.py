"""Inputs follow from the cell alone, and padding holds what a careless backend would notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maxsim_bench.backends.inputs import InputError, drawn_bytes, make_inputs, padded_documents, unit_vectors
from maxsim_bench.declare.cell import Cell

BASE = Cell(experiment="t", gpu="cpu", op="forward", Nq=2, B=5, Lq=3, Ld=11, d=8, dtype="fp16", layout="dense")


def test_the_same_cell_and_set_give_the_same_tensors_and_another_set_others() -> None:
    """A row can be measured again on the very tensors it was measured on."""
    first, again, other = make_inputs(BASE, "cpu"), make_inputs(BASE, "cpu"), make_inputs(BASE, "cpu", set_index=1)
    assert torch.equal(first.Q, again.Q)
    assert torch.equal(first.D, again.D)
    assert not torch.equal(first.D, other.D)


def test_tokens_are_unit_vectors_however_they_were_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalising block by block is invisible in the result's norm."""
    monkeypatch.setattr("maxsim_bench.backends.inputs._BLOCK_ELEMENTS", 64)
    x = unit_vectors((7, 13, 24), torch.float32, "cpu", torch.Generator().manual_seed(1))
    assert torch.allclose(x.norm(dim=-1), torch.ones(7, 13), atol=1e-6)


def test_masked_documents_hold_large_garbage_in_their_padding() -> None:
    """A backend that reads padding wins maxima it must not win."""
    inputs = make_inputs(BASE.model_copy(update={"layout": "masked"}), "cpu")
    assert inputs.d_lengths is not None
    padding = torch.arange(11) >= inputs.d_lengths[:, None]
    assert padding.any()
    assert (inputs.D[padding] == 9).all()
    assert (inputs.D[~padding].abs() <= 1).all()


def test_packed_rows_pad_back_to_the_same_documents() -> None:
    """Backends without packed input are given the same tokens."""
    inputs = make_inputs(BASE.model_copy(update={"layout": "packed"}), "cpu")
    D, lengths = padded_documents(inputs, 11)
    assert lengths is not None
    assert inputs.cu_seqlens is not None
    for i, (start, end) in enumerate(zip(inputs.cu_seqlens[:-1], inputs.cu_seqlens[1:], strict=True)):
        assert torch.equal(D[i, : lengths[i]], inputs.D[start:end])


@pytest.mark.parametrize("changes", [
    {}, {"layout": "masked"}, {"layout": "packed"}, {"layout": "packed", "length_distribution": "lognormal:1:1"},
    {"pairing": "candidates"}, {"pairing": "pairs", "B": 2}, {"variant": "corpus=9"}, {"dtype": "fp32"},
    {"variant": "reference=unrounded"},
])  # fmt: skip
@pytest.mark.parametrize("index", [0, 1])
def test_the_bytes_that_are_drawn_are_known_before(changes: dict[str, Any], index: int) -> None:
    cell = BASE.model_copy(update=changes)
    inputs = make_inputs(cell, "cpu", index)
    assert drawn_bytes(cell, index) == sum(t.nbytes for t in (inputs.Q, inputs.D, *(inputs.exact or ())))


def test_a_missing_axis_is_named() -> None:
    """The message says which axis the inputs need."""
    with pytest.raises(InputError, match="Lq"):
        make_inputs(BASE.model_copy(update={"Lq": None}), "cpu")
