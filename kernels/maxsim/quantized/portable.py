# Arguments of kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"
"""Quantised MaxSim in plain Triton: sm_80 and later, and the interpreter, which proves the arithmetic without a GPU.

Room: `quantized`. May import: fused, tokens. One program scores a tile of query rows against one document; offsets are
64-bit; d is padded on load. The order of operations is that of `integer.py`.
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from maxsim.quantized.batch import QuantizedTokens
from maxsim.quantized.tiles import query_tiles
from maxsim.tokens import TokenBatch


@triton.jit
def _keep_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tile(
    q_ptr, d_ptr, q_row, q_ok, d_row, d_ok, d, q_stride, d_stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Similarities of BM query rows and BN document rows: INT32 [BM, BN] of codes, or fp32 [BN, BM]."""
    if KIND == "int8":
        acc = tl.zeros([BM, BN], dtype=tl.int32)
    else:
        acc = tl.zeros([BN, BM], dtype=tl.float32)
    for k in range(NK):
        col = k * BK + tl.arange(0, BK)
        inside = col < d
        a = tl.load(q_ptr + q_row[:, None] * q_stride + col[None, :], mask=q_ok[:, None] & inside[None, :], other=0.0)
        b = tl.load(d_ptr + d_row[:, None] * d_stride + col[None, :], mask=d_ok[:, None] & inside[None, :], other=0.0)
        if KIND == "int8":
            acc = tl.dot(a, tl.trans(b), acc, out_dtype=tl.int32)
        elif KIND == "fp8":
            acc = tl.dot(b.to(tl.float16), tl.trans(a.to(tl.float16)), acc)
        else:
            acc = tl.dot(b.to(a.dtype), tl.trans(a), acc, input_precision="ieee")
    return acc


@triton.jit
def maxsim_quantized(
    q_ptr, qs_ptr, d_ptr, ds_ptr, start_ptr, len_ptr, out_ptr, first, B, q_rows, n_qt, pitch, max_len, d, q_stride,
    d_stride, G: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NK: tl.constexpr,
    KIND: tl.constexpr, PER_TOKEN: tl.constexpr, HAS_STARTS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
):  # fmt: skip
    """out_ptr [q_rows / G, B]: sums over G query rows of the best similarity with document first + program // n_qt.

    q_ptr [q_rows, d], qs_ptr [q_rows] fp32 (0: no token), d_ptr [R, d], ds_ptr [R] or [B] fp32. KIND: "int8" (both
    sides INT8), "fp8" (both e4m3, multiplied as fp16), "mixed" (floating query, codes converted to its dtype).
    """
    pid = tl.program_id(0).to(tl.int64)
    tile = pid % n_qt
    doc = first + pid // n_qt
    start = doc * pitch
    if HAS_STARTS:
        start = tl.load(start_ptr + doc)
    length = max_len
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(len_ptr + doc), max_len)
    q_row = tile * BM + tl.arange(0, BM)
    q_ok = q_row < q_rows
    qs = tl.load(qs_ptr + q_row, mask=q_ok, other=0.0)
    INT_MAX: tl.constexpr = KIND == "int8" and not PER_TOKEN
    LOWEST: tl.constexpr = -2147483648
    if INT_MAX:
        m = tl.full([BM], LOWEST, dtype=tl.int32)
    else:
        m = tl.full([BM], float("-inf"), dtype=tl.float32)
    for t in range(0, length, BN):
        at = t + tl.arange(0, BN)
        d_ok = at < length
        d_row = start + at
        acc = _tile(q_ptr, d_ptr, q_row, q_ok, d_row, d_ok, d, q_stride, d_stride, BM, BN, BK, NK, KIND)
        if INT_MAX:
            m = tl.maximum(m, tl.max(tl.where(d_ok[None, :], acc, LOWEST), axis=1))
        elif KIND == "int8":
            s = acc.to(tl.float32) * tl.load(ds_ptr + d_row, mask=d_ok, other=0.0)[None, :]
            m = tl.maximum(m, tl.max(tl.where(d_ok[None, :], s, float("-inf")), axis=1))
        else:
            s = acc
            if PER_TOKEN:
                s = s * tl.load(ds_ptr + d_row, mask=d_ok, other=0.0)[:, None]
            s = tl.where(d_ok[:, None], s, float("-inf"))
            m = tl.maximum(m, tl.reduce(s, 0, _keep_nan), propagate_nan=tl.PropagateNan.ALL)
    if INT_MAX:
        best = tl.where(m == LOWEST, float("-inf"), m.to(tl.float32) * tl.load(ds_ptr + doc))
    elif PER_TOKEN:
        best = m
    else:
        best = m * tl.load(ds_ptr + doc)
    best = tl.where(qs > 0.0, best * qs, 0.0).to(tl.float64)
    group = tile * (BM // G) + tl.arange(0, BM // G)
    sums = tl.sum(tl.reshape(best, [BM // G, G]), axis=1)
    tl.store(out_ptr + group * B + doc, sums.to(out_ptr.dtype.element_ty), mask=group < q_rows // G)


INTERPRETED = isinstance(maxsim_quantized, InterpretedFunction)  # TRITON_INTERPRET was set when this was imported
_GRID_LIMIT = (1 << 31) - 1  # programs along x


def launch_shape(kind: str, rows: int, longest: int, d: int) -> dict[str, int]:
    """Tile, warps and stages for `rows` query rows and documents up to `longest` tokens of dimension d."""
    BM = min(128, max(16, triton.next_power_of_2(rows)))
    BK = min(128, max(32, triton.next_power_of_2(d)))
    if kind == "mixed" and d > 64:
        BK = 64
    BN = 128 if longest > 64 and kind != "mixed" else 64
    return {"BM": BM, "BN": BN, "BK": BK, "num_warps": 8 if BM * BN >= 128 * 128 else 4, "num_stages": 3}


def score_portable(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> Tensor:
    """Scores [Nq, B] fp32 through the kernel above, on a GPU or under the interpreter. Arguments checked by `score`."""
    kind = kind_of(q, d)
    batch = q.codes if isinstance(q, QuantizedTokens) else q
    shape = launch_shape(kind, batch.count * max(1, batch.max_length), d.codes.max_length, d.d)
    tiles = query_tiles(q, shape["BM"])
    out = tiles.output(d.count)
    if out.numel() == 0:
        return tiles.finish(out)
    codes = d.codes
    n_qt = triton.cdiv(tiles.rows, shape["BM"])
    absent = out  # never read: stands in for a pointer
    most = max(1, _GRID_LIMIT // n_qt)  # documents of a launch, and one launch as a rule
    with torch.cuda.device(out.device) if out.is_cuda else contextlib.nullcontext():
        for first in range(0, d.count, most):
            maxsim_quantized[(n_qt * min(most, d.count - first),)](
                tiles.values, tiles.scales, codes.values, d.scales, absent if codes.starts is None else codes.starts,
                absent if codes.lengths is None else codes.lengths, out, first, d.count, tiles.rows, n_qt, codes.pitch,
                codes.max_length, d.d, tiles.values.stride(0), codes.values.stride(0), G=tiles.group,
                NK=triton.cdiv(d.d, shape["BK"]), KIND=kind, PER_TOKEN=d.kind == "token",
                HAS_STARTS=codes.starts is not None, HAS_LENGTHS=codes.lengths is not None, **shape,
            )  # fmt: skip
    return tiles.finish(out)


def kind_of(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> str:
    """One of "int8", "fp8" and "mixed"."""
    if not isinstance(q, QuantizedTokens):
        return "mixed"
    return "int8" if d.codes.dtype == torch.int8 else "fp8"
