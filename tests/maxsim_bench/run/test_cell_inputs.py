"""The corpus of a search lies in host memory, pinned unless its cell says pageable, and is never there twice."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.backends.lengths import draw_lengths
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run import cell_inputs
from maxsim_bench.run.cell_inputs import documents_cross, draw_again, draw_inputs, fill_corpus, resident_bytes
from maxsim_bench.run.staging import Staging

CELL = Cell(
    experiment="t", gpu="h200", op="search", Nq=3, B=9000, Lq=5, Ld=60, d=24, dtype="fp16", layout="packed", k=4,
    pairing="all", length_distribution="cranfield",
)  # fmt: skip

PAGEABLE = CELL.model_copy(
    update={"layout": "dense", "length_distribution": None, "B": 5000, "Ld": 2, "d": 4, "variant": "host=pageable"}
)


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor stands in for the card, so that what is drawn for one can be looked at here."""
    monkeypatch.setattr(cell_inputs, "make_inputs", lambda cell, device, index: make_inputs(cell, "cpu", index))
    monkeypatch.setattr(cell_inputs, "Staging", lambda device: Staging("cpu"))


@pytest.mark.usefixtures("no_card")
def test_a_corpus_in_pageable_memory_is_drawn_again_in_place_with_nothing_of_the_old() -> None:
    used, fresh = draw_inputs(PAGEABLE, "cuda", 0), draw_inputs(PAGEABLE, "cuda", 1)
    assert list(used.D.shape) == [5000, 2, 4]
    before, places = used.D.clone(), [t.data_ptr() for t in used.tensors()]
    again = draw_again(used, PAGEABLE, "cuda", 1)
    assert again is not None
    assert [t.data_ptr() for t in again.tensors()] == places
    assert all(torch.equal(a, b) for a, b in zip(again.tensors(), fresh.tensors(), strict=True))
    assert not (before == again.D).all(dim=(1, 2)).any()


@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize(("free", "host", "fits"), [
    (80_000, "pageable", False), (85_000, "pageable", True), (120_000, "pinned", False),
])  # fmt: skip
def test_a_corpus_that_host_memory_has_no_room_for_is_refused_before_it_is_touched(
    monkeypatch: pytest.MonkeyPatch, free: int, host: str, fits: bool
) -> None:
    """80 kB, pinned 128 KiB: the system would grant any of them, and end the process once their pages are written."""
    monkeypatch.setattr(cell_inputs.memory, "available_bytes", lambda device: {"cpu": free}[device])
    monkeypatch.setattr(cell_inputs.memory, "release_pinned", lambda: None)
    cell = PAGEABLE.model_copy(update={"variant": f"host={host}"})
    if fits:
        assert draw_inputs(cell, "cuda", 0).D.nbytes == 80_000
        return
    with pytest.raises(MemoryError, match=r"takes 0\.0 GB of host memory, where 0\.0 GB are free"):
        draw_inputs(cell, "cuda", 0)


@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize(
    "cell", [CELL, PAGEABLE.model_copy(update={"variant": "host=pinned"})], ids=["packed", "dense"]
)
def test_pinned_memory_of_earlier_corpora_is_given_back_before_the_next_is_refused(
    monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    """torch keeps it, and the system counts it as used; no corpus is made where that does not suffice either."""
    free, released = [1000], []
    monkeypatch.setattr(cell_inputs.memory, "available_bytes", lambda device: free[0])
    monkeypatch.setattr(cell_inputs.memory, "release_pinned", lambda: released.append(1))
    with pytest.raises(MemoryError, match=r"where 0\.0 GB are free"):
        draw_inputs(cell, "cuda", 0)
    assert released == [1]
    monkeypatch.setattr(cell_inputs.memory, "release_pinned", lambda: free.append(free.pop() + (1 << 40)))
    monkeypatch.setattr(
        torch, "empty", lambda *size, pin_memory=False, empty=torch.empty, **given: empty(*size, **given)
    )
    monkeypatch.setattr(
        cell_inputs, "unit_vectors", lambda shape, dtype, device, generator: torch.ones(shape, dtype=dtype)
    )
    monkeypatch.setattr(torch, "Generator", lambda device, generator=torch.Generator: generator())
    assert draw_inputs(cell, "cuda", 0).D.numel()


@pytest.mark.parametrize(("op", "layout", "nbytes"), [
    ("forward", "dense", (5000 * 2 + 3 * 5) * 4 * 2), ("search", "dense", (5000 * 2 + 3 * 5) * 4 * 2),
    ("training_step", "packed", None),
])  # fmt: skip
def test_inputs_of_a_processors_cell_are_refused_before_they_are_drawn(
    monkeypatch: pytest.MonkeyPatch, op: str, layout: str, nbytes: int | None
) -> None:
    """What is free decides, and of packed documents what their lengths add up to, not Ld."""
    cell = PAGEABLE.model_copy(update={"op": op, "layout": layout, "variant": None})
    drawn = draw_inputs(cell, "cpu", 0)
    needed = drawn.Q.nbytes + drawn.D.nbytes
    assert nbytes in (needed, None)
    monkeypatch.setattr(cell_inputs.memory, "available_bytes", lambda device: {"cpu": needed * 1.1}[device])
    assert draw_inputs(cell, "cpu", 0).D.nbytes == drawn.D.nbytes
    monkeypatch.setattr(cell_inputs.memory, "available_bytes", lambda device: {"cpu": needed}[device])
    monkeypatch.setattr(cell_inputs, "make_inputs", lambda *_: pytest.fail("drawn"))
    with pytest.raises(MemoryError, match=r"the inputs take 0\.0 GB of host memory, where 0\.0 GB are free"):
        draw_inputs(cell, "cpu", 0)


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


def test_a_corpus_is_filled_block_by_block_with_the_documents_of_a_set() -> None:
    cell = CELL.model_copy(update={"layout": "dense", "length_distribution": None, "B": 5000, "Ld": 2, "d": 4})
    first, again, other = (torch.full((5000, 2, 4), float("nan"), dtype=torch.float16) for _ in range(3))
    for corpus, index in ((first, 0), (again, 0), (other, 1)):
        fill_corpus(corpus, cell, "cpu", index)
    assert torch.equal(first, again)
    assert not (first == other).all(dim=(1, 2)).any(), "no document is in both sets"
    assert torch.allclose(first.float().norm(dim=-1), torch.ones(5000, 2), atol=2e-3)
    assert not torch.equal(first[:904], first[4096:]), "blocks differ"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", [None, "host=pageable"])
def test_a_set_drawn_again_is_that_set_at_the_old_addresses(variant: str | None) -> None:
    cell = CELL.model_copy(update={"layout": "dense", "length_distribution": None, "variant": variant})
    used, fresh = draw_inputs(cell, "cuda", 0), draw_inputs(cell, "cuda", 1)
    assert used.D.is_pinned() == (variant is None)
    places = [t.data_ptr() for t in used.tensors()]
    again = draw_again(used, cell, "cuda", 1)
    assert again is not None
    assert [t.data_ptr() for t in again.tensors()] == places
    assert all(torch.equal(a, b) for a, b in zip(again.tensors(), fresh.tensors(), strict=True))


@pytest.mark.parametrize(
    ("changes", "device"), [({"op": "forward"}, "cuda"), ({}, "cuda"), ({"layout": "dense"}, "cpu")]
)
def test_only_a_dense_corpus_in_host_memory_is_drawn_again_in_place(changes: dict[str, str], device: str) -> None:
    cell = CELL.model_copy(update={"B": 20})
    used = draw_inputs(cell, "cpu", 0)
    assert draw_again(used, cell.model_copy(update=changes), device, 1) is None


def test_documents_cross_where_a_gpu_scores_what_lies_in_host_memory() -> None:
    """A device that is not the host's, as "meta" is, stands for the GPU."""
    host, there = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4, device="meta")
    assert documents_cross(Inputs(Q=there, D=host), "cuda")
    assert not documents_cross(Inputs(Q=there, D=there), "cuda")
    assert not documents_cross(Inputs(Q=host, D=host), "cpu")
