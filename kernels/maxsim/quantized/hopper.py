"""INT8 and FP8 MaxSim on Hopper (sm_90): what can run there, with which tiles, and the launch.

Room: `quantized`. May import: fused, tokens. The kernel is in `hopper_kernels.py`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from maxsim.quantized.batch import QuantizedTokens
from maxsim.quantized.hopper_kernels import EPILOGUES, maxsim_quantized
from maxsim.quantized.hopper_stream import maxsim_quantized as stream_kernel
from maxsim.quantized.tiles import QueryTiles, query_tiles

_SHARED_BYTES = 227 * 1024 - 2048  # what a program may use on sm_90, less barriers, reductions and alignment
_QUERY_BYTES = 128 * 1024  # the ring gets the rest
_LARGEST_D_OF_TOKEN = 260  # 260 * 127 * 127 < 2^22


@dataclass(frozen=True)
class HopperShape:
    """Tile and pipeline of a launch.

    NC consumer warpgroups with BM query rows each, document tiles of BN rows, KC chunks of BK along d, ST ring slots,
    and how many programs share a processor (2 only with NC = 1: a thread then has 128 registers at launch).
    """

    NC: int
    BM: int
    BN: int
    BK: int
    KC: int
    ST: int
    residents: int = 1
    BR: int = 0  # rows of one copy into a tile of a stream of documents; 0: every document begins a tile


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
        launch = _launch_stream if shape.BR else _launch
        launch(tiles, d, out, shape, epilogue or epilogue_of(d))
    return tiles.finish(out)


def _launch(tiles: QueryTiles, d: QuantizedTokens, out: Tensor, shape: HopperShape, epilogue: str) -> None:
    codes = d.codes
    if codes.values.shape[0] == 0:  # a tensor map needs a row; no document has a token to put there
        out.fill_(-torch.inf)
        return
    q_desc = TensorDescriptor.from_tensor(tiles.values, [shape.BM, shape.BK], _code_layout(shape.BM, shape.BK))
    d_desc = TensorDescriptor.from_tensor(codes.values, [shape.BN, shape.BK], _code_layout(shape.BN, shape.BK))
    scales = d.scales if d.kind == "token" else tiles.scales  # the latter is never read, but a map needs memory
    s_desc = TensorDescriptor.from_tensor(scales, [shape.BN], _scale_layout())
    groups = triton.cdiv(tiles.rows, shape.BM * shape.NC)
    processors = _processors(out.device) * shape.residents
    limit = {"maxnreg": 128} if shape.residents == 2 else {}
    absent = out  # never read: stands in for a pointer
    with torch.cuda.device(out.device):
        maxsim_quantized[(groups * programs(groups, d.count, processors),)](
            q_desc, d_desc, s_desc, out, tiles.scales, d.scales, absent if codes.starts is None else codes.starts,
            absent if codes.lengths is None else codes.lengths, d.count, codes.pitch, codes.max_length, groups,
            tiles.rows, 1, BM=shape.BM, BN=shape.BN, BK=shape.BK, KC=shape.KC, ST=shape.ST, NC=shape.NC, G=tiles.group,
            MODE=EPILOGUES[epilogue], HAS_STARTS=codes.starts is not None, HAS_LENGTHS=codes.lengths is not None,
            R1=240, R2=24, num_warps=4, **limit,
        )  # fmt: skip


def _launch_stream(tiles: QueryTiles, d: QuantizedTokens, out: Tensor, shape: HopperShape, epilogue: str) -> None:
    codes = d.codes
    if codes.values.shape[0] == 0:  # a tensor map needs a row; no document has a token to put there
        out.fill_(-torch.inf)
        return
    q_desc = TensorDescriptor.from_tensor(tiles.values, [shape.BM, shape.BK], _code_layout(shape.BM, shape.BK))
    d_desc = TensorDescriptor.from_tensor(codes.values, [shape.BR, shape.BK], _code_layout(shape.BR, shape.BK))
    scales = d.scales if d.kind == "token" else tiles.scales  # the latter is never read, but a map needs memory
    s_desc = TensorDescriptor.from_tensor(scales, [shape.BN], _scale_layout())
    groups = triton.cdiv(tiles.rows, shape.BM * shape.NC)
    processors = _processors(out.device) * shape.residents
    limit = {} if shape.residents == 1 else {"maxnreg": {2: 128, 3: 80}[shape.residents]}
    absent = out  # never read: stands in for a pointer
    each = programs(groups, d.count, processors)
    balanced = codes.total_rows is not None and codes.starts is not None and each > 1
    with torch.cuda.device(out.device):
        stream_kernel[(groups * each,)](
            q_desc, d_desc, s_desc, out, tiles.scales, d.scales, absent if codes.starts is None else codes.starts,
            absent if codes.lengths is None else codes.lengths, d.count, codes.pitch, codes.max_length,
            codes.total_rows or 0, groups, tiles.rows, 1, BM=shape.BM, BN=shape.BN, BR=shape.BR, BK=shape.BK,
            KC=shape.KC, ST=shape.ST, NC=shape.NC, G=tiles.group, MODE=EPILOGUES[epilogue],
            HAS_STARTS=codes.starts is not None, HAS_LENGTHS=codes.lengths is not None, BALANCED=balanced,
            R1=240, R2=24, num_warps=4, **limit,
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
