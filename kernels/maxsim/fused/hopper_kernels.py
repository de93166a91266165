"""Device side of the Hopper forward: Gluon kernels for sm_90. `hopper.py` plans, checks and launches them.

Room: `fused`. May import: triton. Imported by `hopper.py` only when a kernel is compiled; importing it needs no GPU.

Shape of the kernel. A program is one loader warp and NC consumer warpgroups. The loader copies tiles of BN document rows
into a ring of ST stages by TMA; consumer W holds BM query rows in shared memory, multiplies them with every tile (wgmma,
fp32 accumulator in registers) and keeps the row maxima in registers. The two consumers see the same tiles, so one's
maximum runs under the other's matrix product.

Query rows live in *units* of 64: a unit is 64/G queries of at most G tokens each (G = 8, 16, 32 or 64), or 64 of the rows
of a longer query, which then has `parts` units. Row maxima are always summed over one unit's G rows first, by the same
reduction tree wherever the unit sits, so a score has the same bits in every batch.

Document rows are a stream. A tile begins where the previous document or the previous tile ended; every document that ends
or begins inside the tile is masked to its columns. Only where the next document is elsewhere (padding, a reranking list)
a new tile begins at its first row. The loader and the consumers walk the same documents, so they agree on the tiles
without talking about them.

Work is cut into chunks: query group (NC * BM / 64 units) times block of documents. Program p takes chunks p, p + programs,
...; neighbours in that order share documents, which meet in L2.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ALL = gl.constexpr(tl.PropagateNan.ALL)
UNIT = gl.constexpr(64)


@gluon.jit
def _max_nan(a, b):
    """Maximum that keeps NaN: `max.NaN.f32` in PTX, the same number of instructions as the one that drops it."""
    return gl.maximum(a, b, propagate_nan=ALL)


@gluon.jit
def _span(doc, first, d_start_ptr, d_len_ptr, d_pitch, d_max, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr):
    """First row and end row of document `first + doc`; a length outside [0, d_max] is clamped."""
    index = first + doc
    if HAS_STARTS:
        start = gl.load(d_start_ptr + index).to(gl.int32)
    else:
        start = index * d_pitch
    if HAS_LENGTHS:
        length = gl.maximum(gl.minimum(gl.load(d_len_ptr + index), d_max), 0)
    else:
        length = d_max
    return start, start + length


@gluon.jit
def _lower_bound(d_start_ptr, K, target, THREADS: gl.constexpr):
    """How many of the K sorted starts are below `target`: a search with 32 * THREADS probes a step."""
    wide: gl.constexpr = gl.BlockedLayout([1], [32], [THREADS], [0])
    probe = gl.arange(0, 32 * THREADS, layout=wide)
    base = 0
    count = K
    while count > 1:
        stride = (count + 32 * THREADS - 1) // (32 * THREADS)
        inside = probe * stride < count
        start = gl.load(d_start_ptr + base + gl.where(inside, probe * stride, 0)).to(gl.int32)
        below = gl.sum((inside & (start < target)).to(gl.int32), axis=0)
        skipped = gl.maximum(below - 1, 0) * stride
        base += skipped
        count = gl.minimum(stride, count - skipped)
    return base + (gl.load(d_start_ptr + base).to(gl.int32) < target).to(gl.int32)


@gluon.jit
def _block(block, n_blocks, K, d_start_ptr, d_total, BALANCED: gl.constexpr, THREADS: gl.constexpr):
    """Documents lo .. hi - 1 of a block: equal counts, or equal numbers of rows where the starts are sorted."""
    if BALANCED:
        lo = _lower_bound(d_start_ptr, K, (block.to(gl.int64) * d_total // n_blocks).to(gl.int32), THREADS)
        hi = _lower_bound(d_start_ptr, K, ((block + 1).to(gl.int64) * d_total // n_blocks).to(gl.int32), THREADS)
        hi = gl.where(block + 1 == n_blocks, K, hi)
    else:
        lo = (block.to(gl.int64) * K // n_blocks).to(gl.int32)
        hi = ((block + 1).to(gl.int64) * K // n_blocks).to(gl.int32)
    return lo, hi


@gluon.jit
def _row_max(s, c0, c1, BN: gl.constexpr, col: gl.constexpr, MASKED: gl.constexpr, ARGMAX: gl.constexpr):
    """Per row of the tile the maximum over columns c0 .. c1 - 1 and, on request, the first column that attains it."""
    cols = gl.arange(0, BN, layout=col)
    if MASKED:
        s = gl.where(((cols >= c0) & (cols < c1))[None, :], s, float("-inf"))
    best = gl.reduce(s, 1, _max_nan)
    if ARGMAX:
        # "not less than" finds the maximum and, in a row whose maximum is NaN, still a column that exists.
        at = gl.min(gl.where(s < best[:, None], BN, cols[None, :]), axis=1)
        at = gl.maximum(at, c0)
    else:
        at = 0
    return best, at


@gluon.jit
def _fold(m, mi, best, at, ARGMAX: gl.constexpr):
    """Running maximum and index after a tile; an equal value found later does not move the index."""
    if ARGMAX:
        mi = gl.where(best > m, at, mi)
    return gl.maximum(m, best, propagate_nan=ALL), mi


@gluon.jit
def _multiply(
    q_tiles, d_bufs, full, acc, it, loads, kc, W: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr,
    QST: gl.constexpr, NC: gl.constexpr,
):  # fmt: skip
    """Issue the products of stage `kc` of a tile onto `acc`, which the first of them overwrites."""
    stage = it % ST
    mbarrier.wait(full.index(stage), (it // ST) & 1)
    for ks in gl.static_range(KS):
        if QST > 0:
            q_at = (((loads - 1) % QST) * NC + W) * (KC * KS) + kc * KS + ks
        else:
            q_at = (stage * NC + W) * KS + ks
        acc = warpgroup_mma(
            q_tiles.index(q_at), d_bufs.index(stage * KS + ks).permute((1, 0)), acc,
            use_acc=True if ks > 0 else kc > 0, is_async=True,
        )  # fmt: skip
    return acc


@gluon.jit
def _consume(
    q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid, programs,
    n_chunks, n_groups, n_blocks, Nq, K, q_max, d_pitch, d_max, d_total, parts, W: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr, QST: gl.constexpr, NC: gl.constexpr,
    G: gl.constexpr, SUM: gl.constexpr, SHARED: gl.constexpr, HAS_Q_LENGTHS: gl.constexpr, HAS_STARTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr, BALANCED: gl.constexpr, ARGMAX: gl.constexpr,
):  # fmt: skip
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 16])
    row: gl.constexpr = gl.SliceLayout(1, acc_layout)
    col: gl.constexpr = gl.SliceLayout(0, acc_layout)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    USED: gl.constexpr = UNIT // G if SHARED else 1
    SLOTS: gl.constexpr = BM // SUM
    RUN: gl.constexpr = SUM if SUM > UNIT else UNIT
    zero = gl.zeros([BM, BN], gl.float32, acc_layout)
    it = 0
    loads = 0
    last = -1
    for chunk in range(pid, n_chunks, programs):
        group = chunk % n_groups
        block = chunk // n_groups
        if group != last:
            if QST > 0:
                if last >= 0:
                    mbarrier.arrive(q_empty.index((loads - 1) % QST), count=1)
                mbarrier.wait(q_full.index(loads % QST), (loads // QST) & 1)
            loads += 1
            last = group
        unit0 = (group * NC + W) * (BM // UNIT)
        # -- which query and token every row is, and where the sums of this consumer go
        r = gl.arange(0, BM, layout=row)
        unit = unit0 + r // UNIT
        slot = (r % UNIT) // G
        n = gl.where(slot < USED, (unit // parts) * USED + slot, Nq)
        token = (unit % parts) * UNIT + r % G
        if HAS_Q_LENGTHS:
            q_len = gl.minimum(gl.load(q_len_ptr + n, mask=n < Nq, other=0), q_max)
        else:
            q_len = q_max
        valid = (n < Nq) & (token < q_len)
        o = gl.arange(0, SLOTS, layout=flat) * SUM
        o_unit = unit0 + o // UNIT
        o_slot = (o % UNIT) // G
        o_n = gl.where(o_slot < USED, (o_unit // parts) * USED + o_slot, Nq)
        o_row = o_n * (parts * UNIT // RUN) + (o_unit % parts) * UNIT // RUN
        o_at = o_row.to(gl.int64) * K
        o_ok = o_n < Nq
        first = 0 if SHARED else ((group * NC * (BM // UNIT)) // parts) * K
        lo, hi = _block(block, n_blocks, K, d_start_ptr, d_total, BALANCED, 4)
        doc = lo
        start = 0
        end = 0
        if lo < hi:
            start, end = _span(lo, first, d_start_ptr, d_len_ptr, d_pitch, d_max, HAS_STARTS, HAS_LENGTHS)
        cur = start
        m = gl.full([BM], float("-inf"), gl.float32, row)
        mi = gl.full([BM], 0, gl.int32, row)
        while doc < hi:
            # -- multiply
            if KC == 1:
                acc = _multiply(q_tiles, d_bufs, full, zero, it, loads, 0, W, KS, KC, ST, QST, NC)
                it += 1
            else:
                acc = zero
                for kc in range(KC):
                    pending = _multiply(q_tiles, d_bufs, full, acc, it, loads, kc, W, KS, KC, ST, QST, NC)
                    # the stage before this one has been read when only this one's products are outstanding
                    acc = warpgroup_mma_wait(KS, deps=(pending,))
                    mbarrier.arrive(empty.index((it + ST - 1) % ST), count=1, pred=kc > 0)
                    it += 1
            s = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(empty.index((it - 1) % ST), count=1)
            # -- reduce: the document that the tile begins in, then those that begin inside the tile
            tile = cur
            c1 = end - tile
            if c1 >= BN:
                best, at = _row_max(s, 0, BN, BN, col, False, ARGMAX)
            else:
                best, at = _row_max(s, 0, c1, BN, col, True, ARGMAX)
            m, mi = _fold(m, mi, best, at + (tile - start), ARGMAX)
            cur = tile + BN
            ended = c1 <= BN
            while ended:
                # -- store
                kept = gl.where(valid, m, 0.0)
                sums = gl.sum(gl.reshape(kept, [BM // G, G]), axis=1)
                if SUM > UNIT:
                    sums = gl.sum(gl.reshape(sums, [SLOTS, SUM // UNIT]), axis=1)
                gl.store(out_ptr + o_at + doc, gl.convert_layout(sums, flat), mask=o_ok)
                if ARGMAX:
                    won = gl.where(valid & (end > start), mi, -1).to(arg_ptr.dtype.element_ty)
                    at64 = (n.to(gl.int64) * K + doc) * q_max + token
                    gl.store(arg_ptr + at64, won, mask=(n < Nq) & (token < q_max))
                m = gl.full([BM], float("-inf"), gl.float32, row)
                mi = gl.full([BM], 0, gl.int32, row)
                doc += 1
                ended = False
                if doc < hi:
                    start, end = _span(doc, first, d_start_ptr, d_len_ptr, d_pitch, d_max, HAS_STARTS, HAS_LENGTHS)
                    c0 = start - tile
                    if (c0 >= 0) & (c0 < BN):
                        best, at = _row_max(s, c0, end - tile, BN, col, True, ARGMAX)
                        m, mi = _fold(m, mi, best, at - c0, ARGMAX)
                        ended = end - tile <= BN
                    else:
                        cur = start


@gluon.jit
def _load_query(
    q_desc, q_boxes, bar, q_start_ptr, group, at, column, Nq, q_pitch, q_rows, parts, KT: gl.constexpr, BM: gl.constexpr,
    NC: gl.constexpr, G: gl.constexpr, SHARED: gl.constexpr, HAS_Q_STARTS: gl.constexpr,
):  # fmt: skip
    """Columns `column` .. of the group's query rows into the boxes of tile `at` (and `at + KT` of the next consumer)."""
    USED: gl.constexpr = UNIT // G if SHARED else 1
    for w in gl.static_range(NC):
        for u in gl.static_range(BM // UNIT):
            unit = (group * NC + w) * (BM // UNIT) + u
            for slot in gl.static_range(USED):
                n = (unit // parts) * USED + slot
                known = gl.minimum(n, Nq - 1)
                if HAS_Q_STARTS:
                    start = gl.load(q_start_ptr + known).to(gl.int32)
                else:
                    start = known * q_pitch
                # rows past the tensor read as zero, and still count as bytes that arrive
                line = gl.where(n < Nq, start + (unit % parts) * UNIT, q_rows)
                box = (at + w * KT) * (BM // G) + u * (UNIT // G) + slot
                tma.async_copy_global_to_shared(q_desc, [line, column], bar, q_boxes.index(box))


@gluon.jit
def _load(
    q_desc, d_desc, q_boxes, d_bufs, q_full, q_empty, full, empty, q_start_ptr, d_start_ptr, d_len_ptr, pid, programs,
    n_chunks, n_groups, n_blocks, Nq, K, q_pitch, q_rows, d_pitch, d_max, d_total, parts, BM: gl.constexpr,
    BN: gl.constexpr, BK: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr, QST: gl.constexpr,
    NC: gl.constexpr, G: gl.constexpr, SHARED: gl.constexpr, HAS_Q_STARTS: gl.constexpr, HAS_STARTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr, BALANCED: gl.constexpr,
):  # fmt: skip
    KT: gl.constexpr = KC * KS
    BOXES: gl.constexpr = NC * (BM // UNIT) * (UNIT // G if SHARED else 1)  # copies that bring one column block of queries
    it = 0
    loads = 0
    last = -1
    for chunk in range(pid, n_chunks, programs):
        group = chunk % n_groups
        block = chunk // n_groups
        if QST > 0:
            if group != last:
                q_stage = loads % QST
                mbarrier.wait(q_empty.index(q_stage), ((loads // QST) & 1) ^ 1)
                mbarrier.expect(q_full.index(q_stage), KT * BOXES * q_desc.block_type.nbytes)
                for k in range(KT):
                    _load_query(
                        q_desc, q_boxes, q_full.index(q_stage), q_start_ptr, group, q_stage * NC * KT + k, k * BK, Nq,
                        q_pitch, q_rows, parts, KT, BM, NC, G, SHARED, HAS_Q_STARTS,
                    )  # fmt: skip
                loads += 1
                last = group
        first = 0 if SHARED else ((group * NC * (BM // UNIT)) // parts) * K
        lo, hi = _block(block, n_blocks, K, d_start_ptr, d_total, BALANCED, 1)
        doc = lo
        cur = 0
        end = 0
        if lo < hi:
            cur, end = _span(lo, first, d_start_ptr, d_len_ptr, d_pitch, d_max, HAS_STARTS, HAS_LENGTHS)
        while doc < hi:
            tile = cur
            for kc in range(KC):
                stage = it % ST
                bar = full.index(stage)
                mbarrier.wait(empty.index(stage), ((it // ST) & 1) ^ 1)
                if QST > 0:
                    mbarrier.expect(bar, KS * d_desc.block_type.nbytes)
                else:
                    mbarrier.expect(bar, KS * (d_desc.block_type.nbytes + BOXES * q_desc.block_type.nbytes))
                for ks in gl.static_range(KS):
                    column = (kc * KS + ks) * BK
                    tma.async_copy_global_to_shared(d_desc, [tile, column], bar, d_bufs.index(stage * KS + ks))
                    if QST == 0:
                        _load_query(
                            q_desc, q_boxes, bar, q_start_ptr, group, stage * NC * KS + ks, column, Nq, q_pitch, q_rows,
                            parts, KS, BM, NC, G, SHARED, HAS_Q_STARTS,
                        )  # fmt: skip
                it += 1
            cur = tile + BN
            ended = end <= cur
            while ended:
                doc += 1
                ended = False
                if doc < hi:
                    start, end = _span(doc, first, d_start_ptr, d_len_ptr, d_pitch, d_max, HAS_STARTS, HAS_LENGTHS)
                    if (start >= tile) & (start < tile + BN):
                        ended = end <= tile + BN
                    else:
                        cur = start


# A specialised function sees constexpr values only if the argument tuple is written out at the call, hence the lists.
@gluon.jit
def _consume0(
    q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr, q_start_ptr, q_len_ptr,
    d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K, q_pitch, q_max, q_rows, d_pitch, d_max,
    d_total, parts, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr,
    ST: gl.constexpr, QST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr, SUM: gl.constexpr, SHARED: gl.constexpr,
    HAS_Q_STARTS: gl.constexpr, HAS_Q_LENGTHS: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr,
    BALANCED: gl.constexpr, ARGMAX: gl.constexpr,
):  # fmt: skip
    _consume(q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid,
             programs, n_chunks, n_groups, n_blocks, Nq, K, q_max, d_pitch, d_max, d_total, parts, 0, BM, BN, KS, KC, ST,
             QST, NC, G, SUM, SHARED, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)  # fmt: skip


@gluon.jit
def _consume1(
    q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr, q_start_ptr, q_len_ptr,
    d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K, q_pitch, q_max, q_rows, d_pitch, d_max,
    d_total, parts, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr,
    ST: gl.constexpr, QST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr, SUM: gl.constexpr, SHARED: gl.constexpr,
    HAS_Q_STARTS: gl.constexpr, HAS_Q_LENGTHS: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr,
    BALANCED: gl.constexpr, ARGMAX: gl.constexpr,
):  # fmt: skip
    _consume(q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid,
             programs, n_chunks, n_groups, n_blocks, Nq, K, q_max, d_pitch, d_max, d_total, parts, 1, BM, BN, KS, KC, ST,
             QST, NC, G, SUM, SHARED, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)  # fmt: skip


@gluon.jit
def _loader(
    q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr, q_start_ptr, q_len_ptr,
    d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K, q_pitch, q_max, q_rows, d_pitch, d_max,
    d_total, parts, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr,
    ST: gl.constexpr, QST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr, SUM: gl.constexpr, SHARED: gl.constexpr,
    HAS_Q_STARTS: gl.constexpr, HAS_Q_LENGTHS: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr,
    BALANCED: gl.constexpr, ARGMAX: gl.constexpr,
):  # fmt: skip
    _load(q_desc, d_desc, q_boxes, d_bufs, q_full, q_empty, full, empty, q_start_ptr, d_start_ptr, d_len_ptr, pid, programs,
          n_chunks, n_groups, n_blocks, Nq, K, q_pitch, q_rows, d_pitch, d_max, d_total, parts, BM, BN, BK, KS, KC, ST, QST,
          NC, G, SHARED, HAS_Q_STARTS, HAS_STARTS, HAS_LENGTHS, BALANCED)  # fmt: skip


_RUNTIME = (
    "out_ptr", "arg_ptr", "q_start_ptr", "q_len_ptr", "d_start_ptr", "d_len_ptr", "n_chunks", "n_groups", "n_blocks", "Nq",
    "K", "q_pitch", "q_max", "q_rows", "d_pitch", "d_max", "d_total", "parts",
)  # fmt: skip


# Nothing is specialised on a run-time value, so new lengths and counts never compile anything.
@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def maxsim_forward(
    q_desc, d_desc, out_ptr, arg_ptr, q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, n_chunks, n_groups, n_blocks, Nq, K,
    q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    KS: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr, QST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr,
    SUM: gl.constexpr, SHARED: gl.constexpr, HAS_Q_STARTS: gl.constexpr, HAS_Q_LENGTHS: gl.constexpr,
    HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr, BALANCED: gl.constexpr, ARGMAX: gl.constexpr, R1: gl.constexpr,
    R2: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Sums of row maxima: out[(n * sums + i) * K + k] for query n, its i-th run of SUM rows and document k, fp32.

    q_desc [q_rows, d] in boxes [G, BK]; d_desc [R, d] in boxes [BN, BK]; arg_ptr int16 or int32 [Nq, K, q_max].
    SHARED: all queries meet documents 0 .. K - 1; otherwise query n meets n * K .. n * K + K - 1.
    KS boxes of BK columns make a stage, KC stages a document tile. QST > 0: query groups resident in shared memory;
    QST = 0: their rows travel through the ring with the document's.
    """
    pid = gl.program_id(0)
    programs = gl.num_programs(0)
    Q_TILES: gl.constexpr = (QST * KC if QST > 0 else ST) * KS * NC
    q_boxes = gl.allocate_shared_memory(q_desc.dtype, [Q_TILES * (BM // G), G, BK], q_desc.layout)
    q_tiles = q_boxes._reinterpret(q_desc.dtype, [Q_TILES, BM, BK], q_desc.layout)
    d_bufs = gl.allocate_shared_memory(d_desc.dtype, [ST * KS, BN, BK], d_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [QST if QST > 0 else 1, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [QST if QST > 0 else 1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(ST):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=NC)
    for i in gl.static_range(QST):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=NC)
    fence_async_shared()
    if NC == 2:
        gl.warp_specialize([
            (_consume0, (q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr,
                         q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K,
                         q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM, BN, BK, KS, KC, ST, QST, NC, G, SUM,
                         SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)),
            (_consume1, (q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr,
                         q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K,
                         q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM, BN, BK, KS, KC, ST, QST, NC, G, SUM,
                         SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)),
            (_loader, (q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr,
                       q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K,
                       q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM, BN, BK, KS, KC, ST, QST, NC, G, SUM,
                       SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)),
        ], [4, 1], [R1, R2])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consume0, (q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr,
                         q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K,
                         q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM, BN, BK, KS, KC, ST, QST, NC, G, SUM,
                         SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)),
            (_loader, (q_desc, d_desc, q_boxes, q_tiles, d_bufs, q_full, q_empty, full, empty, out_ptr, arg_ptr,
                       q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, pid, programs, n_chunks, n_groups, n_blocks, Nq, K,
                       q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM, BN, BK, KS, KC, ST, QST, NC, G, SUM,
                       SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS, HAS_LENGTHS, BALANCED, ARGMAX)),
        ], [1], [R2])  # fmt: skip


_SUM_RUNTIME = ("part_ptr", "out_ptr", "Nq", "K", "sums")


@gluon.jit(do_not_specialize=_SUM_RUNTIME, do_not_specialize_on_alignment=_SUM_RUNTIME)
def add_sums(part_ptr, out_ptr, Nq, K, sums, PAIRS: gl.constexpr, num_warps: gl.constexpr):
    """out [Nq, K] from partial sums [Nq, sums, K], fp32, one order for every batch: pairs of 64-row sums, then in turn."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    n = gl.program_id(1)
    k = gl.program_id(0) * 128 + gl.arange(0, 128, layout=flat)
    inside = k < K
    base = part_ptr + n.to(gl.int64) * sums * K + k
    total = gl.zeros([128], gl.float32, flat)
    for i in range(0, sums, 2 if PAIRS else 1):
        run = gl.load(base + i.to(gl.int64) * K, mask=inside, other=0.0)
        if PAIRS:
            run += gl.load(base + (i + 1).to(gl.int64) * K, mask=inside & (i + 1 < sums), other=0.0)
        total += run
    gl.store(out_ptr + n.to(gl.int64) * K + k, total, mask=inside)
