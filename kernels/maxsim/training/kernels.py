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
_COUNT_VARIES = [*_SHARED, "q_span", "count_programs", "splits", "q_rows", "NQ", "per_document", "chunks"]
_PLACE_VARIES = ["NQ", "K", "Ld", "per_document", "chunks"]
_ROWS_VARIES = [*_SHARED, "d_span", "Lq", "NQ", "per_document", "LOCKSTEP"]
_ONEHOT_VARIES = [*_SHARED, "d_span", "NQ"]
_ATOMIC_VARIES = [*_SHARED, "k_programs"]


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
def _count_entries(
    pid, winner, place, begin, stride_wn, stride_wk, NQ, K, Lq, Ld, per_document, chunks,
    SHARED: tl.constexpr, LOG_TOKENS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Counts the winners of BE entries of one document, and leaves in `place` how many of its row came before each.

    The counters are `begin`'s own, zero at first; integer sums are the same in any order, but `place` is not: two
    entries of a row may change places from run to run, which `_sort_rows` undoes. The program that arrives last at a
    document, by its counter Ld, turns its counts into row offsets.
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
    hit = (w >= 0) & (w < Ld)
    counts = begin + m.to(tl.int64) * (Ld + 1)
    before = tl.atomic_add(counts + w, 1, mask=hit, sem="relaxed")
    tl.store(place + m.to(tl.int64) * per_document + t * Lq + i, before.to(place.dtype.element_ty), mask=hit)
    tl.debug_barrier()  # every count of the program is in before it reports
    arrived = tl.atomic_add(counts + Ld, 1, sem="acq_rel")
    if arrived == chunks - 1:
        total = 0
        for j0 in range(0, Ld, BE):
            j = j0 + tl.arange(0, BE)
            own = tl.load(counts + j, mask=j < Ld, other=0, cache_modifier=".cg")
            tl.store(counts + j, total + tl.cumsum(own, axis=0) - own, mask=j < Ld)
            total += tl.sum(own, axis=0)
        tl.store(counts + Ld, total)


@triton.jit
def _entry(stored):
    """A stored entry as a non-negative int32 (int64 of a library sort); 16-bit ones use all 65536 values."""
    if stored.dtype == tl.int16:
        return stored.to(tl.int32) & 0xFFFF
    else:  # a constexpr branch: without `else` triton types both returns
        return stored


@triton.jit(do_not_specialize=_COUNT_VARIES)
def queries_and_count(
    winner, g, d_values, dq, place, begin, d_starts, q_starts, q_lengths,
    stride_wn, stride_wk, stride_d, Lq, d,
    stride_gn, stride_gk, d_pitch, q_pitch, q_span, count_programs, splits, q_rows,
    NQ, K, Ld, per_document, chunks,
    SHARED: tl.constexpr, D_STARTS: tl.constexpr, Q_STARTS: tl.constexpr,
    Q_LENGTHS: tl.constexpr, Q_SLOTS: tl.constexpr, COUNT: tl.constexpr,
    LOG_TOKENS: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """First launch of the CSR backward: programs below `count_programs` count entries, the others sum dQ.

    The two are independent, one waits for memory while the other computes, and one launch costs less than two. Without
    COUNT there are no counting programs, and `place` and `begin` are not looked at.
    """
    pid = tl.program_id(0)
    if COUNT:
        if pid < count_programs:
            _count_entries(
                pid, winner, place, begin, stride_wn, stride_wk, NQ, K, Lq, Ld, per_document, chunks,
                SHARED, LOG_TOKENS, BE,
            )  # fmt: skip
    if pid >= count_programs:
        _query_rows(
            pid - count_programs, winner, g, d_values, dq, d_starts, q_starts, q_lengths,
            stride_wn, stride_wk, stride_gn, stride_gk, stride_d, d_pitch, q_pitch, q_span, K, Lq, Ld, d,
            splits, q_rows, SHARED, D_STARTS, Q_STARTS, Q_LENGTHS, Q_SLOTS, BI, BK, BD,
        )  # fmt: skip


@triton.jit(do_not_specialize=_PLACE_VARIES)
def place_entries(
    winner, place, order, begin,
    stride_wn, stride_wk, Lq,
    NQ, K, Ld, per_document, chunks,
    SHARED: tl.constexpr, LOG_TOKENS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Second launch: every entry goes to the slot of its row that `_count_entries` gave it.

    Entry (t, i), t-th query of the document and token i, is stored as (t << LOG_TOKENS) + i in the type of `order`.
    """
    pid = tl.program_id(0)
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
    hit = (w >= 0) & (w < Ld)
    offset = m.to(tl.int64) * per_document
    before = _entry(tl.load(place + offset + t * Lq + i, mask=hit, other=0))
    first = tl.load(begin + m.to(tl.int64) * (Ld + 1) + w, mask=hit, other=0)
    tl.store(order + offset + first + before, e.to(order.dtype.element_ty), mask=hit)


@triton.jit
def _sort_rows(
    order, sorted_to, first, last, winner, j, stride_wn, NQ, Lq,
    LOG_TOKENS: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr, HUB: tl.constexpr,
):  # fmt: skip
    """Copies BR rows of one document with their entries in ascending order.

    A row of up to HUB entries by counting, for each, how many are smaller; a longer one by reading all winners of the
    document again in order, which takes time linear in their number.
    """
    BO: tl.constexpr = 512 // (BR * BS)  # entries compared with at a time: 16 comparisons a thread
    few = tl.where(last - first <= HUB, last, first)
    most = tl.max(few - first, axis=0)
    for i0 in range(0, most, BS):
        i = first[:, None] + i0 + tl.arange(0, BS)[None, :]
        on = i < few[:, None]
        e = _entry(tl.load(order + i, mask=on, other=0))
        smaller = tl.zeros([BR, BS, BO], tl.int32)
        for s0 in range(0, most, BO):
            s = first[:, None] + s0 + tl.arange(0, BO)[None, :]
            other = _entry(tl.load(order + s, mask=s < few[:, None], other=0))
            other = tl.where(s < few[:, None], other, 0x7FFFFFFF)
            smaller += (other[:, None, :] < e[:, :, None]).to(tl.int32)
        at = first[:, None] + tl.sum(smaller, axis=2)
        tl.store(sorted_to + at, e.to(sorted_to.dtype.element_ty), mask=on)
    if tl.max(last - first, axis=0) > HUB:
        lane = tl.arange(0, 512)
        for r in range(BR):
            here = tl.arange(0, BR) == r
            low = tl.sum(tl.where(here, first, 0), axis=0)
            size = tl.sum(tl.where(here, last, 0), axis=0) - low
            row = tl.sum(tl.where(here, j, 0), axis=0)
            total = tl.where(size > HUB, NQ << LOG_TOKENS, 0)
            done = low
            for e0 in range(0, total, 512):
                e = e0 + lane
                t, i = e // (1 << LOG_TOKENS), e % (1 << LOG_TOKENS)
                on = (t < NQ) & (i < Lq)
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
    D_LENGTHS: tl.constexpr, D_SLOTS: tl.constexpr, LOG_TOKENS: tl.constexpr,
    BR: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr, HUB: tl.constexpr,
):  # fmt: skip
    """Last launch: dD of BR rows of one document (GLOBAL: of the whole buffer) from the entries of each.

    Entries of a row are put into ascending order first, so that the sum has one order; GLOBAL ones are in order.
    The rows advance together through their first LOCKSTEP entries; what a popular row has beyond is summed by all
    lanes, row after row, so one hub does not make its neighbours wait for it one small step at a time.
    """
    pid = tl.program_id(0)
    tiles = tl.cdiv(d_span, BR)
    m = pid // tiles
    j = (pid % tiles) * BR + tl.arange(0, BR)
    rows = begin + m.to(tl.int64) * (Ld + 1)
    first = tl.load(rows + j, mask=j < Ld, other=0)
    last = tl.load(rows + j + 1, mask=j < Ld, other=0)
    mine = order + m.to(tl.int64) * per_document
    if not GLOBAL:
        n0 = 0 * m
        k = m
        if not SHARED:
            n0 = m // K
            k = m - n0 * K
        own = winner + n0.to(tl.int64) * stride_wn + k.to(tl.int64) * stride_wk
        to = sorted_to + m.to(tl.int64) * per_document
        _sort_rows(mine, to, first, last, own, j, stride_wn, NQ, Lq, LOG_TOKENS, BR, BS, HUB)
        mine = to
        tl.debug_barrier()  # the entries a thread reads below were stored by others of the program
    col = tl.arange(0, BD)
    col3 = col[None, None, :]
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
    row = _first_row(d_starts, m, d_pitch, D_STARTS) + j
    written = _written_rows(d_lengths, m, Ld, d_span, D_LENGTHS, D_SLOTS)
    mask = (j < written)[:, None] & (col < d)[None, :]
    tl.store(dd + row[:, None] * d + col[None, :], out.to(dd.dtype.element_ty), mask=mask)


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
        acc += tl.load(g + n.to(tl.int64) * stride_gn + k.to(tl.int64) * stride_gk) * part
    if D_LENGTHS:  # an upstream NaN must not reach an empty document
        acc = tl.where(tl.load(d_lengths + m) > 0, acc, 0.0)
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
