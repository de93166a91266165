# Arguments of kernels have no Python types, and Gluon gives integers methods.
# mypy: disable-error-code="no-untyped-def, attr-defined"
"""INT8 and FP8 MaxSim for Hopper (sm_90) in Gluon: TMA ring, wgmma, warp-specialised, documents as one stream of rows.

Room: `quantized`. May import: triton. `hopper.py` plans, checks and launches; importing this needs no GPU.

One loader warp feeds a ring of [BN, BK] code tiles; each of NC consumer warpgroups keeps BM query rows in shared memory
and walks over the documents of its program with the row maxima in registers. A tile begins where the last one ended,
whatever document that is, so 300 tokens cost 300 rows; only where the next document lies elsewhere a new tile begins at
its first row. Loader and consumers walk over the same documents and agree on the tiles without talking about them.

What happens to an accumulator is the epilogue:

    document   INT8, one scale a document: the maximum runs on the INT32 accumulators; convert and scale once a row.
    token      INT8, one scale a token, d ≤ 260, so |a| < 2^22: a + 0x4B400000 are the bits of the float 1.5 * 2^23 + a,
               and fma(that, s, -1.5 * 2^23 * s) = a * s, rounded once, because scales have 22 significant bits and
               3s fits into 24. The conversion instruction would share its unit with the maxima.
    token_any  INT8, one scale a token, any d: convert and multiply.
    fp8_document, fp8_token: FP32 accumulators, otherwise the same.

A query of at most 64 rows has one consumer and the roles exchanged: documents are the rows of the product.

Every INT8 epilogue gives the bits that `integer.py` defines. Coordinates of a tensor map are 32-bit rows, so a batch
may have up to 2^31 rows (not elements).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

# `MODE`, in the order of `hopper.EPILOGUES`
DOCUMENT = gl.constexpr(0)
TOKEN = gl.constexpr(1)
TOKEN_ANY = gl.constexpr(2)
FP8_DOCUMENT = gl.constexpr(3)
FP8_TOKEN = gl.constexpr(4)

MAGIC = gl.constexpr(0x4B400000)  # bits of 1.5 * 2^23 as fp32
MAGIC_F = gl.constexpr(12582912.0)
INT_MIN = gl.constexpr(-(2**31))


@aggregate
class Tile:
    """Compile-time shape of a program: the fields of `HopperShape` of the same names, and what the batches carry.

    Annotations are real types here: the decorator checks them, so this module does not postpone their evaluation.
    """

    BM: gl.constexpr
    BN: gl.constexpr
    BR: gl.constexpr
    BK: gl.constexpr
    KC: gl.constexpr
    ST: gl.constexpr
    NC: gl.constexpr
    G: gl.constexpr
    MODE: gl.constexpr
    HAS_STARTS: gl.constexpr
    HAS_LENGTHS: gl.constexpr
    BALANCED: gl.constexpr
    PER_TOKEN: gl.constexpr  # a scale a token: copied beside the codes, from a 16-byte boundary, which is four rows
    INTEGER: gl.constexpr  # the maxima are INT32

    @gluon.constexpr_function
    def __init__(self, BM, BN, BR, BK, KC, ST, NC, G, MODE, HAS_STARTS, HAS_LENGTHS, BALANCED):
        self.BM = gl.constexpr(BM)
        self.BN = gl.constexpr(BN)
        self.BR = gl.constexpr(BR)
        self.BK = gl.constexpr(BK)
        self.KC = gl.constexpr(KC)
        self.ST = gl.constexpr(ST)
        self.NC = gl.constexpr(NC)
        self.G = gl.constexpr(G)
        self.MODE = gl.constexpr(MODE)
        self.HAS_STARTS = gl.constexpr(HAS_STARTS)
        self.HAS_LENGTHS = gl.constexpr(HAS_LENGTHS)
        self.BALANCED = gl.constexpr(BALANCED)
        self.PER_TOKEN = gl.constexpr(MODE == 1 or MODE == 2 or MODE == 4)
        self.INTEGER = gl.constexpr(MODE == 0)


@aggregate
class Ring:
    """Shared memory of a program: query rows, document tiles and scales, and the barriers that hand them over."""

    q_tiles: gl.shared_memory_descriptor
    d_boxes: gl.shared_memory_descriptor
    d_tiles: gl.shared_memory_descriptor
    scales: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q_tiles, d_boxes, d_tiles, scales, q_full, full, empty):
        self.q_tiles = q_tiles
        self.d_boxes = d_boxes
        self.d_tiles = d_tiles
        self.scales = scales
        self.q_full = q_full
        self.full = full
        self.empty = empty


@aggregate
class Work:
    """Run-time arguments of the kernel."""

    q_desc: tma.tensor_descriptor
    d_desc: tma.tensor_descriptor
    s_desc: tma.tensor_descriptor
    out_ptr: gl.tensor
    qs_ptr: gl.tensor
    ds_ptr: gl.tensor
    start_ptr: gl.tensor
    len_ptr: gl.tensor
    B: gl.tensor
    pitch: gl.tensor
    max_len: gl.tensor
    total: gl.tensor
    groups: gl.tensor
    q_rows: gl.tensor
    one: gl.tensor

    @gluon.constexpr_function
    def __init__(
        self, q_desc, d_desc, s_desc, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, B, pitch, max_len, total, groups,
        q_rows, one,
    ):  # fmt: skip
        self.q_desc = q_desc
        self.d_desc = d_desc
        self.s_desc = s_desc
        self.out_ptr = out_ptr
        self.qs_ptr = qs_ptr
        self.ds_ptr = ds_ptr
        self.start_ptr = start_ptr
        self.len_ptr = len_ptr
        self.B = B
        self.pitch = pitch
        self.max_len = max_len
        self.total = total
        self.groups = groups
        self.q_rows = q_rows
        self.one = one


# ---- which documents, which rows


@gluon.jit
def _span(t, w, doc):
    """First row and end row of a document; a length outside [0, max_len] is clamped."""
    if t.HAS_STARTS:
        start = gl.load(w.start_ptr + doc).to(gl.int32)
    else:
        start = doc * w.pitch
    if t.HAS_LENGTHS:
        length = gl.maximum(gl.minimum(gl.load(w.len_ptr + doc), w.max_len), 0)
    else:
        length = w.max_len
    return start, start + length


@gluon.jit
def _begin(t, start):
    """Where the tile of a document that begins at row `start` begins: up to three rows early for the scales' sake."""
    if t.PER_TOKEN:
        start = start // 4 * 4
    return start


@gluon.jit
def _lower_bound(start_ptr, B, target, THREADS: gl.constexpr):
    """How many of the B ascending starts are below `target`: a search with 32 * THREADS probes a step."""
    wide: gl.constexpr = gl.BlockedLayout([1], [32], [THREADS], [0])
    probe = gl.arange(0, 32 * THREADS, layout=wide)
    base = 0
    count = B
    while count > 1:
        stride = (count + 32 * THREADS - 1) // (32 * THREADS)
        inside = probe * stride < count
        start = gl.load(start_ptr + base + gl.where(inside, probe * stride, 0)).to(gl.int32)
        below = gl.sum((inside & (start < target)).to(gl.int32), axis=0)
        skipped = gl.maximum(below - 1, 0) * stride
        base += skipped
        count = gl.minimum(stride, count - skipped)
    return base + (gl.load(start_ptr + base).to(gl.int32) < target).to(gl.int32)


@gluon.jit
def _cut(n, block, blocks):
    """Where block `block` begins when n is cut into blocks that differ by one at most; 32-bit all the way."""
    return n // blocks * block + gl.minimum(block, n % blocks)


@gluon.jit
def _share(t, w, THREADS: gl.constexpr):
    """Query group of this program, and lo .. hi - 1, its documents: blocks of equal rows, or of equal counts."""
    pid = gl.program_id(0)
    group = pid % w.groups
    block = pid // w.groups
    blocks = gl.num_programs(0) // w.groups
    if t.BALANCED:
        lo = _lower_bound(w.start_ptr, w.B, _cut(w.total, block, blocks), THREADS)
        hi = _lower_bound(w.start_ptr, w.B, _cut(w.total, block + 1, blocks), THREADS)
        hi = gl.where(block + 1 == blocks, w.B, hi)
    else:
        lo = _cut(w.B, block, blocks)
        hi = _cut(w.B, block + 1, blocks)
    return group, lo, hi


# ---- consumers: multiply, reduce, store


@gluon.jit
def _multiply(t, ring, acc, it, W: gl.constexpr):
    """Accumulators [BM, BN] and column scales [BN] of the next tile, whose stages are handed back; the next `it`."""
    col: gl.constexpr = gl.SliceLayout(0, acc.type.layout)
    sc = gl.zeros([t.BN], gl.float32, col)
    for kc in gl.static_range(t.KC):
        stage = it % t.ST
        mbarrier.wait(ring.full.index(stage), (it // t.ST) & 1)
        if kc == 0 and t.PER_TOKEN:
            sc = ring.scales.index(stage).load(col)
        acc = warpgroup_mma(
            ring.q_tiles.index(W * t.KC + kc), ring.d_tiles.index(stage).permute((1, 0)), acc, use_acc=kc > 0,
            is_async=True,
        )  # fmt: skip
        if kc > 0:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
        it += 1
    s = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
    return s, sc, it


@gluon.jit
def _one(w, row):
    """1, in a way that the compiler takes for a function of `row`, which is not negative."""
    return w.one + (row >> 31)


@gluon.jit
def _fold(t, m, s, sc, i, c0, c1, one, MASKED: gl.constexpr, N: gl.constexpr, quads: gl.constexpr):
    """Maxima m [BM, 4] after N columns s [BM, N] with scales sc [BM, N], of which i in c0 .. c1 - 1 take part.

    A thread owns columns 8j + 2c and 8j + 2c + 1 of its rows (c = lane % 4): it reduces what it holds and leaves c for
    later. A maximum drops a NaN that meets a number, and m begins as one: with a scale a token the mask is a NaN scale.
    """
    if t.PER_TOKEN:
        if MASKED:
            sc = gl.where((i >= c0) & (i < c1), sc, float("nan"))
        if t.MODE == TOKEN:
            # `one` is 1, which the compiler does not know: an integer multiply-add runs beside the maxima, an addition
            # on the same unit as they do. Each call has its own, lest this is done for all of them before any.
            s = gl.fma((s * one + MAGIC).to(gl.float32, bitcast=True), sc, sc * -MAGIC_F)
        elif t.MODE == TOKEN_ANY:
            s = s.to(gl.float32) * sc
        else:
            s = s * sc
    elif MASKED:
        if t.INTEGER:
            s = gl.where((i >= c0) & (i < c1), s, INT_MIN)
        else:
            s = gl.where((i >= c0) & (i < c1), s, float("-inf"))
    if t.INTEGER and N == 128:
        s = _eighth(s, t.BM, N)
        s = gl.max(gl.max(gl.reshape(s, [t.BM, N // 64, 4, 2]), axis=3), axis=1)
    else:
        s = gl.max(gl.max(gl.reshape(s, [t.BM, N // 8, 4, 2]), axis=3), axis=1)
    return gl.maximum(m, gl.convert_layout(s, quads))


@gluon.jit
def _eighth(x, BM: gl.constexpr, N: gl.constexpr):
    """Maxima [BM, N / 8] of the eighths of x [BM, N], written as the chain that three-way maxima are made of."""
    h0, h1 = _halves(x, BM, N)
    q0, q1 = _halves(h0, BM, N // 2)
    q2, q3 = _halves(h1, BM, N // 2)
    e0, e1 = _halves(q0, BM, N // 4)
    e2, e3 = _halves(q1, BM, N // 4)
    e4, e5 = _halves(q2, BM, N // 4)
    e6, e7 = _halves(q3, BM, N // 4)
    best = gl.maximum(gl.maximum(e0, e1), e2)
    best = gl.maximum(gl.maximum(best, e3), e4)
    best = gl.maximum(gl.maximum(best, e5), e6)
    return gl.maximum(best, e7)


@gluon.jit
def _halves(x, BM: gl.constexpr, N: gl.constexpr):
    """The left and the right N / 2 columns of x [BM, N]: a renaming of registers."""
    return gl.split(gl.permute(gl.reshape(x, [BM, 2, N // 2]), (0, 2, 1)))


@gluon.jit
def _fold_part(t, m, s, sc, i, lo, c0, c1, one, N: gl.constexpr, quads: gl.constexpr):
    """`_fold` of the columns lo .. lo + N - 1, which costs nothing where none of them takes part."""
    if (c0 < lo + N) & (c1 > lo):
        m = _fold(t, m, s, sc, i, c0, c1, one, True, N, quads)
    return m


@gluon.jit
def _fold_segment(t, m, s, sc, i, c0, c1, one, quads: gl.constexpr):
    """`_fold` of the part c0 .. c1 - 1 of a tile, by quarters, so that short documents pay for their own columns."""
    N: gl.constexpr = t.BN // 4
    s0, s1 = _halves(s, t.BM, t.BN)
    s00, s01 = _halves(s0, t.BM, 2 * N)
    s10, s11 = _halves(s1, t.BM, 2 * N)
    x0, x1 = _halves(sc, t.BM, t.BN)
    x00, x01 = _halves(x0, t.BM, 2 * N)
    x10, x11 = _halves(x1, t.BM, 2 * N)
    i0, i1 = _halves(i, t.BM, t.BN)
    i00, i01 = _halves(i0, t.BM, 2 * N)
    i10, i11 = _halves(i1, t.BM, 2 * N)
    m = _fold_part(t, m, s00, x00, i00, 0, c0, c1, one, N, quads)
    m = _fold_part(t, m, s01, x01, i01, N, c0, c1, one, N, quads)
    m = _fold_part(t, m, s10, x10, i10, 2 * N, c0, c1, one, N, quads)
    m = _fold_part(t, m, s11, x11, i11, 3 * N, c0, c1, one, N, quads)
    return m


@gluon.jit
def _lowest(t, quads: gl.constexpr):
    """Maxima [BM, 4] of nothing."""
    if t.INTEGER:
        m = gl.full([t.BM, 4], INT_MIN, gl.int32, quads)
    else:
        m = gl.full([t.BM, 4], float("-inf"), gl.float32, quads)
    return m


@gluon.jit
def _store(t, w, top, qs, doc, first_row, flat: gl.constexpr):
    """Sums over G query rows of the maxima top [BM] of document `doc`, scaled; rows with qs = 0 hold no token."""
    NQ: gl.constexpr = t.BM // t.G
    if t.INTEGER:
        best = gl.where(top == INT_MIN, float("-inf"), top.to(gl.float32) * gl.load(w.ds_ptr + doc)) * qs
    elif t.MODE == FP8_DOCUMENT:
        best = top * gl.load(w.ds_ptr + doc) * qs
    else:
        best = top * qs
    best = gl.where(qs > 0.0, best, 0.0).to(gl.float64)
    slot = first_row // t.G
    if NQ == 1:
        total = gl.sum(best, axis=0).to(w.out_ptr.dtype.element_ty)
        gl.store(w.out_ptr + slot.to(gl.int64) * w.B + doc, total, mask=slot < w.q_rows // t.G)
    else:
        total = gl.convert_layout(gl.sum(gl.reshape(best, [NQ, t.G]), axis=1), flat)
        slots = slot + gl.arange(0, NQ, layout=flat)
        at = w.out_ptr + slots.to(gl.int64) * w.B + doc
        gl.store(at, total.to(w.out_ptr.dtype.element_ty), mask=slots < w.q_rows // t.G)


@gluon.jit
def _consume(t, w, ring, W: gl.constexpr):
    """Consumer warpgroup W: rows W * BM .. of the query group of this program against its documents."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, t.BN, 32])
    row: gl.constexpr = gl.SliceLayout(1, layout)
    # What is left of `layout` when each thread has reduced its own columns: a row, and the lane's place among four.
    quads: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[8, 0], [64, 0]] if t.BM == 128 else [[8, 0]], lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[t.BM, 4],
    )  # fmt: skip
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    acc_t: gl.constexpr = gl.float32 if t.MODE == FP8_DOCUMENT or t.MODE == FP8_TOKEN else gl.int32
    group, lo, hi = _share(t, w, 4)
    first_row = (group * t.NC + W) * t.BM
    rows = first_row + gl.arange(0, t.BM, layout=row)
    qs = gl.load(w.qs_ptr + rows, mask=rows < w.q_rows, other=0.0)
    zero = gl.full([t.BM, t.BN], 0, acc_t, layout)
    column = gl.arange(0, t.BN, layout=gl.SliceLayout(0, layout))[None, :] + gl.full([t.BM, t.BN], 0, gl.int32, layout)
    mbarrier.wait(ring.q_full, 0)
    it = 0
    doc = lo
    start = 0
    end = 0
    if lo < hi:
        start, end = _span(t, w, lo)
    tile = _begin(t, start)
    m = _lowest(t, quads)
    while doc < hi:
        s, one_scale, it = _multiply(t, ring, zero, it, W)
        sc, _column = gl.broadcast(one_scale[None, :], column)
        # -- reduce: the document that the tile begins in, then those that begin inside the tile
        c0 = start - tile
        c1 = end - tile
        if (c0 <= 0) & (c1 >= t.BN):
            m = _fold(t, m, s, sc, column, 0, t.BN, w.one, False, t.BN, quads)
        else:
            m = _fold_segment(t, m, s, sc, column, c0, c1, _one(w, end), quads)
        following = tile + t.BN
        ended = c1 <= t.BN
        while ended:
            _store(t, w, gl.convert_layout(gl.max(m, axis=1), row), qs, doc, first_row, flat)
            m = _lowest(t, quads)
            doc += 1
            ended = False
            if doc < hi:
                start, end = _span(t, w, doc)
                b0 = start - tile
                if (b0 >= 0) & (b0 < t.BN):
                    m = _fold_segment(t, m, s, sc, column, b0, end - tile, _one(w, doc), quads)
                    ended = end - tile <= t.BN
                else:
                    following = _begin(t, start)
        tile = following


# ---- the consumer of a short query: documents are the rows of the product, so that no row of it is empty


@gluon.jit
def _multiply_short(t, ring, acc, it):
    """`_multiply` with the roles exchanged: accumulators [BN, BM] and row scales [BN]."""
    row: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    sc = gl.zeros([t.BN], gl.float32, row)
    for kc in gl.static_range(t.KC):
        stage = it % t.ST
        mbarrier.wait(ring.full.index(stage), (it // t.ST) & 1)
        if kc == 0 and t.PER_TOKEN:
            sc = ring.scales.index(stage).load(row)
        acc = warpgroup_mma(
            ring.d_tiles.index(stage), ring.q_tiles.index(kc).permute((1, 0)), acc, use_acc=kc > 0, is_async=True
        )
        if kc > 0:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
        it += 1
    s = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
    return s, sc, it


@gluon.jit
def _fold_rows(t, m, s, sc, i, c0, c1, one, lanes: gl.constexpr):
    """Maxima m [32, BM] after the rows i of s [BN, BM] in c0 .. c1 - 1; sc [BN] are their scales.

    A thread owns rows 64b + 16w + 8a + l (w its warp, l = lane // 4): it reduces over a and b and leaves w and l for
    later. Masking costs a comparison a row, not one an element.
    """
    keep = (i >= c0) & (i < c1)
    if t.PER_TOKEN:
        sc = gl.where(keep, sc, float("nan"))
        if t.MODE == TOKEN:
            s = gl.fma((s * one + MAGIC).to(gl.float32, bitcast=True), sc[:, None], (sc * -MAGIC_F)[:, None])
        elif t.MODE == TOKEN_ANY:
            s = s.to(gl.float32) * sc[:, None]
        else:
            s = s * sc[:, None]
    elif t.INTEGER:
        s = gl.where(keep[:, None], s, INT_MIN)
    else:
        s = gl.where(keep[:, None], s, float("-inf"))
    s = gl.max(gl.max(gl.reshape(s, [t.BN // 64, 4, 2, 8, t.BM]), axis=2), axis=0)
    return gl.maximum(m, gl.convert_layout(gl.reshape(s, [32, t.BM]), lanes))


@gluon.jit
def _lowest_rows(t, lanes: gl.constexpr):
    """Maxima [32, BM] of nothing."""
    if t.INTEGER:
        m = gl.full([32, t.BM], INT_MIN, gl.int32, lanes)
    else:
        m = gl.full([32, t.BM], float("-inf"), gl.float32, lanes)
    return m


@gluon.jit
def _consume_short(t, w, ring):
    """The only consumer of a short query's program: BM query rows against its documents."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, t.BM, 32])
    # What is left of `layout` when each thread has reduced its own rows: the row of eight and the warp.
    lanes: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 8], [0, 16]] + ([[0, 32]] if t.BM == 64 else []),
        lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp_bases=[[8, 0], [16, 0]], block_bases=[],
        shape=[32, t.BM],
    )  # fmt: skip
    query: gl.constexpr = gl.SliceLayout(0, lanes)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    acc_t: gl.constexpr = gl.float32 if t.MODE == FP8_DOCUMENT or t.MODE == FP8_TOKEN else gl.int32
    group, lo, hi = _share(t, w, 4)
    first_row = group * t.BM
    rows = first_row + gl.arange(0, t.BM, layout=query)
    qs = gl.load(w.qs_ptr + rows, mask=rows < w.q_rows, other=0.0)
    zero = gl.full([t.BN, t.BM], 0, acc_t, layout)
    i = gl.arange(0, t.BN, layout=gl.SliceLayout(1, layout))
    mbarrier.wait(ring.q_full, 0)
    it = 0
    doc = lo
    start = 0
    end = 0
    if lo < hi:
        start, end = _span(t, w, lo)
    tile = _begin(t, start)
    m = _lowest_rows(t, lanes)
    while doc < hi:
        s, sc, it = _multiply_short(t, ring, zero, it)
        # -- reduce: the document that the tile begins in, then those that begin inside the tile
        m = _fold_rows(t, m, s, sc, i, start - tile, end - tile, w.one, lanes)
        following = tile + t.BN
        ended = end <= following
        while ended:
            _store(t, w, gl.max(m, axis=0), qs, doc, first_row, flat)
            m = _lowest_rows(t, lanes)
            doc += 1
            ended = False
            if doc < hi:
                start, end = _span(t, w, doc)
                if (start >= tile) & (start < tile + t.BN):
                    m = _fold_rows(t, m, s, sc, i, start - tile, end - tile, _one(w, doc), lanes)
                    ended = end <= tile + t.BN
                else:
                    following = _begin(t, start)
        tile = following


# ---- the loader


@gluon.jit
def _load(t, w, ring):
    """The loader warp: query group and document tiles of this program, in the order in which they are wanted."""
    PIECES: gl.constexpr = t.BN // t.BR  # copies that bring BK columns of a document tile
    group, lo, hi = _share(t, w, 1)
    mbarrier.expect(ring.q_full, t.NC * t.KC * w.q_desc.block_type.nbytes)
    for c in gl.static_range(t.NC):
        for kc in gl.static_range(t.KC):
            tma.async_copy_global_to_shared(
                w.q_desc, [(group * t.NC + c) * t.BM, kc * t.BK], ring.q_full, ring.q_tiles.index(c * t.KC + kc)
            )
    it = 0
    doc = lo
    start = 0
    end = 0
    if lo < hi:
        start, end = _span(t, w, lo)
    tile = _begin(t, start)
    while doc < hi:
        # -- how far the tile is wanted, and where the next one begins: the walk of `_consume`
        wanted = gl.minimum(end - tile, t.BN)
        following = tile + t.BN
        ended = end <= following
        while ended:
            doc += 1
            ended = False
            if doc < hi:
                start, end = _span(t, w, doc)
                if (start >= tile) & (start < tile + t.BN):
                    wanted = gl.maximum(wanted, gl.minimum(end - tile, t.BN))
                    ended = end <= tile + t.BN
                else:
                    following = _begin(t, start)
        # -- copy
        for kc in gl.static_range(t.KC):
            stage = it % t.ST
            bar = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), ((it // t.ST) & 1) ^ 1)
            for piece in gl.static_range(PIECES):
                here = (piece == 0) | (piece * t.BR < wanted)
                if here:
                    if t.PER_TOKEN and kc == 0 and piece == 0:
                        mbarrier.expect(bar, w.d_desc.block_type.nbytes + w.s_desc.block_type.nbytes)
                        tma.async_copy_global_to_shared(w.s_desc, [tile], bar, ring.scales.index(stage))
                    else:
                        mbarrier.expect(bar, w.d_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(
                        w.d_desc, [tile + piece * t.BR, kc * t.BK], bar, ring.d_boxes.index(stage * PIECES + piece)
                    )
                else:  # what the piece held before stays there: its columns are masked
                    mbarrier.arrive(bar, count=1)
            it += 1
        tile = following


@gluon.jit
def _consume0(t, w, ring):
    _consume(t, w, ring, 0)


@gluon.jit
def _consume1(t, w, ring):
    _consume(t, w, ring, 1)


_RUNTIME = (
    "out_ptr", "qs_ptr", "ds_ptr", "start_ptr", "len_ptr", "B", "pitch", "max_len", "total", "groups", "q_rows", "one",
)  # fmt: skip


# Nothing is specialised on a run-time value, so new lengths and counts never compile anything.
@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def maxsim_quantized(
    q_desc, d_desc, s_desc, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, B, pitch, max_len, total, groups, q_rows, one,
    BM: gl.constexpr, BN: gl.constexpr, BR: gl.constexpr, BK: gl.constexpr, KC: gl.constexpr, ST: gl.constexpr,
    NC: gl.constexpr, G: gl.constexpr, MODE: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr,
    BALANCED: gl.constexpr, SHORT: gl.constexpr, R1: gl.constexpr, R2: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Scores of a group of query rows against one block of the documents, of `num_programs / groups`.

    q_desc [q_rows, d] codes, box [BM, BK]; d_desc [R, d] codes, box [BR, BK]; s_desc [R] fp32 scales, box [BN] (a
    stand-in where a scale belongs to a document); qs_ptr [q_rows] fp32, 0 for rows that hold no token; ds_ptr [B] fp32;
    out_ptr [q_rows / G, B] fp32 or fp64: sums over G query rows. total: rows of packed documents whose starts ascend.
    """
    t = Tile(BM, BN, BR, BK, KC, ST, NC, G, MODE, HAS_STARTS, HAS_LENGTHS, BALANCED)
    w = Work(q_desc, d_desc, s_desc, out_ptr, qs_ptr, ds_ptr, start_ptr, len_ptr, B, pitch, max_len, total, groups,
             q_rows, one)  # fmt: skip
    d_boxes = gl.allocate_shared_memory(d_desc.dtype, [ST * (BN // BR), BR, BK], d_desc.layout)
    ring = Ring(
        gl.allocate_shared_memory(q_desc.dtype, [NC * KC, BM, BK], q_desc.layout),
        d_boxes, d_boxes._reinterpret(d_desc.dtype, [ST, BN, BK], d_desc.layout),
        gl.allocate_shared_memory(s_desc.dtype, [ST, BN], s_desc.layout),
        gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()),
    )  # fmt: skip
    for i in gl.static_range(ST):
        mbarrier.init(ring.full.index(i), count=BN // BR)
        mbarrier.init(ring.empty.index(i), count=NC)
    mbarrier.init(ring.q_full, count=1)
    fence_async_shared()
    # compile-time values reach a specialised function inside an aggregate
    if SHORT:
        gl.warp_specialize([(_consume_short, (t, w, ring)), (_load, (t, w, ring))], [1], [R2])
    elif NC == 2:
        gl.warp_specialize(
            [(_consume0, (t, w, ring)), (_consume1, (t, w, ring)), (_load, (t, w, ring))], [4, 1], [R1, R2]
        )
    else:
        gl.warp_specialize([(_consume0, (t, w, ring)), (_load, (t, w, ring))], [1], [R2])


_SUM_RUNTIME = ("part_ptr", "out_ptr", "B", "parts")


@gluon.jit(do_not_specialize=_SUM_RUNTIME, do_not_specialize_on_alignment=_SUM_RUNTIME)
def add_parts(part_ptr, out_ptr, B, parts, num_warps: gl.constexpr):
    """out [Nq, B] fp32 from the parts [Nq, parts, B] of long queries, summed in fp64."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    blocks = (B + 127) // 128
    n = (gl.program_id(0) // blocks).to(gl.int64)
    doc = gl.program_id(0) % blocks * 128 + gl.arange(0, 128, layout=flat)
    inside = doc < B
    total = gl.zeros([128], gl.float64, flat)
    for i in range(parts):
        total += gl.load(part_ptr + (n * parts + i) * B + doc, mask=inside, other=0.0)
    gl.store(out_ptr + n * B + doc, total.to(gl.float32), mask=inside)
