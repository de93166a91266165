# Kernel arguments are typed by triton at each launch.
# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the backward pass. No kernel but `scatter_atomic` adds floating point
by atomics; every sum has a fixed order.

Room: `training`. May import: triton. Imported only where a kernel is launched, so the room imports without triton.

An *entry* is one (query n, k-th document of n, query token i) with a winner: `winner[n, k, i]`, a row of that document
or -1. dQ[n, i] sums g[n, k] * D[winner] over k and is owned by the query token; dD[m, j] sums g[n, k] * Q[n, i] over
the entries whose winner is j and is owned by the document token, once entries are sorted by winner (compressed sparse
rows). Documents m = k if SHARED, else n * K + k. Offsets into embeddings and entries are 64 bits wide.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

# Arguments come as pointers, integers whose divisibility decides how wide a load is, integers that vary from batch to
# batch and bound no load (unspecialised, so that a new length compiles nothing), and constants, as `launch` has it.
_SHARED = ["stride_gn", "stride_gk", "q_pitch", "d_pitch", "K", "Ld"]
_QUERIES_VARIES = [
    *_SHARED, "q_span", "entry_programs", "splits", "q_rows", "NQ", "per_document", "chunks",
]  # fmt: skip
_ROWS_VARIES = [*_SHARED, "d_span", "Lq", "NQ", "per_document", "LOCKSTEP"]
_ONEHOT_VARIES = [*_SHARED, "d_span", "NQ"]
_ATOMIC_VARIES = [*_SHARED, "k_programs"]
HUB = tl.constexpr(128)  # entries of a bin that are put in order by comparing each with each
BIN = tl.constexpr(16)  # entries of a bin that are put in order at a time: twice what a bin has in the mean


@triton.jit
def _first_row(starts, n, pitch, HAS_STARTS: tl.constexpr):
    """First row of sequence(s) n in the batch's values, int64."""
    if HAS_STARTS:
        return tl.load(starts + n)
    return n.to(tl.int64) * pitch


@triton.jit
def _written_rows(lengths, n, max_length, slot, HAS_LENGTHS: tl.constexpr, SLOTS: tl.constexpr):
    """Rows of sequence n that its owner writes: the whole slot where slots tile the buffer, else its valid tokens."""
    if SLOTS:
        return slot
    if HAS_LENGTHS:
        return tl.minimum(tl.load(lengths + n), max_length)
    return max_length


@triton.jit
def _query_rows(
    pid, winner, g, d_values, dq, d_starts, q_starts, q_lengths,
    stride_wn, stride_wk, stride_gn, stride_gk, stride_d, d_pitch, q_pitch, q_span, K, Lq, Ld, d, splits, q_rows,
    SHARED: tl.constexpr, D_STARTS: tl.constexpr, Q_STARTS: tl.constexpr,
    Q_LENGTHS: tl.constexpr, Q_SLOTS: tl.constexpr,
    BI: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dQ of BI tokens of one query: gather the winning document rows, document by document, and sum them in fp32.

    Where queries are few, `splits` programs share the documents of a query; each writes a partial sum of its own.
    """
    split = pid % splits
    pid = pid // splits
    share = tl.cdiv(tl.cdiv(K, splits), BK) * BK
    tiles = tl.cdiv(q_span, BI)
    n = pid // tiles
    i = (pid % tiles) * BI + tl.arange(0, BI)
    col = tl.arange(0, BD)
    own = winner + n.to(tl.int64) * stride_wn + i[:, None]
    acc = tl.zeros([BI, BK, BD], tl.float32)
    for k0 in range(split * share, tl.minimum(split * share + share, K), BK):
        k = k0 + tl.arange(0, BK)
        m = k
        if not SHARED:
            m = n * K + k
        on = k < K
        token_on = (i < Lq)[:, None] & on[None, :]
        w = tl.load(own + k[None, :].to(tl.int64) * stride_wk, mask=token_on, other=-1).to(tl.int32)
        hit = (w >= 0) & (w < Ld)
        weight = tl.load(g + n.to(tl.int64) * stride_gn + k.to(tl.int64) * stride_gk, mask=on, other=0.0)
        if D_STARTS:
            first = tl.load(d_starts + m, mask=on, other=0)
        else:
            first = m.to(tl.int64) * d_pitch
        row = ((first[None, :] + w) * stride_d)[:, :, None]
        x = tl.load(d_values + row + col[None, None, :], mask=hit[:, :, None] & (col < d)[None, None, :], other=0.0)
        acc += tl.where(hit, weight[None, :], 0.0)[:, :, None] * x.to(tl.float32)
    out = tl.sum(acc, axis=1)
    row = _first_row(q_starts, n, q_pitch, Q_STARTS) + i + split.to(tl.int64) * q_rows
    written = _written_rows(q_lengths, n, Lq, q_span, Q_LENGTHS, Q_SLOTS)
    mask = (i < written)[:, None] & (col < d)[None, :]
    tl.store(dq + row[:, None] * d + col[None, :], out.to(dq.dtype.element_ty), mask=mask)


@triton.jit
def _entries_of(
    pid, winner, stride_wn, stride_wk, NQ, K, Lq, Ld, chunks,
    SHARED: tl.constexpr, LOG_TOKENS: tl.constexpr, LOG_PART: tl.constexpr, PARTS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """BE entries of one document: the document, their numbers, places in [NQ, Lq], bins, and which have a winner.

    Entry (t, i), t-th query of the document and token i, has the number (t << LOG_TOKENS) + i. A row of the document
    has PARTS bins: entries whose numbers agree above LOG_PART bits share one.
    """
    m = pid // chunks
    n0 = 0 * m
    k = m
    if not SHARED:
        n0 = m // K
        k = m - n0 * K
    e = (pid % chunks) * BE + tl.arange(0, BE)
    t, i = e // (1 << LOG_TOKENS), e % (1 << LOG_TOKENS)
    base = winner + n0.to(tl.int64) * stride_wn + k.to(tl.int64) * stride_wk
    w = tl.load(base + t.to(tl.int64) * stride_wn + i, mask=(t < NQ) & (i < Lq), other=-1).to(tl.int32)
    return m, e, t * Lq + i, w * PARTS + e // (1 << LOG_PART), (w >= 0) & (w < Ld)


@triton.jit
def _count_entries(
    pid, winner, place, begin, stride_wn, stride_wk, NQ, K, Lq, Ld, per_document, chunks,
    SHARED: tl.constexpr, LOG_TOKENS: tl.constexpr, LOG_PART: tl.constexpr, PARTS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Counts BE entries of one document by bin, and leaves in `place` how many of its bin were counted before each.

    The counters are `begin`'s own, zero at first; integer sums are the same in any order, but `place` is not: two
    entries of a bin may change places from run to run, which `_sort_bins` undoes. The program that arrives last at a
    document, by the counter behind its bins, turns counts into offsets.
    """
    m, _, at, bin, hit = _entries_of(
        pid, winner, stride_wn, stride_wk, NQ, K, Lq, Ld, chunks, SHARED, LOG_TOKENS, LOG_PART, PARTS, BE
    )
    bins = Ld * PARTS
    counts = begin + m.to(tl.int64) * (bins + 1)
    before = tl.atomic_add(counts + bin, 1, mask=hit, sem="relaxed")
    tl.store(place + m.to(tl.int64) * per_document + at, before.to(place.dtype.element_ty), mask=hit)
    tl.debug_barrier()  # every count of the program is in before it reports
    arrived = tl.atomic_add(counts + bins, 1, sem="acq_rel")
    if arrived == chunks - 1:
        total = 0
        for j0 in range(0, bins, BE):
            j = j0 + tl.arange(0, BE)
            own = tl.load(counts + j, mask=j < bins, other=0, cache_modifier=".cg")
            tl.store(counts + j, total + tl.cumsum(own, axis=0) - own, mask=j < bins)
            total += tl.sum(own, axis=0)
        tl.store(counts + bins, total)


@triton.jit
def _place_entries(
    pid, winner, place, order, begin, stride_wn, stride_wk, NQ, K, Lq, Ld, per_document, chunks,
    SHARED: tl.constexpr, LOG_TOKENS: tl.constexpr, LOG_PART: tl.constexpr, PARTS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Writes the numbers of BE entries to the places in their bins that `_count_entries` gave them."""
    m, e, at, bin, hit = _entries_of(
        pid, winner, stride_wn, stride_wk, NQ, K, Lq, Ld, chunks, SHARED, LOG_TOKENS, LOG_PART, PARTS, BE
    )
    offset = m.to(tl.int64) * per_document
    before = _entry(tl.load(place + offset + at, mask=hit, other=0))
    first = tl.load(begin + m.to(tl.int64) * (Ld * PARTS + 1) + bin, mask=hit, other=0)
    tl.store(order + offset + first + before, e.to(order.dtype.element_ty), mask=hit)


@triton.jit
def _entry(stored):
    """A stored entry as a non-negative int32 (int64 of a library sort); 16-bit ones use all 65536 values."""
    if stored.dtype == tl.int16:
        return stored.to(tl.int32) & 0xFFFF
    else:  # a constexpr branch: without `else` triton types both returns
        return stored


COUNT: tl.constexpr = tl.constexpr(1)
PLACE: tl.constexpr = tl.constexpr(2)


@triton.jit(do_not_specialize=_QUERIES_VARIES)
def queries_beside(
    winner, g, d_values, dq, place, order, begin, d_starts, q_starts, q_lengths,
    stride_wn, stride_wk, stride_d, Lq, d,
    stride_gn, stride_gk, d_pitch, q_pitch, q_span, entry_programs, splits, q_rows,
    NQ, K, Ld, per_document, chunks,
    SHARED: tl.constexpr, D_STARTS: tl.constexpr, Q_STARTS: tl.constexpr,
    Q_LENGTHS: tl.constexpr, Q_SLOTS: tl.constexpr, QUERIES: tl.constexpr, STEP: tl.constexpr,
    LOG_TOKENS: tl.constexpr, LOG_PART: tl.constexpr, PARTS: tl.constexpr,
    BI: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """One STEP of building the CSR in the first `entry_programs` programs, dQ (QUERIES) in the others.

    Counting waits for scattered accesses while dQ waits for the L2 cache, so together they take little more than dQ
    alone. Without a step `place`, `order` and `begin` are not looked at, without QUERIES `dq` is not.
    """
    pid = tl.program_id(0)
    if STEP == COUNT:  # compile-time: triton leaves a branch out only where nothing else is in its condition
        if pid < entry_programs:
            _count_entries(
                pid, winner, place, begin, stride_wn, stride_wk, NQ, K, Lq, Ld, per_document, chunks,
                SHARED, LOG_TOKENS, LOG_PART, PARTS, BE,
            )  # fmt: skip
    elif STEP == PLACE:  # noqa: SIM102  # as above
        if pid < entry_programs:
            _place_entries(
                pid, winner, place, order, begin, stride_wn, stride_wk, NQ, K, Lq, Ld, per_document, chunks,
                SHARED, LOG_TOKENS, LOG_PART, PARTS, BE,
            )  # fmt: skip
    if QUERIES:  # noqa: SIM102  # as above
        if pid >= entry_programs:
            _query_rows(
                pid - entry_programs, winner, g, d_values, dq, d_starts, q_starts, q_lengths,
                stride_wn, stride_wk, stride_gn, stride_gk, stride_d, d_pitch, q_pitch, q_span, K, Lq, Ld, d,
                splits, q_rows, SHARED, D_STARTS, Q_STARTS, Q_LENGTHS, Q_SLOTS, BI, BK, BD,
            )  # fmt: skip


@triton.jit
def _sort_bins(
    order, sorted_to, bins, b0, count, winner, stride_wn, NQ, Lq,
    LOG_TOKENS: tl.constexpr, LOG_PART: tl.constexpr, PARTS: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """Copies BB bins of one document from bin b0 on, of `count`, with their entries in ascending order.

    A bin of up to HUB entries by counting, for each, how many are smaller; a longer one by reading the winners of its
    part of the document again in order, which takes time linear in their number.
    """
    b = b0 + tl.arange(0, BB)
    first = tl.load(bins + b, mask=b < count, other=0)
    last = tl.load(bins + b + 1, mask=b < count, other=0)
    few = tl.where(last - first <= HUB, last, first)
    most = tl.max(few - first, axis=0)
    for i0 in range(0, most, BIN):
        i = first[:, None] + i0 + tl.arange(0, BIN)[None, :]
        on = i < few[:, None]
        e = _entry(tl.load(order + i, mask=on, other=0))
        smaller = tl.zeros([BB, BIN, 4], tl.int32)
        for s0 in range(0, most, 4):
            s = first[:, None] + s0 + tl.arange(0, 4)[None, :]
            other = _entry(tl.load(order + s, mask=s < few[:, None], other=0))
            other = tl.where(s < few[:, None], other, 0x7FFFFFFF)
            smaller += (other[:, None, :] < e[:, :, None]).to(tl.int32)
        at = first[:, None] + tl.sum(smaller, axis=2)
        tl.store(sorted_to + at, e.to(sorted_to.dtype.element_ty), mask=on)
    if tl.max(last - first, axis=0) > HUB:
        lane = tl.arange(0, 512)
        for r in range(BB):
            here = tl.arange(0, BB) == r
            low = tl.sum(tl.where(here, first, 0), axis=0)
            size = tl.sum(tl.where(here, last, 0), axis=0) - low
            row, part = (b0 + r) // PARTS, (b0 + r) % PARTS
            begins = part << LOG_PART
            ends = tl.where(size > HUB, tl.minimum(begins + (1 << LOG_PART), NQ << LOG_TOKENS), begins)
            done = low
            for e0 in range(begins, ends, 512):
                e = e0 + lane
                t, i = e // (1 << LOG_TOKENS), e % (1 << LOG_TOKENS)
                on = (e < ends) & (i < Lq)
                w = tl.load(winner + t.to(tl.int64) * stride_wn + i, mask=on, other=-1).to(tl.int32)
                keep = (w == row).to(tl.int32)
                at = done + tl.cumsum(keep, axis=0) - keep
                tl.store(sorted_to + at, e.to(sorted_to.dtype.element_ty), mask=keep != 0)
                done += tl.sum(keep, axis=0)


@triton.jit
def _weighted_rows(
    order, s, on, m, g, q_values, q_starts, stride_gn, stride_gk, stride_q, q_pitch, K, Lq, col, d,
    SHARED: tl.constexpr, GLOBAL: tl.constexpr, Q_STARTS: tl.constexpr, LOG_TOKENS: tl.constexpr,
):  # fmt: skip
    """g * Q row, fp32 [*s.shape, BD], of the sorted entries at slots s; zeros where `on` is false."""
    e = _entry(tl.load(order + s, mask=on, other=0))
    if GLOBAL:  # entries of the whole batch, numbered row-major over [Nq, K, Lq]
        i, pair = e % Lq, e // Lq
        n, k = pair // K, pair % K
    elif SHARED:
        i, n = e % (1 << LOG_TOKENS), e // (1 << LOG_TOKENS)
        k = n * 0 + m
    else:
        i = e % (1 << LOG_TOKENS)
        n = e * 0 + m // K
        k = e * 0 + m % K
    weight = tl.load(g + n.to(tl.int64) * stride_gn + k.to(tl.int64) * stride_gk, mask=on, other=0.0)
    if Q_STARTS:
        first = tl.load(q_starts + n, mask=on, other=0)
    else:
        first = n.to(tl.int64) * q_pitch
    row = (first + i) * stride_q
    x = tl.load(q_values + tl.expand_dims(row, -1) + col, mask=tl.expand_dims(on, -1) & (col < d), other=0.0)
    return tl.expand_dims(weight, -1) * x.to(tl.float32)


@triton.jit(do_not_specialize=_ROWS_VARIES)
def document_rows(
    order, begin, g, q_values, dd, q_starts, d_starts, d_lengths, winner, sorted_to,
    stride_q, d, stride_wn, stride_wk,
    stride_gn, stride_gk, q_pitch, d_pitch, d_span, NQ, K, Lq, Ld, per_document, LOCKSTEP,
    SHARED: tl.constexpr, GLOBAL: tl.constexpr, Q_STARTS: tl.constexpr, D_STARTS: tl.constexpr,
    D_LENGTHS: tl.constexpr, D_SLOTS: tl.constexpr, LOG_TOKENS: tl.constexpr, LOG_PART: tl.constexpr,
    PARTS: tl.constexpr, BT: tl.constexpr, BB: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Last launch: dD of BT rows of one document (GLOBAL: of the whole buffer) from the entries of each, BR at a time.

    Entries of a row are put into ascending order first, so that the sum has one order; GLOBAL ones are in order. Then
    rows advance together through their first LOCKSTEP entries; what a popular row has beyond is summed by all lanes,
    row after row, so one hub does not make its neighbours wait for it one small step at a time.
    """
    pid = tl.program_id(0)
    tiles = tl.cdiv(d_span, BT)
    m = pid // tiles
    j0 = (pid % tiles) * BT
    bins = begin + m.to(tl.int64) * (Ld * PARTS + 1)
    mine = order + m.to(tl.int64) * per_document
    if not GLOBAL:
        n0 = 0 * m
        k = m
        if not SHARED:
            n0 = m // K
            k = m - n0 * K
        own = winner + n0.to(tl.int64) * stride_wn + k.to(tl.int64) * stride_wk
        to = sorted_to + m.to(tl.int64) * per_document
        for b0 in range(j0 * PARTS, tl.minimum(j0 + BT, Ld) * PARTS, BB):
            _sort_bins(mine, to, bins, b0, Ld * PARTS, own, stride_wn, NQ, Lq, LOG_TOKENS, LOG_PART, PARTS, BB)
        mine = to
        tl.debug_barrier()  # the entries a thread reads below were stored by others of the program
    col = tl.arange(0, BD)
    col3 = col[None, None, :]
    base = _first_row(d_starts, m, d_pitch, D_STARTS)
    written = _written_rows(d_lengths, m, Ld, d_span, D_LENGTHS, D_SLOTS)
    for r0 in range(0, BT, BR):
        j = j0 + r0 + tl.arange(0, BR)
        first = tl.load(bins + j * PARTS, mask=j < Ld, other=0)
        last = tl.load(bins + j * PARTS + PARTS, mask=j < Ld, other=0)
        acc = tl.zeros([BR, BE, BD], tl.float32)
        longest = tl.max(last - first, axis=0)
        for s0 in range(0, tl.minimum(longest, LOCKSTEP), BE):
            s = first[:, None] + s0 + tl.arange(0, BE)[None, :]
            acc += _weighted_rows(
                mine, s, s < last[:, None], m, g, q_values, q_starts, stride_gn, stride_gk, stride_q, q_pitch, K, Lq,
                col3, d, SHARED, GLOBAL, Q_STARTS, LOG_TOKENS,
            )  # fmt: skip
        out = tl.sum(acc, axis=1)
        if longest > LOCKSTEP:
            flat = tl.arange(0, BR * BE)
            col2 = col[None, :]
            for r in range(BR):
                here = tl.arange(0, BR) == r
                low = tl.sum(tl.where(here, first, 0), axis=0) + LOCKSTEP
                high = tl.sum(tl.where(here, last, 0), axis=0)
                rest = tl.zeros([BR * BE, BD], tl.float32)
                for s0 in range(low, high, BR * BE):
                    rest += _weighted_rows(
                        mine, s0 + flat, s0 + flat < high, m, g, q_values, q_starts,
                        stride_gn, stride_gk, stride_q, q_pitch, K, Lq, col2, d, SHARED, GLOBAL, Q_STARTS, LOG_TOKENS,
                    )  # fmt: skip
                out += tl.where(here[:, None], tl.sum(rest, axis=0)[None, :], 0.0)
        mask = (j < written)[:, None] & (col < d)[None, :]
        tl.store(dd + (base + j)[:, None] * d + col[None, :], out.to(dd.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_ONEHOT_VARIES)
def document_rows_onehot(
    winner, g, q_values, dd, q_starts, d_starts, d_lengths,
    stride_wn, stride_wk, stride_q, Lq, d,
    stride_gn, stride_gk, q_pitch, d_pitch, d_span, NQ, K, Ld,
    SHARED: tl.constexpr, Q_STARTS: tl.constexpr, D_STARTS: tl.constexpr,
    D_LENGTHS: tl.constexpr, D_SLOTS: tl.constexpr,
    UPCAST: tl.constexpr, DOT: tl.constexpr, BJ: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dD of BJ rows, BD columns of one document without sorting: g[n] * (onehot(winner[n])ᵀ Q[n]) summed over queries.

    The one-hot operand is exact in any type and the upstream gradient multiplies the fp32 product, so nothing is
    rounded before the sum. Costs as many operations as the forward pass and no memory.
    """
    pid = tl.program_id(0)
    tiles = tl.cdiv(d_span, BJ)
    m = pid // tiles
    j = (pid % tiles) * BJ + tl.arange(0, BJ)
    col = tl.program_id(1) * BD + tl.arange(0, BD)
    n0 = 0 * m
    k = m
    if not SHARED:
        n0 = m // K
        k = m - n0 * K
    acc = tl.zeros([BJ, BD], tl.float32)
    token = tl.arange(0, BI)
    for t in range(0, NQ):
        n = n0 + t
        own = winner + n.to(tl.int64) * stride_wn + k.to(tl.int64) * stride_wk
        first = _first_row(q_starts, n, q_pitch, Q_STARTS)
        part = tl.zeros([BJ, BD], tl.float32)
        for i0 in range(0, Lq, BI):
            i = i0 + token
            w = tl.load(own + i, mask=i < Lq, other=-1).to(tl.int32)
            row = (first + i)[:, None] * stride_q
            x = tl.load(q_values + row + col[None, :], mask=(w >= 0)[:, None] & (col < d)[None, :], other=0.0)
            if UPCAST:
                x = x.to(tl.float32)
            hot = (j[:, None] == w[None, :]).to(x.dtype)
            part = tl.dot(hot, x, part, input_precision=DOT)
        # the first token of a query has a winner unless query or document is empty: then not even a NaN of g counts
        weight = tl.load(g + n.to(tl.int64) * stride_gn + k.to(tl.int64) * stride_gk)
        acc += tl.where(tl.load(own, mask=Lq > 0, other=-1) >= 0, weight, 0.0) * part
    row = _first_row(d_starts, m, d_pitch, D_STARTS) + j
    written = _written_rows(d_lengths, m, Ld, d_span, D_LENGTHS, D_SLOTS)
    mask = (j < written)[:, None] & (col < d)[None, :]
    tl.store(dd + row[:, None] * d + col[None, :], acc.to(dd.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_ATOMIC_VARIES)
def scatter_atomic(
    winner, g, q_values, dd, q_starts, d_starts,
    stride_wn, stride_wk, stride_q, Lq, d,
    stride_gn, stride_gk, q_pitch, d_pitch, K, Ld, k_programs,
    SHARED: tl.constexpr, Q_STARTS: tl.constexpr, D_STARTS: tl.constexpr,
    BI: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Adds g * Q to the fp32 rows that won, by atomics: the order of additions, so the last bits, are not fixed."""
    pid = tl.program_id(0)
    tiles = tl.cdiv(Lq, BI)
    n = pid // (tiles * k_programs)
    i = (pid // k_programs) % tiles * BI + tl.arange(0, BI)
    col = tl.arange(0, BD)
    row = (_first_row(q_starts, n, q_pitch, Q_STARTS) + i) * stride_q
    inside = (i < Lq)[:, None] & (col < d)[None, :]
    x = tl.load(q_values + row[:, None] + col[None, :], mask=inside, other=0.0).to(tl.float32)
    k0 = (pid % k_programs) * BK
    for step in range(0, tl.minimum(BK, K - k0)):
        k = k0 + step
        m = k
        if not SHARED:
            m = n * K + k
        own = winner + n.to(tl.int64) * stride_wn + k.to(tl.int64) * stride_wk
        w = tl.load(own + i, mask=i < Lq, other=-1).to(tl.int32)
        weight = tl.load(g + n.to(tl.int64) * stride_gn + k.to(tl.int64) * stride_gk)
        target = (_first_row(d_starts, m, d_pitch, D_STARTS) + w) * d
        hit = ((w >= 0) & (w < Ld))[:, None] & (col < d)[None, :]
        tl.atomic_add(dd + target[:, None] + col[None, :], weight * x, mask=hit, sem="relaxed")


INTERPRETED = isinstance(scatter_atomic, InterpretedFunction)  # TRITON_INTERPRET was set when this module was imported
