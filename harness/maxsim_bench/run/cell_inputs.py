"""The inputs of a cell where its operator wants them: on the device, or the corpus of a search in host memory.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.inputs import document_lengths, drawn_bytes, make_inputs, unit_vectors
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import drawn_documents
from maxsim_bench.declare.experiment import VARIANT, axis_of
from maxsim_bench.measure import memory
from maxsim_bench.run.staging import Staging

if TYPE_CHECKING:
    import torch

_BLOCK_DOCUMENTS = 4096
_BLOCKS_A_SET = 1 << 20  # more blocks than any corpus has, so that no two sets share a seed
_HOST_SHARE = 0.95  # of the free host memory for what is drawn: page tables and the buffers of copies need some too


def draw_inputs(cell: Cell, device: str, set_index: int) -> Inputs:
    """Inputs of set `set_index` of a cell.

    For op "search" on a GPU the queries lie there and the corpus in pinned host memory (a dense one under variant
    `host=pageable` is not pinned): documents are drawn on the GPU block by block, for a processor takes minutes for
    what a card draws in seconds. Under variant `drawn=N` there are N documents, of which the backend makes a corpus.

    Raises:
        MemoryError: for a dense or packed corpus, or the inputs of a processor's cell, that host memory has no room
            for. The system grants memory that it has not got and ends processes once it is touched: this one, or the
            whole container.
    """
    if cell.op == "search":
        cell = cell.model_copy(update={"B": drawn_documents(cell)})
    if device == "cpu":
        _refuse_beyond_free(drawn_bytes(cell, set_index), "the inputs take")
    if cell.op != "search" or device != "cuda":
        return make_inputs(cell, device, set_index)
    if cell.layout == "packed":
        return _packed_corpus(cell, device, set_index)
    if cell.layout not in (None, "dense"):
        drawn = make_inputs(cell, "cpu", set_index)
        return replace(drawn, Q=drawn.Q.to(device), D=drawn.D.pin_memory())
    import torch

    assert cell.B is not None
    queries = make_inputs(cell.model_copy(update={"B": 1}), device, set_index)
    pinned = axis_of(cell, VARIANT + "host") != "pageable"
    nbytes = cell.B * queries.D.nbytes
    _expect_room(nbytes, pinned)
    corpus = torch.empty((cell.B, *queries.D.shape[1:]), dtype=queries.D.dtype, pin_memory=pinned)
    fill_corpus(corpus, cell, device, set_index)
    return Inputs(Q=queries.Q, D=corpus)


def draw_again(used: Inputs, cell: Cell, device: str, set_index: int) -> Inputs | None:
    """Set `set_index` at the addresses of another, for a dense corpus in host memory; None for all else.

    What `draw_inputs` gives, without a second corpus beside the first and the copy of one onto the other. Every
    document is drawn anew, so that nothing that was worked out from the old ones is of any use; pages that are there
    are written several times as fast as new ones.
    """
    if cell.op != "search" or device != "cuda" or cell.layout not in (None, "dense"):
        return None
    used.Q.copy_(make_inputs(cell.model_copy(update={"B": 1}), device, set_index).Q)
    fill_corpus(used.D, cell, device, set_index)
    return used


def fill_corpus(corpus: torch.Tensor, cell: Cell, device: str, set_index: int) -> None:
    """Overwrite a corpus [B, Ld, d] in host memory with the documents of a set, drawn on `device` block by block."""
    staging = None if corpus.is_pinned() else Staging(device)  # the card reaches pinned memory by itself
    for number, start in enumerate(range(0, len(corpus), _BLOCK_DOCUMENTS)):
        count = min(_BLOCK_DOCUMENTS, len(corpus) - start)
        block = make_inputs(cell.model_copy(update={"B": count}), device, (set_index + 1) * _BLOCKS_A_SET + number)
        place = corpus[start : start + count]
        if staging is None:
            place.copy_(block.D)
        else:
            staging.to_host(place, block.D)


def _expect_room(nbytes: int, pinned: bool) -> None:
    """Raises MemoryError if a corpus of so many bytes is more than host memory has free; torch pins powers of two."""
    nbytes = 1 << (nbytes - 1).bit_length() if pinned else nbytes
    if nbytes > _HOST_SHARE * memory.available_bytes("cpu"):
        memory.release_pinned()  # of earlier corpora, which one process keeps for the next
    _refuse_beyond_free(nbytes, "the corpus takes")


def _refuse_beyond_free(nbytes: int, told: str) -> None:
    """Raises MemoryError, which begins as `told`, for more bytes than host memory has free."""
    free = memory.available_bytes("cpu")
    if nbytes > _HOST_SHARE * free:
        raise MemoryError(f"{told} {nbytes / 1e9:.1f} GB of host memory, where {free / 1e9:.1f} GB are free")


def _packed_corpus(cell: Cell, device: str, set_index: int) -> Inputs:
    """A packed corpus in pinned host memory, the rows of some thousand documents drawn at a time."""
    import torch

    assert cell.B is not None
    assert cell.d is not None
    queries = make_inputs(cell.model_copy(update={"B": 1}), device, set_index)
    lengths = torch.from_numpy(document_lengths(cell, cell.B, set_index))
    offsets = torch.zeros(cell.B + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    _expect_room(max(1, int(offsets[-1])) * cell.d * queries.D.element_size(), pinned=True)
    rows = torch.empty((int(offsets[-1]), cell.d), dtype=queries.D.dtype, pin_memory=True)
    for number, start in enumerate(range(0, cell.B, _BLOCK_DOCUMENTS)):
        first, last = offsets[[start, min(start + _BLOCK_DOCUMENTS, cell.B)]].tolist()
        seeds = np.random.SeedSequence([cell.seed, set_index, number + 1])
        generator = torch.Generator(device=device).manual_seed(int(seeds.generate_state(1)[0]))
        rows[first:last].copy_(unit_vectors((last - first, cell.d), rows.dtype, device, generator))
    return Inputs(Q=queries.Q, D=rows, d_lengths=lengths, cu_seqlens=offsets)


def documents_cross(inputs: Inputs, device: str) -> bool:
    """Whether `device` is a GPU and the documents lie in host memory, so that they have to be copied to it."""
    return device == "cuda" and inputs.D.device.type == "cpu"


def resident_bytes(inputs: Inputs, device: str) -> int:
    """Bytes of the inputs on `device`."""
    return sum(t.nbytes for t in inputs.tensors() if t.device.type == device)
