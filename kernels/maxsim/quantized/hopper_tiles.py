# Arguments of kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: RUF005  (Gluon does not unpack in lists)
"""INT8 and FP8 MaxSim for Hopper (sm_90) in Gluon where a scale belongs to a token and the query is long.

Room: `quantized`. May import: fused, tokens. Beside `hopper_kernels.py` for one reason: with a scale a token its tight
loop over the whole tiles of a document is faster than one loop for any piece of one. Lq = Ld = 1024 on an H200: 1 010
TOP/s against 908, and 917 against 827 for 16 queries of 32 tokens.

One loader warp feeds a ring of [BN, BK] code tiles; each of NC consumer warpgroups keeps BM query rows in shared memory
and walks over its documents with the row maxima in registers. A document begins a tile, at most three rows early for
the sake of its scales, and a tail of at most half a tile is multiplied at half the width. The epilogues are those of
`hopper_kernels.py` and give the same bits.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# `MODE`, as `hopper.EPILOGUES` has it
TOKEN = gl.constexpr(1)
TOKEN_ANY = gl.constexpr(2)
FP8_TOKEN = gl.constexpr(4)

MAGIC = gl.constexpr(0x4B400000)  # bits of 1.5 * 2^23 as fp32
MAGIC_F = gl.constexpr(12582912.0)


@gluon.jit
def _entry(ptr, doc, B, otherwise, GIVEN: gl.constexpr):
    """Entry of `ptr` for document `doc`, clamped to the last one so that looking one ahead stays in bounds."""
    if GIVEN:
        return gl.load(ptr + gl.minimum(doc, B - 1)).to(gl.int32)
    return otherwise


@gluon.jit
def _columns(start, length, max_len):
    """Columns [low, high) of a document, counted from where its first tile begins.

    The scales of a tile are copied from a 16-byte boundary, four rows, so its tiles begin up to three rows early.
    """
    length = gl.minimum(length, max_len)
    low = start % 4
    return low, gl.where(length > 0, low + length, 0)


@gluon.jit
def _fold(s, m, sc, one, MODE: gl.constexpr, BN: gl.constexpr, QUADS: gl.constexpr):
    """Maxima `m` [BM, 4] after the accumulator tile `s`; `sc` holds scales, NaN in columns that do not take part."""
    if MODE == TOKEN:
        # `one` is 1, which the compiler does not know: an integer multiply-add runs beside the maxima, an addition on
        # the same unit as they do.
        s = gl.fma((s * one + MAGIC).to(gl.float32, bitcast=True), sc[None, :], (sc * -MAGIC_F)[None, :])
    elif MODE == TOKEN_ANY:
        s = s.to(gl.float32) * sc[None, :]
    else:
        s = s * sc[None, :]
    # A thread owns columns 8j + 2c and 8j + 2c + 1 of its rows (c = lane % 4): reduce what it holds, leave c for later.
    # A maximum drops a NaN that meets a number, and m begins as one.
    BM: gl.constexpr = s.shape[0]
    s = gl.max(gl.max(gl.reshape(s, [BM, BN // 8, 4, 2]), axis=3), axis=1)
    return gl.maximum(m, gl.convert_layout(s, QUADS))


@gluon.jit
def _multiply(
    q_bufs, d_bufs, s_bufs, full, empty, it, acc, low, high, W: gl.constexpr, BN: gl.constexpr, KC: gl.constexpr,
    ST: gl.constexpr,
):  # fmt: skip
    """Accumulators and scales of the first BN rows of the next tile, whose slots are given back, and the next `it`.

    Scales of columns outside [low, high) come back as NaN.
    """
    col: gl.constexpr = gl.SliceLayout(0, acc.type.layout)
    sc = gl.zeros([BN], gl.float32, col)
    for kc in gl.static_range(KC):
        slot = it % ST
        mbarrier.wait(full.index(slot), (it // ST) & 1)
        if kc == 0:
            sc = s_bufs.index(slot).slice(0, BN).load(col)
        acc = warpgroup_mma(
            q_bufs.index(W * KC + kc), d_bufs.index(slot).slice(0, BN).permute((1, 0)), acc,
            use_acc=kc > 0, is_async=True,
        )  # fmt: skip
        if kc > 0:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index((it - 1) % ST), count=1)
        it += 1
    if (low > 0) | (high < BN):
        cols = gl.arange(0, BN, layout=col)
        sc = gl.where((cols >= low) & (cols < high), sc, float("nan"))
    s = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index((it - 1) % ST), count=1)
    return s, sc, it


@gluon.jit
def _consume(
    q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, doc0, step, B, pitch,
    max_len, qg, q_rows, one, W: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr,
    NC: gl.constexpr, G: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr,
):  # fmt: skip
    HALF: gl.constexpr = BN // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BN, 32])
    narrow: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HALF, 32])
    row: gl.constexpr = gl.SliceLayout(1, layout)
    # What is left of `layout` when each thread has reduced its own columns: a row, and the lane's place among four.
    quads: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[8, 0], [64, 0]] if BM == 128 else [[8, 0]], lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[BM, 4],
    )  # fmt: skip
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    acc_t: gl.constexpr = gl.float32 if MODE == FP8_TOKEN else gl.int32
    slot_row = (qg * NC + W) * BM
    rows = slot_row + gl.arange(0, BM, layout=row)
    qs = gl.load(qs_ptr + rows, mask=rows < q_rows, other=0.0)
    NQ: gl.constexpr = BM // G
    slots = (slot_row // G + gl.arange(0, NQ, layout=flat)).to(gl.int64)
    slot_ok = slots < q_rows // G
    acc = gl.full([BM, BN], 0, acc_t, layout)
    mbarrier.wait(qbar, 0)
    it = 0
    next_start = _entry(start_ptr, doc0, B, doc0 * pitch, HAS_STARTS)
    next_length = _entry(len_ptr, doc0, B, max_len, HAS_LENGTHS)
    for doc in range(doc0, B, step):
        lo, hi = _columns(next_start, next_length, max_len)
        next_start = _entry(start_ptr, doc + step, B, (doc + step) * pitch, HAS_STARTS)
        next_length = _entry(len_ptr, doc + step, B, max_len, HAS_LENGTHS)
        m = gl.full([BM, 4], float("-inf"), gl.float32, quads)
        # A tail of at most half a tile is multiplied at half the width. The mask is in the scales, so whole and masked
        # tiles are one loop.
        wide = (hi + HALF - 1) // BN
        for t in range(wide):
            s, sc, it = _multiply(q_bufs, d_bufs, s_bufs, full, empty, it, acc, lo - t * BN, hi - t * BN, W, BN, KC, ST)
            m = _fold(s, m, sc, one, MODE, BN, quads)
        rest = hi - wide * BN
        if (rest > 0) & (rest <= HALF):
            part = gl.full([BM, HALF], 0, acc_t, narrow)
            s, sc, it = _multiply(q_bufs, d_bufs, s_bufs, full, empty, it, part, lo - wide * BN, rest, W, HALF, KC, ST)
            m = _fold(s, m, sc, one, MODE, HALF, quads)
        best = gl.convert_layout(gl.max(m, axis=1), row) * qs
        best = gl.where(qs > 0.0, best, 0.0).to(gl.float64)
        if NQ == 1:
            sums = gl.sum(best, axis=0)
            at = slot_row // G
            gl.store(out_ptr + at.to(gl.int64) * B + doc, sums.to(out_ptr.dtype.element_ty), mask=at < q_rows // G)
        else:
            sums = gl.convert_layout(gl.sum(gl.reshape(best, [NQ, G]), axis=1), flat)
            gl.store(out_ptr + slots * B + doc, sums.to(out_ptr.dtype.element_ty), mask=slot_ok)


@gluon.jit
def _load(
    q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, start_ptr, len_ptr, doc0, step, B, pitch,
    max_len, qg, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr,
    NC: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(qbar, NC * KC * q_desc.block_type.nbytes)
    for w in gl.static_range(NC):
        for kc in gl.static_range(KC):
            tma.async_copy_global_to_shared(q_desc, [(qg * NC + w) * BM, kc * BK], qbar, q_bufs.index(w * KC + kc))
    it = 0
    # Looking one document ahead, as the consumers do, is not for the loader: the inliner of triton 3.6.0, 3.7.1 keeps
    # the first document's length here for all of them, and the pipeline stops. A test counts the loads of each loop.
    for doc in range(doc0, B, step):
        start = _entry(start_ptr, doc, B, doc * pitch, HAS_STARTS)
        low, high = _columns(start, _entry(len_ptr, doc, B, max_len, HAS_LENGTHS), max_len)
        first = start - low
        n_tiles = (high + BN - 1) // BN
        for t in range(n_tiles):
            for kc in gl.static_range(KC):
                slot = it % ST
                mbarrier.wait(empty.index(slot), ((it // ST) & 1) ^ 1)
                if kc == 0:
                    mbarrier.expect(full.index(slot), d_desc.block_type.nbytes + s_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(s_desc, [first + t * BN], full.index(slot), s_bufs.index(slot))
                else:
                    mbarrier.expect(full.index(slot), d_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(d_desc, [first + t * BN, kc * BK], full.index(slot), d_bufs.index(slot))
                it += 1


@gluon.jit
def _consume0(
    q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr,
    doc0, step, B, pitch, max_len, qg, q_rows, one, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    KC: gl.constexpr, ST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr,
):  # fmt: skip
    _consume(q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, doc0, step, B,
             pitch, max_len, qg, q_rows, one, 0, BM, BN, KC, ST, NC, G, MODE, HAS_STARTS, HAS_LENGTHS)  # fmt: skip


@gluon.jit
def _consume1(
    q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr,
    doc0, step, B, pitch, max_len, qg, q_rows, one, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    KC: gl.constexpr, ST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr,
):  # fmt: skip
    _consume(q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, doc0, step, B,
             pitch, max_len, qg, q_rows, one, 1, BM, BN, KC, ST, NC, G, MODE, HAS_STARTS, HAS_LENGTHS)  # fmt: skip


@gluon.jit
def _loader(
    q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr,
    doc0, step, B, pitch, max_len, qg, q_rows, one, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    KC: gl.constexpr, ST: gl.constexpr, NC: gl.constexpr, G: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr,
    HAS_LENGTHS: gl.constexpr,
):  # fmt: skip
    _load(q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, start_ptr, len_ptr, doc0, step, B, pitch,
          max_len, qg, BM, BN, BK, KC, ST, NC, MODE, HAS_STARTS, HAS_LENGTHS)  # fmt: skip


@gluon.jit(do_not_specialize=["one"])
def maxsim_quantized(
    q_desc, d_desc, s_desc, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, B, pitch, max_len, n_qg, q_rows,
    one, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr, NC: gl.constexpr,
    G: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr, R1: gl.constexpr,
    R2: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Scores of a group of query rows against every `num_programs / n_qg`-th document.

    q_desc [q_rows, d] codes, block [BM, BK]; d_desc [R, d] codes, block [BN, BK]; s_desc [R] fp32 scales, block [BN] (a
    stand-in where a scale belongs to a document); qs_ptr [q_rows] fp32, 0 for rows that hold no token; ds_ptr [B] fp32;
    out_ptr [q_rows / G, B] fp32 or fp64: sums over G query rows.
    """
    pid = gl.program_id(0)
    qg = pid % n_qg
    doc0 = pid // n_qg
    step = gl.num_programs(0) // n_qg
    q_bufs = gl.allocate_shared_memory(q_desc.dtype, [NC * KC] + q_desc.block_type.shape, q_desc.layout)
    d_bufs = gl.allocate_shared_memory(d_desc.dtype, [ST] + d_desc.block_type.shape, d_desc.layout)
    s_bufs = gl.allocate_shared_memory(s_desc.dtype, [ST] + s_desc.block_type.shape, s_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout())
    qbar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(ST):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=NC)
    mbarrier.init(qbar, count=1)
    fence_async_shared()
    # The argument tuples are written out: constexpr values reach a specialised function only this way.
    gl.warp_specialize([
        (_consume0, (q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr,
                     start_ptr, len_ptr, doc0, step, B, pitch, max_len, qg, q_rows, one, BM, BN, BK, KC, ST, NC, G,
                     MODE, HAS_STARTS, HAS_LENGTHS)),
        (_consume1, (q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr,
                     start_ptr, len_ptr, doc0, step, B, pitch, max_len, qg, q_rows, one, BM, BN, BK, KC, ST, NC, G,
                     MODE, HAS_STARTS, HAS_LENGTHS)),
        (_loader, (q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr,
                   start_ptr, len_ptr, doc0, step, B, pitch, max_len, qg, q_rows, one, BM, BN, BK, KC, ST, NC, G,
                   MODE, HAS_STARTS, HAS_LENGTHS)),
    ], [4, 1], [R1, R2])  # fmt: skip
