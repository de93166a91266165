"""Exact top-k over a corpus that need not fit into device memory: blocks are copied while the block before is scored.

Room: `search`. In: queries and a corpus on the device, in host memory, memory-mapped, or an iterator. Out: scores and
document numbers. May import: blocks, operator, quantized, tokens.

Device memory is flat in the size of the corpus: `blocks.SLOTS` blocks, their scores, and one 64-bit key
for each kept result.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable

import torch
from torch import Tensor

from maxsim import quantized
from maxsim.blocks import Corpus, Documents, mapped, on_device, pieces_of, require_whole
from maxsim.operator import maxsim
from maxsim.quantized.batch import QuantizedTokens, owned_rows
from maxsim.quantized.index import Index
from maxsim.tokens import TokenBatch, require_numbers, tokens

_RESCORE_BYTES = 1 << 28  # original embeddings gathered at a time when rescoring
_SCORE_ELEMENTS = 1 << 26  # scores of a block: Nq * documents stays below (keys and their sort take 24 bytes each)
_NOTHING = -(2**63)  # key of a result that is not there
_LOW = 0xFFFFFFFF
_MOST = 1 << 32  # document numbers, so there are no more results


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
        k: results a query, 1 to 2^32; it may exceed the corpus.
        rescore: take k · depth results of the quantised scan and score those exactly against `originals`.
        originals: the same documents, in the same order, in the dtype of Q: a `TokenBatch` in host or device memory, or
            an index written with quantiser "none".
        depth: see rescore; at least 1, and k · depth at most 2^32.
        quantize_queries: over quantised documents: quantise the queries too (INT8 with INT8: fastest), or meet INT8
            documents with the queries as they are.
        block_bytes: device memory of one block, at least 1; a single document may exceed it.
        device: where to score, a `torch.device` or its name; None: the device of Q.

    Returns:
        scores [Nq, k] fp32, descending, and document numbers [Nq, k] int64, both on `device`. Equal scores: the lower
        document number first. Where the corpus holds fewer than k documents: −inf and −1.

    Raises:
        TypeError: for k, depth or block_bytes that is no whole number, and a device, corpus or originals that is none.
        ValueError: for k, depth or block_bytes out of range, a device that is not there, tensors on the device meta,
            originals that do not fit Q or a corpus of known size, arguments that do not fit each other (all before the
            scan, but for a block of an iterable), or a NaN score, naming query and document.
        IndexFileError: for a shard of an `Index` whose file is missing or not as long as its manifest says. That is
            asked before every block and every batch of originals is read. A file that is truncated while one of them is
            being read still ends the process by SIGBUS, as does one behind blocks of another making (a shard taken out
            of its index, a tensor over a memory map), whose file nobody knows; bytes that change in a file of the same
            length are not seen at all (`open_index` compares checksums).
    """
    q = tokens(Q, role="Q")
    k, depth, block_bytes = (
        _whole(name, value) for name, value in (("k", k), ("depth", depth), ("block_bytes", block_bytes))
    )
    wanted = k * depth if rescore else k
    _check(q, corpus, wanted, rescore, originals)
    where = q.device if device is None else _device(device)
    exact = _originals(originals, q, corpus)
    q = quantized.batch.move(q, where)
    keys = torch.full((q.count, wanted), _NOTHING, dtype=torch.int64, device=where)
    with torch.no_grad(), torch.cuda.device(where) if where.type == "cuda" else contextlib.nullcontext():
        scorer = _Scorer(q, quantize_queries)
        first = 0
        most = max(1, _SCORE_ELEMENTS // max(1, q.count))
        for block in on_device(pieces_of(corpus, block_bytes, most), where):
            keys = _merge(keys, _keys(scorer(block), first))
            first += block.count
        if rescore:
            keys = _rescored(q, keys, exact, originals, first, k)
    scores, numbers = _decode(keys)
    _refuse_nan(scores, numbers)
    return scores, numbers


def _whole(name: str, value: object) -> int:
    """A whole number ≥ 1 as an int: those of NumPy are welcome, True is none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # asked here
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} = {value!r}: expected a whole number, at least 1, got {type(value).__name__}")
    if number < 1:
        raise ValueError(f"{name} = {number}: must be at least 1")
    return number


def _device(device: object) -> torch.device:
    """The device as torch knows it, asked for memory once."""
    if not isinstance(device, str | torch.device):
        raise TypeError(
            f"device = {device!r}: expected a torch.device, its name ('cpu', 'cuda', 'cuda:1') or None, got "
            f"{type(device).__name__}"
        )
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # assertion: a torch built without CUDA
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"device = {str(device)!r}: cannot be used here ({why}); choose 'cpu', a CUDA device ('cuda', 'cuda:1') or "
            f"None for that of Q"
        ) from None
    if where.type == "meta":
        raise ValueError("device = 'meta': holds no numbers; choose 'cpu', 'cuda' or None for that of Q")
    return where


def _check(q: TokenBatch, corpus: Corpus, wanted: int, rescore: bool, originals: object) -> None:
    if q.dtype == torch.float64:
        raise ValueError("Q: dtype is float64; search ranks fp32 scores, give fp16, bf16 or fp32")
    require_numbers("Q", q.device)
    if wanted > _MOST:
        raise ValueError(
            f"{'k · depth' if rescore else 'k'} = {wanted}: must be at most 2^32, there are no more document numbers"
        )
    if rescore and originals is None:
        raise ValueError("rescore=True needs `originals`: the documents as they were before quantisation")
    if not rescore and originals is not None:
        raise ValueError("originals are given but rescore is False: pass rescore=True or drop them")
    if isinstance(corpus, Tensor):
        raise ValueError("corpus is a tensor: wrap it, maxsim.tokens(corpus, lengths=...)")
    if not isinstance(corpus, TokenBatch | QuantizedTokens | Iterable):
        raise TypeError(
            f"corpus: expected a TokenBatch, QuantizedTokens, an Index or an iterable of blocks, got "
            f"{type(corpus).__name__}"
        )


def _originals(originals: object, q: TokenBatch, corpus: Corpus) -> list[TokenBatch]:
    """The originals as batches, an index memory-mapped; refused if they cannot be those of Q and `corpus`."""
    if originals is None:
        return []
    if isinstance(originals, Index) and originals.quantiser != "none":
        raise ValueError(f"originals: an index of quantiser {originals.quantiser!r}; rescoring needs one of 'none'")
    if not isinstance(originals, TokenBatch | Index):
        hint = ": wrap it, maxsim.tokens(originals, lengths=...)" if isinstance(originals, Tensor) else ""
        raise TypeError(f"originals: expected a TokenBatch or an Index, got {type(originals).__name__}{hint}")
    given = [originals] if isinstance(originals, TokenBatch) else [mapped(originals, i) for i in range(len(originals))]
    batches = [batch for batch in given if isinstance(batch, TokenBatch)]  # all: an index of quantiser "none"
    for batch in batches:
        require_numbers("originals", batch.device)
        if batch.dtype != q.dtype:
            raise ValueError(f"originals: dtype is {batch.dtype}, but Q is {q.dtype}; give both in one")
        if batch.d != q.d:
            raise ValueError(f"originals: d = {batch.d}, but Q has d = {q.d}")
    if isinstance(corpus, TokenBatch | QuantizedTokens | Index):
        _require_count(batches, corpus.count)
    elif isinstance(corpus, list | tuple) and all(isinstance(b, TokenBatch | QuantizedTokens) for b in corpus):
        _require_count(batches, sum(block.count for block in corpus))
    return batches


def _require_count(originals: list[TokenBatch], count: int) -> None:
    held = sum(batch.count for batch in originals)
    if held != count:
        raise ValueError(f"originals: {held} documents, but the corpus has {count}")


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


def _rescored(
    q: TokenBatch, keys: Tensor, shards: list[TokenBatch], source: TokenBatch | Index | None, count: int, k: int
) -> Tensor:
    """Keys [Nq, k] by exact score of the candidates in `keys`; `shards` are the originals, out of `source`."""
    _require_count(shards, count)  # the blocks of an iterator are counted only now
    if count == 0:
        return keys[:, :k]
    _, candidates = _decode(keys)
    longest = max(s.max_length for s in shards)
    step = max(1, _RESCORE_BYTES // max(1, keys.shape[1] * longest * q.d * q.values.element_size()))
    out = [keys[:0, :k]]
    for n in range(0, q.count, step):
        some = candidates[n : n + step]
        queries = q.select(torch.arange(n, n + some.shape[0], device=q.device))
        if isinstance(source, Index):
            for i in range(len(source)):
                require_whole(source, i)
        chosen = _gathered(shards, some.clamp_min(0).flatten(), q.device)
        found = _key(maxsim(queries, chosen, pairing="candidates"), some).masked_fill(some < 0, _NOTHING)
        out.append(found.topk(k, dim=1).values)
    return torch.cat(out)


def _gathered(shards: list[TokenBatch], numbers: Tensor, device: torch.device) -> TokenBatch:
    """Documents `numbers` on `device`; from host memory only their rows travel."""
    if len(shards) == 1 and shards[0].device == device:
        return shards[0].select(numbers)
    if len(shards) == 1 and device.type == "cuda" and shards[0].values.is_pinned():
        from maxsim.quantized.gather import gathered

        return gathered(shards[0], numbers)
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
