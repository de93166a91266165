"""A corpus as blocks, cut to size without copying, and copied to the device while the block before is scored.

Room: `blocks`, below `search`. In: a corpus on the device, in host memory, memory-mapped, or an iterator. Out: blocks
on the device. May import: quantized, tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens, move
from maxsim.quantized.index import Index, IndexFileError
from maxsim.tokens import TokenBatch, require_numbers

Documents = TokenBatch | QuantizedTokens
Corpus = Documents | Index | Iterable[Documents]

SLOTS = 2  # one block is copied while one is scored


def blocks_of(corpus: Corpus) -> Iterator[Documents]:
    """The blocks of a corpus, one after the other. Raises `ValueError` for a block that is none or holds no numbers."""
    for block in [corpus] if isinstance(corpus, TokenBatch | QuantizedTokens) else corpus:
        if not isinstance(block, TokenBatch | QuantizedTokens):
            raise ValueError(f"corpus: a block is {type(block).__name__}, not TokenBatch or QuantizedTokens")
        require_numbers("corpus", block.device)
        yield block


def pieces_of(corpus: Corpus, block_bytes: int, most: int) -> Iterator[Documents]:
    """The blocks of a corpus, cut by `cut`; the file behind a piece of an `Index` is checked before the piece is given.

    Raises:
        ValueError: for a block that is none.
        IndexFileError: for a shard that is not as long as its manifest says, naming its file.
    """
    if not isinstance(corpus, Index):
        yield from cut(blocks_of(corpus), block_bytes, most)
        return
    for i in range(len(corpus)):
        for piece in cut(iter([mapped(corpus, i)]), block_bytes, most):
            require_whole(corpus, i)
            yield piece


def mapped(index: Index, i: int) -> Documents:
    """Shard i over the memory map, its file checked before it is opened."""
    require_whole(index, i)
    return index.shard(i)


def require_whole(index: Index, i: int) -> None:
    """`IndexFileError` unless the file of shard i is as long as the manifest says.

    Reading a mapped page beyond the end of its file ends the process by SIGBUS, which no `except` sees, so this is
    asked before every read. One look at the file system, no byte of the file is read.
    """
    shard = index.manifest["shards"][i]
    file = index.path / shard["file"]
    try:
        size = file.stat().st_size
    except OSError as error:
        raise IndexFileError(f"{file}: {error.strerror}; it was there when the index was opened") from None
    if size != shard["bytes"]:
        raise IndexFileError(f"{file}: {size} bytes, but {shard['bytes']} were written; it changed after it was opened")


def cut(blocks: Iterator[Documents], block_bytes: int, most: int) -> Iterator[Documents]:
    """Pieces of at most `block_bytes` and `most` documents, one document at least, over the same memory.

    A block whose documents do not follow one another in memory is only cut by `most`.
    """
    for block in blocks:
        codes = block.codes if isinstance(block, QuantizedTokens) else block
        row_bytes = codes.values.stride(0) * codes.values.element_size() + 4
        if codes.device.type != "cpu" or codes.values.shape[0] * row_bytes <= block_bytes:
            bounds = [*range(0, block.count, most), block.count]
        else:
            bounds = _bounds(codes, max(1, block_bytes // row_bytes), most)
        for first, last in itertools.pairwise(bounds):
            yield block if last - first == block.count else _slice(block, first, last)


def _bounds(codes: TokenBatch, rows: int, most: int) -> list[int]:
    """Where to cut so that a piece spans at most `rows` rows; by `most` alone if documents are out of order."""
    if codes.starts is None:  # no look at a hundred thousand documents that lie one pitch apart: nothing is copied yet
        fit = most if codes.pitch == 0 else (rows - codes.max_length) // codes.pitch + 1
        return [*range(0, codes.count, max(1, min(fit, most))), codes.count]
    starts = codes.starts
    if bool((starts[1:] < starts[:-1]).any()):
        return [*range(0, codes.count, most), codes.count]
    ends = torch.cummax(starts + codes.row_lengths(), 0).values
    bounds, first = [0], 0
    while first < codes.count:
        last = int(torch.searchsorted(ends, int(starts[first]) + rows, right=True))
        first = min(max(last, first + 1), first + most)
        bounds.append(first)
    return bounds


def _slice(block: Documents, first: int, last: int) -> Documents:
    """Documents first..last-1 over the same memory; rows before and after them are left out where that is possible."""
    if isinstance(block, QuantizedTokens):
        codes, low, high = _slice_tokens(block.codes, first, last)
        scales = block.scales[low:high] if block.kind == "token" else block.scales[first:last]
        return QuantizedTokens(codes, scales, block.kind)
    return _slice_tokens(block, first, last)[0]


def _slice_tokens(batch: TokenBatch, first: int, last: int) -> tuple[TokenBatch, int, int]:
    starts: Tensor | None
    if batch.device.type != "cpu":  # no look at the offsets, which would synchronise, and nothing is saved
        low, high, starts = 0, batch.values.shape[0], batch.row_starts()[first:last]
    elif batch.starts is None:
        low, high, starts = first * batch.pitch, (last - 1) * batch.pitch + batch.max_length, None
    else:
        starts, ends = batch.starts[first:last], batch.starts[first:last] + batch.row_lengths()[first:last]
        low, high = int(starts.min()), int(ends.max())
        low, high = (0, 0) if high <= low else (low, high)
        starts = (starts - low).clamp_min(0)
    lengths = None if batch.lengths is None else batch.lengths[first:last]
    piece = replace(
        batch,
        values=batch.values[low:high],
        count=last - first,
        starts=starts,
        lengths=lengths,
        shift=None,
        positions=None,
        dense_shape=None,
        total_rows=None,
    )
    return piece, low, high


# ---- moving blocks to the device


def on_device(blocks: Iterator[Documents], device: torch.device) -> Iterator[Documents]:
    """The blocks on `device`, in order, each valid until the next is asked for."""
    if device.type != "cuda":
        for block in blocks:
            yield block.to(device) if isinstance(block, QuantizedTokens) else move(block, device)
        return
    copies = torch.cuda.Stream(device)
    compute = torch.cuda.current_stream(device)
    copies.wait_stream(compute)
    slots = [_Slot(device, copies) for _ in range(SLOTS)]
    waiting: list[tuple[_Slot, Documents]] = []
    turn = 0
    try:
        for block in blocks:
            if block.device.type == "cuda":
                yield from _drain(waiting, compute)
                waiting.clear()
                yield block.to(device) if isinstance(block, QuantizedTokens) else move(block, device)
                continue
            slot = slots[turn % SLOTS]
            turn += 1
            waiting.append((slot, slot.load(block)))
            if len(waiting) == SLOTS:
                yield from _drain(waiting[:1], compute)
                del waiting[0]
        yield from _drain(waiting, compute)
    finally:  # a scan that ends early gives its buffers back, and a copy may still write to them
        copies.synchronize()


def _drain(waiting: list[tuple[_Slot, Documents]], compute: torch.cuda.Stream) -> Iterator[Documents]:
    for slot, block in waiting:
        compute.wait_event(slot.copied)
        yield block
        slot.computed.record(compute)


@dataclass
class _Slot:
    """One block's place: a pinned buffer and a device buffer, both reused, and the events that guard them."""

    device: torch.device
    copies: torch.cuda.Stream
    host: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    there: Tensor | None = None
    copied: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    computed: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    source: Documents | None = None  # kept alive until its copy is done

    def load(self, block: Documents) -> Documents:
        """Starts copying `block`; the result may be used after `copied`."""
        self.copied.synchronize()  # the pinned buffer is free again
        self.source = block
        codes = block.codes if isinstance(block, QuantizedTokens) else block
        parts = [codes.values, codes.starts, codes.lengths]
        if isinstance(block, QuantizedTokens):
            parts.append(block.scales)
        places, size = _layout(parts)
        self._reserve(size)
        assert self.there is not None
        self.copies.wait_event(self.computed)  # the device buffer is free again
        with torch.cuda.stream(self.copies):
            moved = [
                None if p is None or place is None else self._copy(p, place)
                for p, place in zip(parts, places, strict=True)
            ]
            self.copied.record(self.copies)
        values = moved[0]
        assert values is not None
        codes = replace(
            codes, values=values[:, : codes.d], starts=moved[1], lengths=moved[2], shift=None, positions=None
        )
        if not isinstance(block, QuantizedTokens):
            return codes
        assert moved[3] is not None
        return QuantizedTokens(codes, moved[3], block.kind)

    def _reserve(self, size: int) -> None:
        if self.there is not None and self.there.shape[0] >= size:
            return
        compute = torch.cuda.current_stream(self.device)
        if self.there is not None:
            self.copies.synchronize()
            compute.synchronize()
            self.there = None  # freed before the larger one is asked for
        self.there = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.copies.wait_stream(compute)  # which may still read what was there; the copy of another slot goes on

    def _copy(self, part: Tensor, place: _Place) -> Tensor:
        assert self.there is not None
        target = place.view(self.there)
        whole = _widened(part, place.shape)
        if whole is not None and whole.is_pinned():
            target.copy_(whole, non_blocking=True)
            return target
        if self.host.shape[0] < self.there.shape[0]:
            self.host = torch.empty(self.there.shape[0], dtype=torch.uint8, pin_memory=True)
        staged = place.view(self.host)
        if part.ndim == 2:
            staged[:, : part.shape[1]] = part
        else:
            staged.copy_(part)
        target.copy_(staged, non_blocking=True)
        return target


def _widened(part: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """`part` with the padding of its rows, so that it is one run of memory of `shape`; None if it is not stored so."""
    if part.ndim == 2 and part.shape[1] < shape[1] == part.stride(0) and part.shape[0] > 0:
        end = part.storage_offset() + part.shape[0] * shape[1]
        if end * part.element_size() <= part.untyped_storage().nbytes():
            return part.as_strided(shape, (shape[1], 1))
    return part if part.is_contiguous() and tuple(part.shape) == shape else None


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in a buffer of bytes."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count * self.dtype.itemsize

    def view(self, buffer: Tensor) -> Tensor:
        return buffer[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


def _layout(parts: list[Tensor | None]) -> tuple[list[_Place | None], int]:
    """Places of tensors one after another at multiples of 256 bytes; rows are widened to multiples of 16 bytes."""
    places: list[_Place | None] = []
    offset = 0
    for part in parts:
        if part is None:
            places.append(None)
            continue
        shape = tuple(part.shape)
        if part.ndim == 2:
            unit = max(1, 16 // part.dtype.itemsize)
            shape = (shape[0], -(-shape[1] // unit) * unit)
        place = _Place(offset, shape, part.dtype)
        places.append(place)
        offset += -(-place.nbytes // 256) * 256
    return places, max(256, offset)
