# Arguments of kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM102, SIM109, RUF005, RUF059  (Gluon has neither `in` nor unpacking in lists, and decides ifs twice)
"""INT8 and FP8 MaxSim for Hopper (sm_90) in Gluon: TMA ring, wgmma, warp-specialised, persistent over documents.

Room: `quantized`. May import: fused, tokens.

One loader warp feeds a ring of [BN, BK] code tiles; each of NC consumer warpgroups keeps BM query rows in shared memory
and walks over its documents with the row maxima in registers. What happens to an accumulator is the epilogue:

    document   INT8, one scale a document: the maximum runs on the INT32 accumulators; convert and scale once a row.
    token      INT8, one scale a token, d ≤ 260, so |a| < 2^22: a + 0x4B400000 are the bits of the float 1.5 * 2^23 + a,
               and fma(that, s, -1.5 * 2^23 * s) = a * s, rounded once, because scales have 22 significant bits and
               3s fits into 24. The conversion instruction would share its unit with the maxima.
    token_any  INT8, one scale a token, any d: convert and multiply.
    fp8_document, fp8_token: FP32 accumulators, otherwise the same.
    none       no maximum: the matrix products of a document are added up. A ceiling for this tile, not a score.

Every INT8 epilogue gives the bits that `integer.py` defines. Coordinates of a tensor map are 32-bit rows, so a batch
may have up to 2^31 rows (not elements).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from maxsim.quantized.batch import QuantizedTokens
from maxsim.quantized.tiles import QueryTiles, query_tiles

DOCUMENT = gl.constexpr(0)
TOKEN = gl.constexpr(1)
TOKEN_ANY = gl.constexpr(2)
FP8_DOCUMENT = gl.constexpr(3)
FP8_TOKEN = gl.constexpr(4)
NONE = gl.constexpr(5)
EPILOGUES = {"document": 0, "token": 1, "token_any": 2, "fp8_document": 3, "fp8_token": 4, "none": 5}

MAGIC = gl.constexpr(0x4B400000)  # bits of 1.5 * 2^23 as fp32
MAGIC_F = gl.constexpr(12582912.0)
INT_MIN = gl.constexpr(-(2**31))


@gluon.jit
def _span(
    doc, B, start_ptr, len_ptr, pitch, max_len, MODE: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr
):
    """Row where the first tile of document `doc` begins, and the tile columns [low, high) that are the document.

    The scales of a tile are copied from a 16-byte boundary, four rows, so its tiles begin up to three rows early. `doc`
    is clamped to the last one, so that looking one ahead stays in bounds.
    """
    doc = gl.minimum(doc, B - 1)
    if HAS_STARTS:
        start = gl.load(start_ptr + doc).to(gl.int32)
    else:
        start = doc * pitch
    if HAS_LENGTHS:
        length = gl.minimum(gl.load(len_ptr + doc), max_len)
    else:
        length = max_len
    low = 0
    if MODE == TOKEN or MODE == TOKEN_ANY or MODE == FP8_TOKEN:
        low = start % 4
    return start - low, low, gl.where(length > 0, low + length, 0)


@gluon.jit
def _fold(s, m, sc, high, one, MASKED: gl.constexpr, MODE: gl.constexpr, BN: gl.constexpr, QUADS: gl.constexpr):
    """Maxima `m` [BM, 4] after the accumulator tile `s`; `sc` holds scales, NaN in columns that do not take part."""
    if MODE == TOKEN:
        # `one` is 1, which the compiler does not know: an integer multiply-add runs beside the maxima, an addition on
        # the same unit as they do.
        s = gl.fma((s * one + MAGIC).to(gl.float32, bitcast=True), sc[None, :], (sc * -MAGIC_F)[None, :])
    elif MODE == TOKEN_ANY:
        s = s.to(gl.float32) * sc[None, :]
    elif MODE == FP8_TOKEN:
        s = s * sc[None, :]
    elif MASKED:
        keep = (gl.arange(0, BN, layout=gl.SliceLayout(0, s.type.layout)) < high)[None, :]
        if MODE == DOCUMENT:
            s = gl.where(keep, s, INT_MIN)
        else:
            s = gl.where(keep, s, float("-inf"))
    # A thread owns columns 8j + 2c and 8j + 2c + 1 of its rows (c = lane % 4): reduce what it holds, leave c for later.
    # A maximum drops a NaN that meets a number, and m begins as one.
    BM: gl.constexpr = s.shape[0]
    s = gl.max(gl.max(gl.reshape(s, [BM, BN // 8, 4, 2]), axis=3), axis=1)
    return gl.maximum(m, gl.convert_layout(s, QUADS))


@gluon.jit
def _multiply(
    q_bufs, d_bufs, s_bufs, full, empty, it, acc, low, high, W: gl.constexpr, BN: gl.constexpr, KC: gl.constexpr,
    ST: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """Accumulators and scales of the first BN rows of the next tile, whose slots are given back, and the next `it`.

    `acc` [BM, BN] is added to where the mode wants it. Scales of columns outside [low, high) come back as NaN.
    """
    col: gl.constexpr = gl.SliceLayout(0, acc.type.layout)
    sc = gl.zeros([BN], gl.float32, col)
    for kc in gl.static_range(KC):
        slot = it % ST
        mbarrier.wait(full.index(slot), (it // ST) & 1)
        if kc == 0 and (MODE == TOKEN or MODE == TOKEN_ANY or MODE == FP8_TOKEN):
            sc = s_bufs.index(slot).slice(0, BN).load(col)
        acc = warpgroup_mma(
            q_bufs.index(W * KC + kc), d_bufs.index(slot).slice(0, BN).permute((1, 0)), acc,
            use_acc=(kc > 0) or MODE == NONE, is_async=True,
        )  # fmt: skip
        if kc > 0:
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index((it - 1) % ST), count=1)
        it += 1
    if MODE == TOKEN or MODE == TOKEN_ANY or MODE == FP8_TOKEN:
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
    acc_t: gl.constexpr = gl.float32 if MODE == FP8_DOCUMENT or MODE == FP8_TOKEN else gl.int32
    PER_TOKEN: gl.constexpr = MODE == TOKEN or MODE == TOKEN_ANY or MODE == FP8_TOKEN
    INT_MAX: gl.constexpr = MODE == DOCUMENT or MODE == NONE
    slot_row = (qg * NC + W) * BM
    rows = slot_row + gl.arange(0, BM, layout=row)
    qs = gl.load(qs_ptr + rows, mask=rows < q_rows, other=0.0)
    NQ: gl.constexpr = BM // G
    slots = (slot_row // G + gl.arange(0, NQ, layout=flat)).to(gl.int64)
    slot_ok = slots < q_rows // G
    acc = gl.full([BM, BN], 0, acc_t, layout)
    mbarrier.wait(qbar, 0)
    it = 0
    start, low, high = _span(doc0, B, start_ptr, len_ptr, pitch, max_len, MODE, HAS_STARTS, HAS_LENGTHS)
    for doc in range(doc0, B, step):
        if INT_MAX:
            m = gl.full([BM, 4], INT_MIN, gl.int32, quads)
        else:
            m = gl.full([BM, 4], float("-inf"), gl.float32, quads)
        lo = low
        hi = high
        start, low, high = _span(doc + step, B, start_ptr, len_ptr, pitch, max_len, MODE, HAS_STARTS, HAS_LENGTHS)
        if PER_TOKEN:
            ds = 1.0
        else:
            ds = gl.load(ds_ptr + doc)
        if MODE == NONE:
            for _t in range((hi + BN - 1) // BN):
                acc, sc, it = _multiply(q_bufs, d_bufs, s_bufs, full, empty, it, acc, 0, BN, W, BN, KC, ST, MODE)
            top = gl.max(acc, axis=1)
        else:
            # Whole tiles first; a tail of at most half a tile is multiplied at half the width. With a scale a token the
            # mask is in the scales, so whole and masked tiles are one loop.
            wide = (hi + HALF - 1) // BN if PER_TOKEN else hi // BN
            for t in range(wide):
                s, sc, it = _multiply(
                    q_bufs, d_bufs, s_bufs, full, empty, it, acc, lo - t * BN, hi - t * BN, W, BN, KC, ST, MODE
                )
                m = _fold(s, m, sc, BN, one, False, MODE, BN, quads)
            rest = hi - wide * BN
            if not PER_TOKEN:
                if rest > HALF:
                    s, sc, it = _multiply(q_bufs, d_bufs, s_bufs, full, empty, it, acc, 0, BN, W, BN, KC, ST, MODE)
                    m = _fold(s, m, sc, rest, one, True, MODE, BN, quads)
            if (rest > 0) & (rest <= HALF):
                part = gl.full([BM, HALF], 0, acc_t, narrow)
                s, sc, it = _multiply(
                    q_bufs, d_bufs, s_bufs, full, empty, it, part, lo - wide * BN, rest, W, HALF, KC, ST, MODE
                )
                m = _fold(s, m, sc, rest, one, True, MODE, HALF, quads)
            top = gl.convert_layout(gl.max(m, axis=1), row)
        if INT_MAX:
            best = gl.where(top == INT_MIN, float("-inf"), top.to(gl.float32) * ds) * qs
        elif MODE == FP8_DOCUMENT:
            best = top * ds * qs
        else:
            best = top * qs
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
    PER_TOKEN: gl.constexpr = MODE == TOKEN or MODE == TOKEN_ANY or MODE == FP8_TOKEN
    mbarrier.expect(qbar, NC * KC * q_desc.block_type.nbytes)
    for w in gl.static_range(NC):
        for kc in gl.static_range(KC):
            tma.async_copy_global_to_shared(q_desc, [(qg * NC + w) * BM, kc * BK], qbar, q_bufs.index(w * KC + kc))
    it = 0
    start, low, high = _span(doc0, B, start_ptr, len_ptr, pitch, max_len, MODE, HAS_STARTS, HAS_LENGTHS)
    for doc in range(doc0, B, step):
        first = start
        n_tiles = (high + BN - 1) // BN
        start, low, high = _span(doc + step, B, start_ptr, len_ptr, pitch, max_len, MODE, HAS_STARTS, HAS_LENGTHS)
        for t in range(n_tiles):
            for kc in gl.static_range(KC):
                slot = it % ST
                mbarrier.wait(empty.index(slot), ((it // ST) & 1) ^ 1)
                if PER_TOKEN and kc == 0:
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
    if NC == 2:
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
    else:
        gl.warp_specialize([
            (_consume0, (q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr,
                         start_ptr, len_ptr, doc0, step, B, pitch, max_len, qg, q_rows, one, BM, BN, BK, KC, ST, NC, G,
                         MODE, HAS_STARTS, HAS_LENGTHS)),
            (_loader, (q_desc, d_desc, s_desc, q_bufs, d_bufs, s_bufs, full, empty, qbar, out_ptr, qs_ptr, ds_ptr,
                       start_ptr, len_ptr, doc0, step, B, pitch, max_len, qg, q_rows, one, BM, BN, BK, KC, ST, NC, G,
                       MODE, HAS_STARTS, HAS_LENGTHS)),
        ], [1], [R2])  # fmt: skip


_SHARED_BYTES = 227 * 1024 - 2048  # what a program may use on sm_90, less barriers, reductions and alignment
_QUERY_BYTES = 128 * 1024  # the ring gets the rest
_LARGEST_D_OF_TOKEN = 260  # 260 * 127 * 127 < 2^22


@dataclass(frozen=True)
class HopperShape:
    """Tile and pipeline of a launch.

    NC consumer warpgroups with BM query rows each, document tiles of BN rows, KC chunks of BK along d, ST ring slots.
    """

    NC: int
    BM: int
    BN: int
    BK: int
    KC: int
    ST: int


@functools.cache
def launch_shape(rows: int, d: int, BN: int = 128) -> HopperShape:
    """Shape of the launch for `rows` query rows of dimension d.

    Raises:
        ValueError: for a d whose query rows do not fit into shared memory (above 2048).
    """
    BK = 128 if d > 64 else 64 if d > 32 else 32
    KC = triton.cdiv(d, BK)
    for NC, BM in ((2, 128), (2, 64), (1, 64)):
        wasteful = BM * NC > 64 and rows <= BM * NC // 2
        query_bytes = NC * KC * BM * BK
        if wasteful or query_bytes > _QUERY_BYTES:
            continue
        stages = (_SHARED_BYTES - query_bytes) // (BN * (BK + 4))
        return HopperShape(NC, BM, BN, BK, KC, min(stages, 12))
    raise ValueError(f"d = {d}: the Hopper kernel holds query rows up to d = 2048; use path='portable'")


def programs(groups: int, B: int, processors: int) -> int:
    """Programs for each of `groups` query groups: few, so that each walks over many documents, in full waves."""
    if groups <= processors:
        return min(B, processors // groups)
    for each in range(1, 9):
        waves = groups * each / processors
        if waves / -(-groups * each // processors) >= 0.95:
            return min(B, each)
    return min(B, 8)


def epilogue_of(d: QuantizedTokens) -> str:
    """Name of the epilogue for the documents `d`."""
    if d.codes.dtype != torch.int8:
        return f"fp8_{d.kind}"
    if d.kind == "token":
        return "token" if d.d <= _LARGEST_D_OF_TOKEN else "token_any"
    return "document"


def unsupported(q: QuantizedTokens, d: QuantizedTokens) -> str | None:
    """Why these operands cannot be addressed through a tensor map, or None."""
    for name, x in (("query", q), ("document", d)):
        values = x.codes.values
        if values.data_ptr() % 16 or values.stride(0) % 16:
            return f"{name} codes: rows must begin on 16-byte boundaries, the row stride is {values.stride(0)} bytes"
    if d.kind == "token" and d.scales.data_ptr() % 16:
        return "document scales: they must begin on a 16-byte boundary"
    if d.codes.values.shape[0] >= 2**31:
        return f"{d.codes.values.shape[0]} rows: a tensor map addresses at most 2^31 - 1"
    if d.d > 2048:
        return f"d = {d.d}: query rows above d = 2048 do not fit into shared memory"
    return None


def score_hopper(
    q: QuantizedTokens, d: QuantizedTokens, *, shape: HopperShape | None = None, epilogue: str | None = None
) -> Tensor:
    """Scores [Nq, B] fp32 on an sm_90 device.

    Args:
        q, d: codes of one format on one device; see `unsupported`.
        shape: overrides the launch; what measuring it needs.
        epilogue: overrides `epilogue_of`; "none" measures the ceiling of the tile and returns no scores.
    """
    shape = shape or launch_shape(q.count * max(1, q.codes.max_length), d.d)
    tiles = query_tiles(q, shape.BM)
    out = tiles.output(d.count)
    if out.numel() > 0:
        _launch(tiles, d, out, shape, epilogue or epilogue_of(d))
    return tiles.finish(out)


def _launch(tiles: QueryTiles, d: QuantizedTokens, out: Tensor, shape: HopperShape, epilogue: str) -> None:
    codes = d.codes
    if codes.values.shape[0] == 0:  # a tensor map needs a row; no document has a token to put there
        out.fill_(-torch.inf)
        return
    q_desc = TensorDescriptor.from_tensor(tiles.values, [shape.BM, shape.BK], _code_layout(shape.BM, shape.BK))
    d_desc = TensorDescriptor.from_tensor(codes.values, [shape.BN, shape.BK], _code_layout(shape.BN, shape.BK))
    scales = (
        d.scales if d.kind == "token" else tiles.scales
    )  # the latter is never read: a tensor map must point somewhere
    s_desc = TensorDescriptor.from_tensor(scales, [shape.BN], _scale_layout())
    groups = triton.cdiv(tiles.rows, shape.BM * shape.NC)
    processors = _processors(out.device)
    absent = out  # never read: stands in for a pointer
    with torch.cuda.device(out.device):
        maxsim_quantized[(groups * programs(groups, d.count, processors),)](
            q_desc, d_desc, s_desc, out, tiles.scales, d.scales, absent if codes.starts is None else codes.starts,
            absent if codes.lengths is None else codes.lengths, d.count, codes.pitch, codes.max_length, groups,
            tiles.rows, 1, BM=shape.BM, BN=shape.BN, BK=shape.BK, KC=shape.KC, ST=shape.ST, NC=shape.NC, G=tiles.group,
            MODE=EPILOGUES[epilogue], HAS_STARTS=codes.starts is not None, HAS_LENGTHS=codes.lengths is not None,
            R1=240, R2=24, num_warps=4,
        )  # fmt: skip


@functools.cache
def _code_layout(rows: int, depth: int) -> gl.NVMMASharedLayout:
    """Shared-memory layout of a code tile; the same for INT8 and FP8, which are one byte both."""
    return gl.NVMMASharedLayout.get_default_for([rows, depth], gl.int8)


@functools.cache
def _scale_layout() -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)


@functools.cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
