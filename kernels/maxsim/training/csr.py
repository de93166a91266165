"""The gradient launches: compressed sparse rows (the default), library sort, one-hot products, atomics.

Room: `training`. In: what the forward pass left and the upstream gradient. Out: dQ and dD. May import: `maxsim.tokens`.
Nothing here reads a tensor on the host: a launch is decided by shapes alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from maxsim.tokens import TokenBatch
from maxsim.training.geometry import Geometry, gradient_buffer, slot_rows

TILE = 4096  # elements of a gathered tile: 32 fp16 values a thread of four warps, as many as stay in registers
SCAN = 2048  # entries scanned at a time while sorting
MAX_ENTRY = 2**31 - 1
Gradients = tuple[Tensor | None, Tensor | None]


def csr(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ and dD by inverse-grid CSR in two launches: dQ beside the sort, then dD. Deterministic.

    Args:
        q, d: as in the forward pass.
        winner: int8 | int16 | int32 [Nq, K, Lq], any strides but the last (1); -1 where there is no winner.
        g: fp32 [Nq, K], any strides.
        query, document: which gradients are wanted.
        query_dtype: of dQ if not that of the embeddings: fp32 where the caller adds several up.

    Returns:
        dQ [Rq, d] and dD [Rd, d] in the dtype of the embeddings, None where not wanted. Memory beside them: per entry 2
        bytes for the bucket and 2 for the sorted entry (4 and 4 where a document has more than 65536 entries), freed on
        return, and 4 per document token.
    """
    dq = gradient_buffer(q, query_dtype) if query else None
    dd = gradient_buffer(d) if document else None
    bucket, order, begin, log_tokens = _csr_buffers(winner, geo) if document else (winner, winner, winner, 0)
    _queries_and_sort(q, d, winner, g, geo, dq, bucket, order, begin, log_tokens, document)
    if dd is not None:
        del bucket
        _documents(q, d, order, begin, g, geo, dd, log_tokens)
    return dq, dd


def build(d: TokenBatch, winner: Tensor, geo: Geometry) -> tuple[Tensor, Tensor]:
    """The CSR alone: sorted entries [documents, E] (int16 bits or int32) and row offsets int32 [documents, Ld + 1]."""
    bucket, order, begin, log_tokens = _csr_buffers(winner, geo)
    _queries_and_sort(d, d, winner, winner, geo, None, bucket, order, begin, log_tokens, True)
    return order, begin


def document_gradient(q: TokenBatch, d: TokenBatch, order: Tensor, begin: Tensor, g: Tensor, geo: Geometry) -> Tensor:
    """dD from the CSR that `build` made: the second launch of `csr`."""
    dd = gradient_buffer(d)
    _documents(q, d, order, begin, g, geo, dd, log_tokens_of(geo))
    return dd


def log_tokens_of(geo: Geometry) -> int:
    """Bits that number a query's tokens in a stored entry."""
    return max(0, (geo.Lq - 1).bit_length())


def _csr_buffers(winner: Tensor, geo: Geometry) -> tuple[Tensor, Tensor, Tensor, int]:
    log_tokens = log_tokens_of(geo)
    largest = geo.queries_per_document << log_tokens
    if largest > MAX_ENTRY:
        raise ValueError(
            f"backward='csr': {geo.queries_per_document} queries of {geo.Lq} tokens exceed 2^31 entries a document; "
            "use backward='onehot'"
        )
    stored = torch.int16 if largest <= 65536 else torch.int32
    shape = (geo.documents, geo.queries_per_document * geo.Lq)
    bucket = torch.empty(shape, dtype=stored, device=winner.device)
    begin = torch.empty((geo.documents, geo.Ld + 1), dtype=torch.int32, device=winner.device)
    return bucket, torch.empty_like(bucket), begin, log_tokens


def _queries_and_sort(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, dq: Tensor | None,
    bucket: Tensor, order: Tensor, begin: Tensor, log_tokens: int, sort: bool,
) -> None:  # fmt: skip
    from maxsim.training import kernels

    block_d = power_of_two(d.d)
    pairs = max(4, TILE // block_d)
    block_i = 4 if pairs >= 16 else 1
    rows_per_tile = 32 if geo.Ld <= 4096 else 128
    q_span = slot_rows(q) or geo.Lq
    query_programs = 0 if dq is None else geo.Nq * cdiv(q_span, block_i)
    tiles = cdiv(geo.Ld, rows_per_tile)
    programs = query_programs + (geo.documents * tiles if sort else 0)
    if programs == 0:
        return
    kernels.queries_and_sort[(programs,)](
        winner, g, d.values, dq if dq is not None else d.values, bucket, order, begin,
        *_pointers(d.starts, q.starts, q.lengths, winner),
        winner.stride(0), winner.stride(1), g.stride(0), g.stride(1) if g.ndim > 1 else 0, d.values.stride(0),
        d.pitch, q.pitch, q_span, query_programs, geo.queries_per_document, geo.K, geo.Lq, geo.Ld, d.d,
        geo.queries_per_document * geo.Lq, tiles,
        SHARED=geo.shared, D_STARTS=d.starts is not None, Q_STARTS=q.starts is not None,
        Q_LENGTHS=q.lengths is not None, Q_SLOTS=slot_rows(q) is not None, LOG_TOKENS=log_tokens,
        BI=block_i, BK=pairs // block_i, BD=block_d,
        BE=min(SCAN, max(128, power_of_two(geo.queries_per_document << log_tokens))), BJ=rows_per_tile,
        BS=TILE // rows_per_tile, num_warps=4,
    )  # fmt: skip


def _documents(
    q: TokenBatch, d: TokenBatch, order: Tensor, begin: Tensor, g: Tensor, geo: Geometry, dd: Tensor, log_tokens: int
) -> None:
    from maxsim.training import kernels

    span = slot_rows(d) or geo.Ld
    _launch_document_rows(
        kernels, q, order, begin, g, dd, span, geo, per_document=geo.queries_per_document * geo.Lq,
        log_tokens=log_tokens, documents=geo.documents, d=d, whole=False,
    )  # fmt: skip


def _launch_document_rows(
    kernels: Any, q: TokenBatch, order: Tensor, begin: Tensor, g: Tensor, dd: Tensor, span: int, geo: Geometry, *,
    per_document: int, log_tokens: int, documents: int, d: TokenBatch, whole: bool,
) -> None:  # fmt: skip
    """dD from sorted entries, document by document, or (`whole`) over all rows of the buffer as one document."""
    block_d = power_of_two(q.d)
    pairs = max(4, TILE // block_d)
    block_r = min(8, pairs)
    grid = documents * cdiv(span, block_r)
    if grid == 0:
        return
    starts, lengths = (None, None) if whole else (d.starts, d.lengths)
    kernels.document_rows[(grid,)](
        order, begin, g, q.values, dd, *_pointers(q.starts, starts, lengths, order),
        g.stride(0), g.stride(1), q.values.stride(0), q.pitch, d.pitch, span, geo.K, geo.Lq,
        begin.shape[-1] - 1, q.d, per_document,
        SHARED=geo.shared, GLOBAL=whole, Q_STARTS=q.starts is not None, D_STARTS=starts is not None,
        D_LENGTHS=lengths is not None, D_SLOTS=whole or slot_rows(d) is not None, LOG_TOKENS=log_tokens,
        BR=block_r, BE=pairs // block_r, BD=block_d, LOCKSTEP=8 * (pairs // block_r), num_warps=4,
    )  # fmt: skip


def csr_sort(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """As `csr`, with one library sort over all rows of the buffer in place of the counting sort. Deterministic.

    The only path for a `select`ion whose documents share rows: a row collects what all its documents won. Takes
    about 50 bytes an entry while it sorts.
    """
    from maxsim.training import kernels

    dq, _ = csr(q, d, winner, g, geo, query=query, document=False, query_dtype=query_dtype)
    if not document:
        return dq, None
    R = d.values.shape[0]
    dd = torch.empty_like(d.values, memory_format=torch.contiguous_format)
    order, begin = sort_entries(d, winner, geo)
    _launch_document_rows(
        kernels, q, order, begin, g, dd, R, geo, per_document=0, log_tokens=0, documents=1, d=d, whole=True
    )
    return dq, dd


def sort_entries(d: TokenBatch, winner: Tensor, geo: Geometry) -> tuple[Tensor, Tensor]:
    """Entries of the batch in the order of the rows they won: int64 [entries], and offsets int32 [1, R + 1]."""
    R = d.values.shape[0]
    starts = d.row_starts().view((1, geo.K, 1) if geo.shared else (geo.Nq, geo.K, 1))
    rows = torch.where(winner >= 0, starts + winner, R).flatten()
    sorted_rows, order = torch.sort(rows, stable=True)
    begin = torch.searchsorted(sorted_rows, torch.arange(R + 1, device=rows.device), out_int32=True)
    return order, begin[None]


def onehot(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ as `csr`; dD by one-hot matrix products, with no memory beside the gradients. Deterministic.

    A query with an infinite or NaN component makes the gradient of every document it meets NaN, where `csr` confines it
    to the rows that the token won.
    """
    from maxsim.training import kernels

    dq, _ = csr(q, d, winner, g, geo, query=query, document=False, query_dtype=query_dtype)
    if not document:
        return dq, None
    dd = gradient_buffer(d)
    span = slot_rows(d) or geo.Ld
    block_d = min(128, max(16, power_of_two(d.d)))
    grid = (geo.documents * cdiv(span, 64), cdiv(d.d, block_d))
    if grid[0]:
        interpreted, wide = kernels.INTERPRETED, q.dtype == torch.float32  # the interpreter multiplies bf16 wrongly
        kernels.document_rows_onehot[grid](
            winner, g, q.values, dd, *_pointers(q.starts, d.starts, d.lengths, winner),
            winner.stride(0), winner.stride(1), g.stride(0), g.stride(1), q.values.stride(0), q.pitch, d.pitch, span,
            geo.queries_per_document, geo.K, geo.Lq, geo.Ld, d.d,
            SHARED=geo.shared, Q_STARTS=q.starts is not None, D_STARTS=d.starts is not None,
            D_LENGTHS=d.lengths is not None, D_SLOTS=slot_rows(d) is not None,
            UPCAST=interpreted, DOT="tf32x3" if wide and not interpreted else "ieee",
            BJ=64, BI=min(64, max(16, power_of_two(geo.Lq))), BD=block_d, num_warps=4,
        )  # fmt: skip
    return dq, dd


def atomic(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ as `csr`; dD by fp32 atomics into a buffer of 4 bytes an element, then cast. Not deterministic: to compare."""
    from maxsim.training import kernels

    dq, _ = csr(q, d, winner, g, geo, query=query, document=False, query_dtype=query_dtype)
    if not document:
        return dq, None
    total = torch.zeros(d.values.shape, dtype=torch.float32, device=d.device)
    block_i, block_k = 16, 16
    k_programs = cdiv(geo.K, block_k)
    grid = geo.Nq * cdiv(geo.Lq, block_i) * k_programs
    if grid:
        kernels.scatter_atomic[(grid,)](
            winner, g, q.values, total, *_pointers(q.starts, d.starts, winner),
            winner.stride(0), winner.stride(1), g.stride(0), g.stride(1), q.values.stride(0), q.pitch, d.pitch,
            geo.K, geo.Lq, geo.Ld, d.d, k_programs,
            SHARED=geo.shared, Q_STARTS=q.starts is not None, D_STARTS=d.starts is not None,
            BI=block_i, BK=block_k, BD=power_of_two(d.d), num_warps=4,
        )  # fmt: skip
    return dq, total.to(d.dtype)


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """Smallest power of two that is at least n (1 for n = 0)."""
    return 1 << max(0, n - 1).bit_length()


def runs_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, on the CPU."""
    if find_spec("triton") is None:
        return False
    from maxsim.training import kernels

    return kernels.INTERPRETED


def _pointers(*tensors: Tensor | None) -> list[Tensor]:
    """The tensors but the last, which stands in where one is absent: no kernel reads a pointer it has no flag for."""
    *wanted, stand_in = tensors
    assert stand_in is not None
    return [stand_in if t is None else t for t in wanted]
