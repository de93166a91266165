"""The gradient launches: compressed sparse rows (the default), library sort, one-hot products, atomics.

Room: `training`. In: what the forward pass left and the upstream gradient. Out: dQ and dD. May import: `maxsim.tokens`.
Nothing here reads a tensor on the host: a launch is decided by shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxsim.tokens import TokenBatch
from maxsim.training.geometry import Geometry, gradient_buffer, slot_rows
from maxsim.training.launch import cdiv, launch, power_of_two, runs_interpreted

MAX_ENTRY = 2**31 - 2**16  # numbers of a program's last entries stay below 2^31
GATHER = 1024  # elements of a gathered tile a warp: 32 fp16 values a thread, as many as stay in registers
CHUNK = 512  # entries that a warp counts, and places: 16 a thread in flight
BIN_MEAN = 8  # entries of a bin: few enough to be put in order by comparing each with each
MOST_PARTS = 16  # bins of a document row
NO_STEP, COUNT, PLACE = 0, 1, 2  # what runs beside dQ, as the kernel has it
BINS = 8  # that are put in order at a time
ROW_REGISTERS = 80  # a thread of dD
REGISTERS = 64  # a thread of dQ: on an H200 202 -> 158 us for dQ at Nq = B = 64, Lq = Ld = 1024
MANY = (
    4096  # programs of dQ from which registers are limited: some fifteen warps a multiprocessor are in flight without
)
ENOUGH_ROWS = 8192  # programs of dD that keep an H200 busy
ENOUGH = 2048  # programs that keep an H200 busy with dQ; fewer queries than that share their documents
Gradients = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Rows:
    """Entries by the document row they won.

    A row has `parts` bins of ascending entries, about `BIN_MEAN` entries each; within a bin they are in any order.

    Attributes:
        order: [documents, E], int16 bits or int32; entry (t, i), t-th query of the document and token i, is the number
            (t << log_tokens_of(geo)) + i.
        begin: int32 [documents, Ld * parts + 1], where the entries of a bin begin and the next one's do.
        spare: like `order`; where the entries are put in order.
        parts: bins of a row.
        log_part: entries whose numbers agree above this many bits share a bin.
    """

    order: Tensor
    begin: Tensor
    spare: Tensor
    parts: int
    log_part: int


def csr(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None, document_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ and dD by inverse-grid CSR in three launches: dQ beside counting, placing, then dD. Deterministic.

    Args:
        q, d: as in the forward pass.
        winner: int8 | int16 | int32 [Nq, K, Lq], any strides but the last (1); -1 where there is no winner.
        g: fp32 [Nq, K], any strides.
        query, document: which gradients are wanted.
        query_dtype, document_dtype: of dQ and dD if not that of the embeddings.

    Returns:
        dQ [Rq, d] and dD [Rd, d] in the dtype of the embeddings, None where not wanted. Memory beside them, freed on
        return: 4 bytes an entry (8 where a document has more than 65536), and documents * (Ld * parts + 1) * 4 bytes of
        offsets, where Ld is the length of the longest document and parts, 1 to 16, the bins of a row (see `Rows`).
    """
    rows = _empty_rows(winner, geo) if document else None
    dq = _queries_beside(q, d, winner, g, geo, rows, query_dtype or q.dtype if query else None)
    return dq, None if rows is None else document_gradient(q, d, winner, rows, g, geo, document_dtype)


def build(d: TokenBatch, winner: Tensor, geo: Geometry) -> Rows:
    """The CSR alone, in two launches."""
    rows = _empty_rows(winner, geo)
    _queries_beside(d, d, winner, winner[..., 0], geo, rows, None)
    return rows


def document_gradient(
    q: TokenBatch, d: TokenBatch, winner: Tensor, rows: Rows, g: Tensor, geo: Geometry,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """dD from the CSR that `build` made: the last launch of `csr`."""
    dd = gradient_buffer(d, dtype)
    slots = slot_rows(d)
    _document_rows(
        q, rows.order, rows.begin, g, dd, geo, (d.starts, d.lengths), (winner, rows), documents=geo.documents,
        span=geo.Ld if slots is None else slots, slots=slots is not None, pitch=d.pitch,
    )  # fmt: skip
    return dd


def log_tokens_of(geo: Geometry) -> int:
    """Bits that number a query's tokens in a stored entry."""
    return max(0, (geo.Lq - 1).bit_length())


def _empty_rows(winner: Tensor, geo: Geometry) -> Rows:
    """Buffers for the CSR: counters at zero, the rest uninitialised."""
    largest = geo.queries_per_document << log_tokens_of(geo)
    if largest > MAX_ENTRY:
        raise ValueError(
            f"backward='csr': {geo.queries_per_document} queries of {geo.Lq} tokens exceed 2^31 entries a document; "
            "use backward='onehot'"
        )
    stored = torch.int16 if largest <= 65536 else torch.int32
    shape = (2, geo.documents, geo.queries_per_document * geo.Lq)
    order, spare = torch.empty(shape, dtype=stored, device=winner.device).unbind()
    parts = min(MOST_PARTS, max(1, power_of_two(_average(geo) // BIN_MEAN)))
    log_part = max(0, (largest - 1).bit_length() - (parts - 1).bit_length())
    begin = torch.zeros((geo.documents, geo.Ld * parts + 1), dtype=torch.int32, device=winner.device)
    return Rows(order, begin, spare, parts, log_part)


def _average(geo: Geometry) -> int:
    """Entries of a document row in the mean."""
    return geo.queries_per_document * geo.Lq // max(1, geo.Ld)


def _queries_beside(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, rows: Rows | None,
    query_dtype: torch.dtype | None,
) -> Tensor | None:  # fmt: skip
    """dQ where `query_dtype` says of which type, beside counting where there are rows to fill; then placing."""
    block_d = power_of_two(d.d)
    pairs = max(2, GATHER // block_d)
    block_i = 2 if pairs >= 4 else 1
    slots = slot_rows(q)
    q_span = geo.Lq if slots is None else slots
    programs = 0 if query_dtype is None else geo.Nq * cdiv(q_span, block_i)
    splits = max(1, min(cdiv(geo.K, 64), ENOUGH // max(1, programs)))
    programs *= splits
    R = q.values.shape[0]
    dq = None
    if query_dtype is not None:
        dq = gradient_buffer(q, query_dtype if splits == 1 else torch.float32, splits)
    total = geo.queries_per_document << log_tokens_of(geo)
    chunk = min(CHUNK, max(32, power_of_two(total)))
    chunks = cdiv(total, chunk)
    entries = 0 if rows is None else geo.documents * chunks
    buffers = (None, None, None) if rows is None else (rows.spare, rows.order, rows.begin)
    parts = (1, 0) if rows is None else (rows.parts, rows.log_part)
    # a thread's registers are limited where there are more programs than run at a time; fewer are faster with more
    # loads in flight. On an H200 at Lq = 32, Ld = 300: 128 queries 34 -> 37 us, 256 queries at Ld = 1030 124 -> 97 us
    limit = REGISTERS if programs >= MANY else None
    shares: tuple[tuple[int, int, int | None], ...] = ((NO_STEP, programs, limit),)
    if rows is not None:
        shares = ((COUNT, programs, limit), (PLACE, 0, None))
    for step, queries, registers in shares:
        launch(
            "queries_beside", (entries + queries, 1),
            (winner, g, d.values, dq, *buffers, d.starts, q.starts, q.lengths),
            (winner.stride(0), winner.stride(1), d.values.stride(0), geo.Lq, d.d),
            (
                g.stride(0), g.stride(1), d.pitch, q.pitch, q_span, entries, splits, R,
                geo.queries_per_document, geo.K, geo.Ld, geo.queries_per_document * geo.Lq, chunks,
            ),
            (
                geo.shared, d.starts is not None, q.starts is not None, q.lengths is not None, slots is not None,
                queries > 0, step, log_tokens_of(geo), parts[1], parts[0], block_i, pairs // block_i, block_d, chunk,
            ),
            1, registers,
        )  # fmt: skip
    if dq is None or splits == 1:
        return dq
    return dq.view(splits, R, d.d).sum(0).to(query_dtype)


def _document_rows(
    q: TokenBatch, order: Tensor, begin: Tensor, g: Tensor, dd: Tensor, geo: Geometry,
    placed: tuple[Tensor | None, Tensor | None], unsorted: tuple[Tensor, Rows] | None, *,
    documents: int, span: int, slots: bool, pitch: int,
) -> None:  # fmt: skip
    """dD from entries by row, document by document; over all rows of the buffer as one document if none are unsorted.

    Args:
        placed: `starts` and `lengths` of the documents.
        unsorted: the argmax and the rows whose entries are to be put in order first.
    """
    starts, lengths = placed
    winner, spare, parts, log_part = None, None, 1, 0
    if unsorted is not None:
        winner, spare, parts, log_part = unsorted[0], unsorted[1].spare, unsorted[1].parts, unsorted[1].log_part
    block_d = power_of_two(q.d)
    pairs = max(2, GATHER // block_d)
    block_r = 2 if pairs >= 4 else 1
    block_e = pairs // block_r
    # as many rows as leave enough programs: bins are put in order many at a time
    block_t = max(block_r, min(16, power_of_two(documents * span // ENOUGH_ROWS)))
    launch(
        "document_rows", (documents * cdiv(span, block_t), 1),
        (order, begin, g, q.values, dd, q.starts, starts, lengths, winner, spare),
        (q.values.stride(0), q.d, 0 if winner is None else winner.stride(0), 0 if winner is None else winner.stride(1)),
        (
            g.stride(0), g.stride(1), q.pitch, pitch, span, geo.queries_per_document, geo.K, geo.Lq,
            (begin.shape[-1] - 1) // parts, 0 if unsorted is None else geo.queries_per_document * geo.Lq,
            # rows go on together until four times the average, in whole steps, then one after the other
            cdiv(4 * _average(geo) + 32, block_e) * block_e,
        ),
        (
            geo.shared, unsorted is None, q.starts is not None, starts is not None, lengths is not None, slots,
            0 if unsorted is None else log_tokens_of(geo), log_part, parts, block_t, min(BINS, block_t * parts),
            block_r, block_e, block_d,
        ),
        1, None if unsorted is None else ROW_REGISTERS,
    )  # fmt: skip


def csr_sort(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None, document_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """As `csr`, with one library sort over all rows of the buffer in place of the counting sort. Deterministic.

    The only kernel path in a fixed order where documents share rows (see `may_overlap`): a row collects what all its
    documents won. Takes about 50 bytes an entry while it sorts.
    """
    dq, _ = csr(q, d, winner, g, geo, query=query, document=False, query_dtype=query_dtype)
    if not document:
        return dq, None
    R = d.values.shape[0]
    dd = torch.empty(d.values.shape, dtype=document_dtype or d.dtype, device=d.device)
    order, begin = sort_entries(d, winner, geo)
    _document_rows(q, order, begin, g, dd, geo, (None, None), None, documents=1, span=R, slots=True, pitch=0)
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
    query_dtype: torch.dtype | None = None, document_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ as `csr`; dD by one-hot matrix products, with no memory beside the gradients. Deterministic.

    An infinite or NaN component of a query, or upstream gradient of a pair of which neither is empty, makes the
    gradient of every row of the document NaN, where `csr` confines it to the rows that were won.
    """
    dq, _ = csr(q, d, winner, g, geo, query=query, document=False, query_dtype=query_dtype)
    if not document:
        return dq, None
    dd = gradient_buffer(d, document_dtype)
    slots = slot_rows(d)
    span = geo.Ld if slots is None else slots
    block_d = min(128, max(16, power_of_two(d.d)))
    interpreted = runs_interpreted()  # the interpreter multiplies bf16 wrongly
    launch(
        "document_rows_onehot", (geo.documents * cdiv(span, 64), cdiv(d.d, block_d)),
        (winner, g, q.values, dd, q.starts, d.starts, d.lengths),
        (winner.stride(0), winner.stride(1), q.values.stride(0), geo.Lq, d.d),
        (g.stride(0), g.stride(1), q.pitch, d.pitch, span, geo.queries_per_document, geo.K, geo.Ld),
        (
            geo.shared, q.starts is not None, d.starts is not None, d.lengths is not None, slots is not None,
            interpreted, "tf32x3" if q.dtype == torch.float32 and not interpreted else "ieee",
            64, min(64, max(16, power_of_two(geo.Lq))), block_d,
        ),
        4,
    )  # fmt: skip
    return dq, dd


def atomic(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None, document_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ as `csr`; dD by fp32 atomics into a buffer of 4 bytes an element, then cast. Not deterministic: to compare."""
    dq, _ = csr(q, d, winner, g, geo, query=query, document=False, query_dtype=query_dtype)
    if not document:
        return dq, None
    total = torch.zeros(d.values.shape, dtype=torch.float32, device=d.device)
    block_i, block_k = 16, 16
    k_programs = cdiv(geo.K, block_k)
    launch(
        "scatter_atomic", (geo.Nq * cdiv(geo.Lq, block_i) * k_programs, 1),
        (winner, g, q.values, total, q.starts, d.starts),
        (winner.stride(0), winner.stride(1), q.values.stride(0), geo.Lq, d.d),
        (g.stride(0), g.stride(1), q.pitch, d.pitch, geo.K, geo.Ld, k_programs),
        (geo.shared, q.starts is not None, d.starts is not None, block_i, block_k, power_of_two(d.d)),
        4,
    )  # fmt: skip
    return dq, total.to(document_dtype or d.dtype)
