"""Exact top-k over a corpus that need not fit into device memory: blocks are copied while the block before is scored.

Room: `search`. In: queries and a corpus on the device, in host memory, memory-mapped, or an iterator. Out: scores and
document numbers. May import: operator, quantized.

Device memory is flat in the size of the corpus: `SLOTS` blocks, their scores, and one 64-bit key for each kept result.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from maxsim import quantized
from maxsim.operator import maxsim
from maxsim.quantized.batch import QuantizedTokens, owned_rows
from maxsim.quantized.index import Index
from maxsim.tokens import TokenBatch, tokens

Documents = TokenBatch | QuantizedTokens
Corpus = Documents | Index | Iterable[Documents]

SLOTS = 2  # one block is copied while one is scored
_RESCORE_BYTES = 1 << 28  # original embeddings gathered at a time when rescoring
_SCORE_ELEMENTS = 1 << 26  # scores of a block: Nq * documents stays below (keys and their sort take 24 bytes each)
_NOTHING = -(2**63)  # key of a result that is not there
_LOW = 0xFFFFFFFF


def search(
    Q: Tensor | TokenBatch,
    corpus: Corpus,
    k: int,
    *,
    rescore: bool = False,
    originals: TokenBatch | Index | None = None,
    depth: int = 10,
    quantize_queries: bool = True,
    block_bytes: int = 1 << 28,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best documents of every query.

    Args:
        Q: [Lq, d] | [Nq, Lq, d] | TokenBatch; fp16, bf16 or fp32.
        corpus: documents as a `TokenBatch` in the dtype of Q, as `QuantizedTokens`, as an `Index` (memory-mapped), or
            an iterable of `TokenBatch` or `QuantizedTokens` blocks, read once; on the device or in host memory. Blocks
            in pinned memory are copied straight to the device, others pass through a pinned buffer. Document numbers
            count through the blocks, below 2^32.
        k: results a query, ≥ 1.
        rescore: take k · depth results of the quantised scan and score those exactly against `originals`.
        originals: the same documents, in the same order, in the dtype of Q: a `TokenBatch` in host or device memory, or
            an index written with quantiser "none".
        depth: see rescore.
        quantize_queries: over quantised documents: quantise the queries too (INT8 with INT8: fastest), or meet INT8
            documents with the queries as they are.
        block_bytes: device memory of one block; a single document may exceed it.
        device: where to score; None: the device of Q.

    Returns:
        scores [Nq, k] fp32, descending, and document numbers [Nq, k] int64, both on `device`. Equal scores: the lower
        document number first. Where the corpus holds fewer than k documents: −inf and −1.

    Raises:
        ValueError: for k < 1, arguments that do not fit each other, or a NaN score, naming query and document.
    """
    q = tokens(Q, role="Q")
    _check(q, corpus, k, rescore, originals, depth)
    where = torch.device(device) if device is not None else q.device
    q = quantized.batch.move(q, where)
    wanted = k * depth if rescore else k
    keys = torch.full((q.count, wanted), _NOTHING, dtype=torch.int64, device=where)
    with torch.no_grad(), torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext():
        scorer = _Scorer(q, quantize_queries)
        first = 0
        for block in _on_device(_cut(_blocks(corpus), block_bytes, max(1, _SCORE_ELEMENTS // max(1, q.count))), where):
            keys = _merge(keys, _keys(scorer(block), first))
            first += block.count
        if rescore:
            assert originals is not None  # _check
            keys = _rescored(q, keys, originals, first, k)
    scores, numbers = _decode(keys)
    _refuse_nan(scores, numbers)
    return scores, numbers


def _check(q: TokenBatch, corpus: Corpus, k: int, rescore: bool, originals: object, depth: int) -> None:
    if q.dtype == torch.float64:
        raise ValueError("Q: dtype is float64; search ranks fp32 scores, give fp16, bf16 or fp32")
    if k < 1 or depth < 1:
        raise ValueError(f"k = {k}, depth = {depth}: both are at least 1")
    if rescore and originals is None:
        raise ValueError("rescore=True needs `originals`: the documents as they were before quantisation")
    if not rescore and originals is not None:
        raise ValueError("originals are given but rescore is False: pass rescore=True or drop them")
    if isinstance(originals, Index) and originals.quantiser != "none":
        raise ValueError(f"originals: an index of quantiser {originals.quantiser!r}; rescoring needs one of 'none'")
    if isinstance(corpus, Tensor):
        raise ValueError("corpus is a tensor: wrap it, maxsim.tokens(corpus, lengths=...)")


# ---- ranking: one int64 key a result, larger is better, so that ties have one answer


def _keys(scores: Tensor, first: int) -> Tensor:
    """[Nq, b] int64 keys of fp32 scores of documents first, first + 1, ...: by score, then by lower number.

    The high half is the score as an integer of the same order (the magnitude bits of negative floats are flipped), the
    low half 2^32 - 1 - document. NaN sorts above everything, so that it cannot hide.
    """
    number = torch.arange(first, first + scores.shape[1], device=scores.device)
    return _key(scores, number)


def _key(scores: Tensor, number: Tensor) -> Tensor:
    scores = torch.where(scores.isnan(), torch.nan, scores + 0.0)  # one NaN, one zero
    bits = scores.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.long() << 32) + (_LOW - number)


def _merge(best: Tensor, keys: Tensor) -> Tensor:
    """The best keys [Nq, wanted] of both, descending. Keys are distinct, so the answer is."""
    wanted = best.shape[1]
    if keys.shape[1] > wanted:
        keys = keys.topk(wanted, dim=1, sorted=False).values
    return torch.cat([best, keys], 1).topk(wanted, dim=1).values


def _decode(keys: Tensor) -> tuple[Tensor, Tensor]:
    ordered = (keys >> 32).int()
    scores = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
    absent = keys == _NOTHING
    return scores.masked_fill(absent, -torch.inf), (_LOW - (keys & _LOW)).masked_fill(absent, -1)


def _refuse_nan(scores: Tensor, numbers: Tensor) -> None:
    nan = scores.isnan()
    if bool(nan.any()):
        n = int(nan.any(1).nonzero()[0, 0])
        raise ValueError(f"query {n} scores NaN with document {int(numbers[n][nan[n]].min())}: clean its embeddings")


# ---- scoring


class _Scorer:
    """Scores of the queries with a block, [Nq, b] fp32; quantises the queries at most once a format."""

    def __init__(self, q: TokenBatch, quantize_queries: bool) -> None:
        self._q = q
        self._quantize = quantize_queries
        self._codes: dict[torch.dtype, QuantizedTokens] = {}

    def __call__(self, block: Documents) -> Tensor:
        if not isinstance(block, QuantizedTokens):
            return maxsim(self._q, block)
        if not self._quantize:
            return quantized.score(self._q, block)
        dtype = block.codes.dtype
        if dtype not in self._codes:
            quantize = quantized.quantize_int8 if dtype == torch.int8 else quantized.quantize_fp8
            self._codes[dtype] = quantize(self._q)
        return quantized.score(self._codes[dtype], block)


def _rescored(q: TokenBatch, keys: Tensor, originals: TokenBatch | Index, count: int, k: int) -> Tensor:
    """Keys [Nq, k] by exact score of the candidates in `keys`."""
    shards = [s for s in ([originals] if isinstance(originals, TokenBatch) else originals) if isinstance(s, TokenBatch)]
    held = sum(s.count for s in shards)
    if held != count:
        raise ValueError(f"originals: {held} documents, but the corpus has {count}")
    if count == 0:
        return keys[:, :k]
    _, candidates = _decode(keys)
    longest = max(s.max_length for s in shards)
    step = max(1, _RESCORE_BYTES // max(1, keys.shape[1] * longest * q.d * q.values.element_size()))
    out = [keys[:0, :k]]
    for n in range(0, q.count, step):
        some = candidates[n : n + step]
        queries = q.select(torch.arange(n, n + some.shape[0], device=q.device))
        chosen = _gathered(shards, some.clamp_min(0).flatten(), q.device)
        found = _key(maxsim(queries, chosen, pairing="candidates"), some).masked_fill(some < 0, _NOTHING)
        out.append(found.topk(k, dim=1).values)
    return torch.cat(out)


def _gathered(shards: list[TokenBatch], numbers: Tensor, device: torch.device) -> TokenBatch:
    """Documents `numbers` on `device`; from host memory only their rows travel."""
    if len(shards) == 1 and shards[0].device == device:
        return shards[0].select(numbers)
    home = shards[0].device
    numbers = numbers.to(home)
    bases = torch.tensor([0, *(s.count for s in shards)], device=home).cumsum(0)
    owner = torch.searchsorted(bases, numbers, right=True) - 1
    lengths = torch.cat([s.row_lengths() for s in shards])[numbers]
    starts = torch.cumsum(lengths.long(), 0) - lengths
    total = int(lengths.sum())
    packed = TokenBatch(
        values=torch.empty((total, shards[0].d), dtype=shards[0].dtype, device=home),
        count=numbers.shape[0],
        pitch=0,
        max_length=max(s.max_length for s in shards),
        starts=starts,
        lengths=lengths,
        total_rows=total,
    )
    for i in owner.unique().tolist():
        mine = (owner == i).nonzero()[:, 0]
        rows, _ = owned_rows(shards[i].select(numbers[mine] - bases[i]))
        places, _ = owned_rows(packed.select(mine))
        packed.values[places] = shards[i].values[rows]
    return quantized.batch.move(packed, device)


# ---- blocks


def _blocks(corpus: Corpus) -> Iterator[Documents]:
    if isinstance(corpus, TokenBatch | QuantizedTokens):
        yield corpus
        return
    for block in corpus:
        if not isinstance(block, TokenBatch | QuantizedTokens):
            raise ValueError(f"corpus: a block is {type(block).__name__}, not TokenBatch or QuantizedTokens")
        yield block


def _cut(blocks: Iterator[Documents], block_bytes: int, most: int) -> Iterator[Documents]:
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
    starts = codes.row_starts()
    if codes.starts is not None and bool((starts[1:] < starts[:-1]).any()):
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


def _on_device(blocks: Iterator[Documents], device: torch.device) -> Iterator[Documents]:
    """The blocks on `device`, in order, each valid until the next is asked for."""
    if device.type != "cuda":
        for block in blocks:
            yield block.to(device) if isinstance(block, QuantizedTokens) else quantized.batch.move(block, device)
        return
    copies = torch.cuda.Stream(device)
    compute = torch.cuda.current_stream(device)
    copies.wait_stream(compute)
    slots = [_Slot(device, copies) for _ in range(SLOTS)]
    waiting: list[tuple[_Slot, Documents]] = []
    turn = 0
    for block in blocks:
        if block.device.type == "cuda":
            for ready in _drain(waiting, compute):
                yield ready
            yield block if isinstance(block, QuantizedTokens) else quantized.batch.move(block, device)
            continue
        slot = slots[turn % SLOTS]
        turn += 1
        waiting.append((slot, slot.load(block)))
        if len(waiting) == SLOTS:
            for ready in _drain(waiting[:1], compute):
                yield ready
            del waiting[0]
    yield from _drain(waiting, compute)


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
        if self.there is None or self.there.shape[0] < size:
            self.copies.synchronize()
            torch.cuda.current_stream(self.device).synchronize()
            self.there = None  # freed before the larger one is asked for
            self.there = torch.empty(size, dtype=torch.uint8, device=self.device)

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
