"""INT8 and FP8 MaxSim on Hopper (sm_90): what can run there, with which tiles, and the launch.

Room: `quantized`. May import: fused, tokens. The kernels are in `hopper_kernels.py`, which is imported when the first
one is compiled; this module needs no GPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens
from maxsim.quantized.hopper_launch import Codes, Scales, kernel
from maxsim.quantized.tiles import QueryTiles, query_tiles
from maxsim.tokens import TokenBatch

EPILOGUES = {"document": 0, "token": 1, "token_any": 2, "fp8_document": 3, "fp8_token": 4}  # `MODE` of the kernel
MAX_ROWS = 2**31 - 2**16  # tensor-map coordinates are 32-bit rows; a tile may begin one tile past the last row
_SHARED_BYTES = 227 * 1024 - 2048  # what a program may use on sm_90, less barriers, reductions and alignment
_QUERY_BYTES = 128 * 1024  # the ring gets the rest
_LARGEST_D = 2048  # 64 query rows of it and a ring fit into shared memory
_LARGEST_D_OF_TOKEN = 260  # 260 * 127 * 127 < 2^22
_SLOTS = 12  # of the ring, at most
_FULL = 256  # query rows of two consumers
_SHORT = 64  # query rows up to which documents are the rows of the product
_PIECE = 32  # rows of a copy where documents lie apart, so that what lies between them is not read
_REGISTERS = {1: None, 2: 128}  # of a thread at launch, by programs a processor
_CONSUMER_REGISTERS, _LOADER_REGISTERS = 240, 24


@dataclass(frozen=True)
class HopperShape:
    """Tile and pipeline of a launch.

    NC consumer warpgroups with BM query rows each, document tiles of BN rows, KC chunks of BK along d, ST ring slots,
    how many programs share a processor, and whether the query is short, so that documents are the rows of the product.
    """

    NC: int
    BM: int
    BN: int
    BK: int
    KC: int
    ST: int
    residents: int = 1
    short: bool = False


@functools.cache
def launch_shape(rows: int, d: int, BN: int = 128) -> HopperShape:
    """Shape of the launch for `rows` query rows of dimension d.

    A short query leaves the tensor cores idle and reading binds: two programs then share a processor, so that one reads
    while the other closes a document.

    Raises:
        ValueError: for a d whose query rows do not fit into shared memory.
    """
    if d > _LARGEST_D:
        raise ValueError(f"d = {d}: the Hopper kernel holds query rows up to d = {_LARGEST_D}; use path='portable'")
    BK = 128 if d > 64 else 64 if d > 32 else 32
    KC = -(-d // BK)
    slot = BN * (BK + 4)
    if rows <= _SHORT:
        BM = _SHORT // 2 if rows <= _SHORT // 2 else _SHORT
        for residents in (2, 1):
            stages = (_SHARED_BYTES // residents - KC * BM * BK) // slot
            if stages >= max(4, 2 * KC) or residents == 1:
                return HopperShape(1, BM, BN, BK, KC, min(stages, _SLOTS), residents, short=True)
    for NC, BM in ((2, 128), (2, 64), (1, 64)):
        if rows > BM * NC // 2 and NC * KC * BM * BK <= _QUERY_BYTES:
            break
    stages = (_SHARED_BYTES - NC * KC * BM * BK) // slot
    return HopperShape(NC, BM, BN, BK, KC, min(stages, _SLOTS))


def programs(groups: int, B: int, slots: int) -> int:
    """Programs for each of `groups` query groups on a device that holds `slots` at a time.

    Few, so that each walks over many documents, and in full waves.
    """
    if groups <= slots:
        return min(B, slots // groups)
    for each in range(1, 9):
        waves = groups * each / slots
        if waves / -(-groups * each // slots) >= 0.95:
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
    if d.codes.values.shape[0] > MAX_ROWS:
        return f"{d.codes.values.shape[0]} rows: a tensor map addresses at most {MAX_ROWS}"
    if d.d > _LARGEST_D:
        return f"d = {d.d}: query rows above d = {_LARGEST_D} do not fit into shared memory"
    return None


def contiguous(codes: TokenBatch) -> bool:
    """Whether every document begins where the one before it ends, as far as the host knows."""
    if codes.starts is not None:
        return codes.total_rows is not None
    return codes.lengths is None and codes.pitch == codes.max_length


def score_hopper(
    q: QuantizedTokens, d: QuantizedTokens, *, shape: HopperShape | None = None, epilogue: str | None = None
) -> Tensor:
    """Scores [Nq, B] fp32 on an sm_90 device. Launches one kernel, and another for queries longer than a tile.

    Args:
        q, d: codes of one format on one device; see `unsupported`.
        shape: overrides the launch; what measuring it needs.
        epilogue: overrides `epilogue_of`.
    """
    shape = shape or launch_shape(q.count * max(1, q.codes.max_length), d.d)
    if d.codes.values.shape[0] == 0:  # a tensor map needs a row; no document has a token to put there
        best = torch.where(q.codes.row_lengths() > 0, -torch.inf, 0.0)
        return best[:, None].repeat(1, d.count)
    tiles = query_tiles(q, shape.BM)
    out = tiles.output(d.count)
    if out.numel() == 0:
        return tiles.finish(out)
    launch = _launch_tiles if by_tiles(shape, d) else _launch
    launch(tiles, d, out, shape, epilogue or epilogue_of(d))
    if tiles.parts == 1:
        return out
    scores = torch.empty((tiles.count, d.count), dtype=torch.float32, device=out.device)
    add = kernel("add_parts", out.device.index or 0, (4,), ())
    # along x alone, which takes 2^31 - 1 programs: y takes 65 535, fewer than there may be queries
    add((-(-d.count // 128) * tiles.count, 1), (), (out, scores), (d.count, tiles.parts))
    return scores


def _launch(tiles: QueryTiles, d: QuantizedTokens, out: Tensor, shape: HopperShape, epilogue: str) -> None:
    codes = d.codes
    groups = -(-tiles.rows // (shape.BM * shape.NC))
    each = programs(groups, d.count, _processors(out.device) * shape.residents)
    rows = shape.BN if contiguous(codes) else _PIECE
    carried = (codes.starts is not None, codes.lengths is not None)
    balanced = codes.starts is not None and codes.total_rows is not None and each > 1
    constants = (
        shape.BM, shape.BN, rows, shape.BK, shape.KC, shape.ST, shape.NC, tiles.group, EPILOGUES[epilogue], *carried,
        balanced, shape.short, _CONSUMER_REGISTERS, _LOADER_REGISTERS, 4,
    )  # fmt: skip
    run = kernel(
        "maxsim_quantized", out.device.index or 0, constants, (codes.dtype, out.dtype), _REGISTERS[shape.residents]
    )
    scales = d.scales if d.kind == "token" else tiles.scales  # the latter is never read, but a map needs memory
    boxes: Any = (  # they stand for the `Boxes` of 16-bit rows
        Codes(tiles.values, shape.BM, shape.BK), Codes(codes.values, rows, shape.BK), Scales(scales, shape.BN),
    )  # fmt: skip
    run(
        (groups * each, 1),
        boxes,
        (out, tiles.scales, d.scales, codes.starts, codes.lengths),
        (d.count, codes.pitch, codes.max_length, codes.total_rows or 0, groups, tiles.rows, 1),
    )


def by_tiles(shape: HopperShape, d: QuantizedTokens) -> bool:
    """Whether `hopper_tiles.py` scores: a scale a token, and query rows that fill two consumers of 128."""
    return d.kind == "token" and shape.NC * shape.BM == _FULL


def _launch_tiles(tiles: QueryTiles, d: QuantizedTokens, out: Tensor, shape: HopperShape, epilogue: str) -> None:
    """Through triton's own launcher: its work on the host is small beside that of a long query on the device."""
    from maxsim.quantized import hopper_tiles

    codes = d.codes
    groups = -(-tiles.rows // (shape.BM * shape.NC))
    absent = out  # never read: stands in for a pointer
    with torch.cuda.device(out.device):
        hopper_tiles.maxsim_quantized[(groups * programs(groups, d.count, _processors(out.device)),)](
            Codes(tiles.values, shape.BM, shape.BK).descriptor(), Codes(codes.values, shape.BN, shape.BK).descriptor(),
            Scales(d.scales, shape.BN).descriptor(), out, tiles.scales, d.scales,
            absent if codes.starts is None else codes.starts, absent if codes.lengths is None else codes.lengths,
            d.count, codes.pitch, codes.max_length, groups, tiles.rows, 1, BM=shape.BM, BN=shape.BN, BK=shape.BK,
            KC=shape.KC, ST=shape.ST, NC=shape.NC, G=tiles.group, MODE=EPILOGUES[epilogue],
            HAS_STARTS=codes.starts is not None, HAS_LENGTHS=codes.lengths is not None, R1=_CONSUMER_REGISTERS,
            R2=_LOADER_REGISTERS, num_warps=4,
        )  # fmt: skip


@functools.cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
