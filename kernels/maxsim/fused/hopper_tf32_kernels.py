# Arguments of kernels have no Python types, and Gluon gives integers methods.
# mypy: disable-error-code="no-untyped-def, attr-defined"
"""Device side of the fp32 Hopper forward: three TF32 products in place of one fp32 product, in Gluon for sm_90.

Room: `fused`. May import: triton, `fused.hopper_kernels`. Imported only when a kernel is compiled; needs no GPU.

The walk over documents, the loader and everything after the products are those of `hopper_kernels`. New is a converter
warpgroup between the loader and the consumers. It splits every fp32 number x that arrived into two numbers that TF32
holds exactly, hi = x rounded to 11 significant bits and lo = x - hi rounded likewise; hi replaces x where it lies, lo
goes to a second buffer of the same shape. Both are written out, so nothing depends on how the tensor core reads the
low 13 bits of a word. Consumers add q_lo d_hi + q_hi d_lo into one accumulator and q_hi d_hi into another.

Error of a product: q_lo d_lo, which is dropped, and the rounding of lo: at most 2^-22 |q d| each, with either sign. The
accumulator of the small products is of their size, so that what the tensor core truncates from it does not matter.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

from maxsim.fused.hopper_kernels import (
    Ring,
    Tile,
    Work,
    _chunk,
    _consume0,
    _consume1,
    _load,
    _next_tile,
    _span,
)

INFINITY = gl.constexpr(float("inf"))
ROUNDS = gl.constexpr(3.4026e38)  # greater numbers could round up to infinity, and are cut instead
HALF = gl.constexpr(0x1000)  # half a unit in the last place that TF32 keeps, as added to the bits of an fp32 number
KEPT = gl.constexpr(-0x2000)  # sign, exponent and the 10 bits of TF32
QUIET_NAN = gl.constexpr(0x7FC00000)  # cut to TF32, a NaN may lose all its bits and become an infinity


@aggregate
class SplitRing:
    """What consumers see of a program's shared memory: tiles of high and low parts, and when they have been split."""

    q_tiles: gl.shared_memory_descriptor
    q_low: gl.shared_memory_descriptor
    d_tiles: gl.shared_memory_descriptor
    d_low: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q_tiles, q_low, d_tiles, d_low, q_full, q_empty, full, empty):
        self.q_tiles = q_tiles
        self.q_low = q_low
        self.d_tiles = d_tiles
        self.d_low = d_low
        self.q_full = q_full
        self.q_empty = q_empty
        self.full = full
        self.empty = empty

    @gluon.jit
    def start(self, t, zero, it, loads, W: gl.constexpr):
        """Nothing is issued ahead."""
        return zero

    @gluon.jit
    def similarities(self, t, zero, it, loads, W: gl.constexpr):
        """The products of `hopper_kernels._consume`."""
        return _similarities(t, self, zero, it, loads, W)


@gluon.jit
def split(x):
    """hi and lo of fp32 numbers, both exact in TF32, hi + lo = x to 2^-23. lo of an infinity or NaN is 0."""
    bits = x.to(gl.int32, bitcast=True)
    cut = gl.where(x != x, QUIET_NAN, bits & KEPT)
    hi = gl.where(gl.abs(x) < ROUNDS, (bits + HALF) & KEPT, cut).to(gl.float32, bitcast=True)
    rest = gl.where(gl.abs(x) < INFINITY, x - hi, 0.0).to(gl.int32, bitcast=True)
    return hi, ((rest + HALF) & KEPT).to(gl.float32, bitcast=True)


@gluon.jit
def _split_tile(tile, low):
    """Replace the numbers of a tile by their high parts, and write the low ones."""
    # 8 lanes read the 128 bytes of a row: no bank is asked twice
    lanes: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    hi, lo = split(tile.load(lanes))
    tile.store(hi)
    low.store(lo)


@gluon.jit
def _convert(t, w, raw, ready):
    """The converter warpgroup: splits what the loader copied, in the order in which it was copied."""
    KT: gl.constexpr = t.KC * t.KS
    it = 0
    loads = 0
    last = -1
    for chunk in range(gl.program_id(0), w.n_chunks, gl.num_programs(0)):
        group, first, lo, hi = _chunk(t, w, chunk, 4)
        if group != last:
            if t.QST > 0:
                q_stage = loads % t.QST
                mbarrier.wait(raw.q_full.index(q_stage), (loads // t.QST) & 1)
                for k in range(t.NC * KT):
                    at = q_stage * t.NC * KT + k
                    _split_tile(ready.q_tiles.index(at), ready.q_low.index(at))
                fence_async_shared()
                mbarrier.arrive(ready.q_full.index(q_stage), count=1)
            loads += 1
            last = group
        doc = lo
        start = 0
        end = 0
        if lo < hi:
            start, end = _span(t, w, lo, first)
        tile = start
        while doc < hi:
            _wanted, following, doc, start, end = _next_tile(t, w, tile, doc, hi, first, start, end)
            for _kc in range(t.KC):
                stage = it % t.ST
                mbarrier.wait(raw.full.index(stage), (it // t.ST) & 1)
                if t.QST == 0:
                    for c in gl.static_range(t.NC * t.KS):
                        at = stage * t.NC * t.KS + c
                        _split_tile(ready.q_tiles.index(at), ready.q_low.index(at))
                for ks in gl.static_range(t.KS):
                    _split_tile(ready.d_tiles.index(stage * t.KS + ks), ready.d_low.index(stage * t.KS + ks))
                fence_async_shared()  # the tensor core reads through the asynchronous proxy
                mbarrier.arrive(ready.full.index(stage), count=1)
                it += 1
            tile = following


@gluon.jit
def _multiply(t, ring, main, cross, it, loads, kc, k, W: gl.constexpr):
    """Issue the products of stage `kc` of a tile onto `main` and `cross`, which they overwrite where k = 0."""
    stage = it % t.ST
    mbarrier.wait(ring.full.index(stage), (it // t.ST) & 1)
    for ks in gl.static_range(t.KS):
        if t.QST > 0:
            q_at = (((loads - 1) % t.QST) * t.NC + W) * (t.KC * t.KS) + kc * t.KS + ks
        else:
            q_at = (stage * t.NC + W) * t.KS + ks
        more = True if ks > 0 else k > 0
        q_hi = ring.q_tiles.index(q_at)
        d_hi = ring.d_tiles.index(stage * t.KS + ks).permute((1, 0))
        d_lo = ring.d_low.index(stage * t.KS + ks).permute((1, 0))
        cross = warpgroup_mma(ring.q_low.index(q_at), d_hi, cross, use_acc=more, is_async=True)
        cross = warpgroup_mma(q_hi, d_lo, cross, is_async=True)
        main = warpgroup_mma(q_hi, d_hi, main, use_acc=more, is_async=True)
    return main, cross


@gluon.jit
def _similarities(t, ring, zero, it, loads, W: gl.constexpr):
    """Similarities [BM, BN] of the next document tile, whose stages are handed back.

    KI stages are added up by the tensor core, which truncates; runs of them by fp32 instructions, which round. Small
    products that are not finite come from a factor that is not: then the large ones have said so, and say what.
    """
    s = zero
    for run in range(t.KC // t.KI):
        main = zero
        cross = zero
        for k in range(t.KI):
            pending, small = _multiply(t, ring, main, cross, it, loads, run * t.KI + k, k, W)
            # the stage before this one has been read when only this one's products are outstanding
            main, cross = warpgroup_mma_wait(3 * t.KS, deps=(pending, small))
            mbarrier.arrive(ring.empty.index((it + t.ST - 1) % t.ST), count=1, pred=k > 0)
            it += 1
        main, cross = warpgroup_mma_wait(0, deps=(main, cross))
        mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
        both = gl.where(gl.abs(cross) < INFINITY, main + cross, main)
        if t.KI < t.KC:
            s += both
        else:
            s = both
    return s, it


_RUNTIME = (
    "out_ptr", "arg_ptr", "q_start_ptr", "q_len_ptr", "d_start_ptr", "d_len_ptr", "n_chunks", "n_groups", "n_blocks",
    "Nq", "K", "q_pitch", "q_max", "q_rows", "d_pitch", "d_max", "d_total", "parts",
)  # fmt: skip


@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def maxsim_forward_tf32x3(
    q_desc, d_desc, out_ptr, arg_ptr, q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, n_chunks, n_groups, n_blocks, Nq,
    K, q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM: gl.constexpr, BN: gl.constexpr, BR: gl.constexpr,
    BK: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr, KI: gl.constexpr, ST: gl.constexpr, QST: gl.constexpr,
    NC: gl.constexpr, G: gl.constexpr, SUM: gl.constexpr, SHARED: gl.constexpr, HAS_Q_STARTS: gl.constexpr,
    HAS_Q_LENGTHS: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr, BALANCED: gl.constexpr,
    ARGMAX: gl.constexpr, R1: gl.constexpr, R2: gl.constexpr, R3: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """`hopper_kernels.maxsim_forward` of fp32 operands; BK = 32 columns are the 128 bytes of a swizzled row.

    R1, R2, R3: registers a thread of the second consumer, the loader and the converter.
    """
    t = Tile(BM, BN, BR, BK, KS, KC, KI, ST, QST, NC, G, SUM, SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS,
             HAS_LENGTHS, BALANCED, ARGMAX)  # fmt: skip
    w = Work(q_desc, d_desc, out_ptr, arg_ptr, q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, n_chunks, n_groups,
             n_blocks, Nq, K, q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts)  # fmt: skip
    Q_TILES: gl.constexpr = (QST * KC if QST > 0 else ST) * KS * NC
    Q_STAGES: gl.constexpr = QST if QST > 0 else 1
    q_boxes = gl.allocate_shared_memory(q_desc.dtype, [Q_TILES * (BM // G), G, BK], q_desc.layout)
    d_boxes = gl.allocate_shared_memory(d_desc.dtype, [ST * KS * (BN // BR), BR, BK], d_desc.layout)
    raw = Ring(
        q_boxes, q_boxes._reinterpret(q_desc.dtype, [Q_TILES, BM, BK], q_desc.layout),
        d_boxes, d_boxes._reinterpret(d_desc.dtype, [ST * KS, BN, BK], d_desc.layout),
        gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()),
    )  # fmt: skip
    ready = SplitRing(
        raw.q_tiles, gl.allocate_shared_memory(q_desc.dtype, [Q_TILES, BM, BK], q_desc.layout),
        raw.d_tiles, gl.allocate_shared_memory(d_desc.dtype, [ST * KS, BN, BK], d_desc.layout),
        gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout()), raw.q_empty,
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()), raw.empty,
    )  # fmt: skip
    for i in gl.static_range(ST):
        mbarrier.init(raw.full.index(i), count=BN // BR + (1 if QST == 0 else 0))
        mbarrier.init(ready.full.index(i), count=1)
        mbarrier.init(raw.empty.index(i), count=NC)
    for i in gl.static_range(Q_STAGES):
        mbarrier.init(raw.q_full.index(i), count=1)
        mbarrier.init(ready.q_full.index(i), count=1)
        mbarrier.init(raw.q_empty.index(i), count=NC)
    fence_async_shared()
    # compile-time values reach a specialised function inside an aggregate, or written out in the argument tuple
    if NC == 2:
        gl.warp_specialize(
            [(_consume0, (t, w, ready)), (_consume1, (t, w, ready)), (_convert, (t, w, raw, ready)),
             (_load, (t, w, raw))],
            [4, 4, 1], [R1, R3, R2],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [(_consume0, (t, w, ready)), (_convert, (t, w, raw, ready)), (_load, (t, w, raw))], [4, 1], [R3, R2]
        )
