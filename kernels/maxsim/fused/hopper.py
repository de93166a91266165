"""The Hopper forward: what it can run, how it cuts the work, and its launch. The kernel is in `hopper_kernels.py`.

Room: `fused`. May import: `maxsim.tokens`; triton only inside the functions that launch.

A plan is a pure function of shapes and the number of multiprocessors, so it is the same on the first call and the
thousandth, and can be printed and tested without a GPU. Nothing about lengths or counts is compiled into a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from maxsim.tokens import Pairing, TokenBatch, documents_per_query

UNIT = 64  # query rows whose maxima are always summed together, the height of one wgmma
TILE = 128  # document rows of a tile
SHARED_BYTES = 227 * 1024 - 1024  # what one program may use on sm_90, less barriers and reductions
SMALL_SUMS_BYTES = 1 << 20  # partial sums of 64 rows instead of 128 are taken where they stay below this
MAX_ROWS = 2**31 - 2**16  # tensor-map coordinates are 32-bit rows; a tile may begin one tile past the last row
DTYPES = (torch.float16, torch.bfloat16)
H200_PROCESSORS = 132


@dataclass(frozen=True)
class HopperPlan:
    """How one call is cut into programs, tiles and stages.

    Attributes:
        NC, BM: consumer warpgroups of a program and query rows of each (64 or 128).
        BN: document rows of a tile.
        BK, KS, KC: columns of one copy, copies of a stage, stages of a document tile; BK * KS * KC >= d.
        ST: stages of the ring.
        QST: query groups held in shared memory at a time; 0 where they do not fit and travel with the document tiles.
        G: rows given to a query that is shorter than 64 tokens, else 64.
        SUM: rows whose maxima the kernel adds up; a longer query has several such sums, added by a second kernel.
        shared: every query meets every document.
        parts: units of 64 rows of one query.
        groups, blocks: query groups and document blocks (per query where not `shared`); a chunk is one of each.
        programs: programs launched, each taking every `programs`-th chunk.
        balanced: blocks have equal rows, not equal counts of documents (sorted packed documents).
        why: one sentence.
    """

    NC: int
    BM: int
    BN: int
    BK: int
    KS: int
    KC: int
    ST: int
    QST: int
    G: int
    SUM: int
    shared: bool
    parts: int
    groups: int
    blocks: int
    programs: int
    balanced: bool
    why: str
    kernel: str = "hopper"

    @property
    def sums(self) -> int:
        """Partial sums of a query: 1 where the kernel writes scores itself."""
        return max(1, self.parts * UNIT // max(self.SUM, UNIT))


def supports(
    q: TokenBatch, d: TokenBatch, *, pairing: Pairing = "all", precision: str = "ieee", argmax: bool = False
) -> str | None:
    """Why this kernel cannot score these batches, or None where it can. Looks at no tensor's content."""
    del pairing, precision, argmax  # every combination runs
    if q.device.type != "cuda":
        return f"the Hopper kernel needs a CUDA device, the embeddings are on {q.device}"
    if _capability(q.device.index) != 9:
        return f"the Hopper kernel needs compute capability 9.x, {q.device} has {_capability(q.device.index)}.x"
    for name, x in (("Q", q), ("D", d)):
        reason = _unaddressable(x)
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _unaddressable(x: TokenBatch) -> str | None:
    """Why TMA cannot address the rows of a batch, or None."""
    values = x.values
    if values.dtype not in DTYPES:
        return f"dtype {values.dtype} is not float16 or bfloat16"
    rows, d = values.shape
    if rows == 0 or x.count == 0 or x.max_length == 0:
        return "holds no tokens"
    if rows > MAX_ROWS:
        return f"{rows} rows, more than a 32-bit tensor-map coordinate can name"
    if d % 8:
        return f"d = {d} is not a multiple of 8 (16 bytes)"
    if rows > 1 and (values.stride(0) % 8 or values.stride(0) < d):
        return f"row stride {values.stride(0)} is not a multiple of 8 elements (16 bytes)"
    if values.data_ptr() % 16:
        return "the first row does not begin on a 16-byte boundary"
    return None


@lru_cache(maxsize=64)
def _capability(index: int | None) -> int:
    return torch.cuda.get_device_capability(index)[0]


@lru_cache(maxsize=64)
def _processors(index: int | None) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def plan(
    q: TokenBatch, d: TokenBatch, *, pairing: Pairing = "all", argmax: bool = False, processors: int = H200_PROCESSORS
) -> HopperPlan:
    """The launch for two batches; depends on their shapes only."""
    return plan_shape(
        Nq=q.count,
        K=documents_per_query(q, d, pairing),
        Lq=max(1, q.max_length),
        Ld=max(1, d.max_length),
        d=d.d,
        shared=pairing == "all",
        sorted_rows=d.total_rows if d.starts is not None and pairing == "all" else None,
        argmax=argmax,
        processors=processors,
    )


@lru_cache(maxsize=4096)
def plan_shape(
    *,
    Nq: int,
    K: int,
    Lq: int,
    Ld: int,
    d: int,
    shared: bool = True,
    sorted_rows: int | None = None,
    argmax: bool = False,
    processors: int = H200_PROCESSORS,
) -> HopperPlan:
    """The cheapest tile under a model of one program's time.

    Args:
        Nq, K: queries, and documents each of them meets.
        Lq, Ld: longest query and document.
        d: embedding dimension, a multiple of 8.
        shared: all queries meet the same K documents.
        sorted_rows: rows of packed documents whose starts ascend, else None.
        argmax: the epilogue also tracks indices.
        processors: multiprocessors of the device.
    """
    best: tuple[float, HopperPlan] | None = None
    for NC, BM in ((2, 128), (1, 128), (2, 64), (1, 64)):
        tile = _tile(NC, BM, Nq, K, Lq, d, shared, processors)
        if tile is None:
            continue
        cycles, chosen = _schedule(tile, Nq, K, Ld, sorted_rows, argmax, processors)
        if best is None or cycles < best[0]:
            best = cycles, chosen
    if best is None:
        raise ValueError(f"d = {d}: no Hopper tile fits into shared memory")
    return best[1]


@dataclass(frozen=True)
class _Tile:
    """A candidate before its work is scheduled."""

    NC: int
    BM: int
    BK: int
    KS: int
    KC: int
    G: int
    SUM: int
    shared: bool
    parts: int
    groups: int


def _columns(d: int) -> tuple[int, int]:
    """Columns of one copy and copies of a row: the fewest columns in all, then the widest copy (128 bytes swizzled)."""
    BK = 64 if -(-d // 64) * 64 == -(-d // 32) * 32 else 32
    return BK, -(-d // BK)


def _tile(NC: int, BM: int, Nq: int, K: int, Lq: int, d: int, shared: bool, processors: int) -> _Tile | None:
    """The candidate tile for these queries, or None where most of its rows would be empty."""
    BK, copies = _columns(d)
    G = UNIT if Lq > 32 else max(8, 1 << (Lq - 1).bit_length())
    parts = -(-Lq // UNIT)
    per_group = NC * BM // UNIT
    if not shared:
        parts = -(-parts // per_group) * per_group
        groups = Nq * parts // per_group
        if G < UNIT and per_group > 1:
            return None
    else:
        # sums of 128 rows need both units in one query; sums of 64 rows cost twice the memory for partial sums
        if BM == 128 and parts % 2 and parts > 1 and Nq * parts * K * 4 > SMALL_SUMS_BYTES:
            parts += 1
        units = Nq * parts if G == UNIT else -(-Nq * G // UNIT)
        groups = -(-units // per_group)
        if per_group > 1 and units <= per_group // 2:
            return None
    SUM = 128 if BM == 128 and G == UNIT and parts % 2 == 0 else G
    if SUM == UNIT and parts > 2 and Nq * parts * K * 4 > SMALL_SUMS_BYTES and BM == UNIT:
        return None
    KS = max(k for k in (1, 2, 3, 4) if copies % k == 0 and k * BK * TILE * 2 <= 32 * 1024)
    return _Tile(NC, BM, BK, KS, copies // KS, G, SUM, shared, parts, groups)


def _ring(tile: _Tile, many: bool) -> tuple[int, int, int, int] | None:
    """(QST, ST, KS, KC): query groups held, ring stages, copies of a stage, stages of a tile."""
    box = tile.BK * 2
    stage = TILE * box * tile.KS
    held = tile.NC * tile.BM * box * tile.KS * tile.KC
    for QST in (2, 1) if many else (1,):
        stages = (SHARED_BYTES - QST * held) // stage
        if stages >= 3:
            return QST, min(stages, 8), tile.KS, tile.KC
    stages = SHARED_BYTES // ((TILE + tile.NC * tile.BM) * box)
    return (0, min(stages, 8), 1, tile.KS * tile.KC) if stages >= 3 else None


# Model of a Hopper multiprocessor, in cycles; only the order of the candidates matters.
_FLOP_CYCLE = 4096  # dense fp16 per multiprocessor
_HBM_BYTES_CYCLE = 20  # a 132nd of 4.5 TB/s at 1.7 GHz
_L2_BYTES_CYCLE = 28
_EPILOGUE = 280  # maxima of 64 x 128 similarities by one warpgroup, with its waits
_CHUNK = 3500  # filling the ring and loading a query group
_SECOND_KERNEL = 4000


def _schedule(
    tile: _Tile, Nq: int, K: int, Ld: int, sorted_rows: int | None, argmax: bool, processors: int
) -> tuple[float, HopperPlan]:
    """Modelled cycles of the best number of blocks for a tile, and the plan."""
    columns = tile.BK * tile.KS * tile.KC
    rows = sorted_rows if sorted_rows is not None else K * Ld
    few = max(1, min(K, processors // tile.groups))
    sums = tile.parts * UNIT // max(tile.SUM, UNIT)
    best: tuple[float, HopperPlan] | None = None
    for blocks in sorted({min(K, few * scale) for scale in (1, 2, 3, 4, 6, 8, 12, 16)}):
        chunks = tile.groups * blocks
        programs = min(chunks, processors)
        ring = _ring(tile, many=chunks > programs)
        assert ring is not None, "a streamed ring of three stages always fits"
        QST, ST, KS, KC = ring
        mma = 2 * tile.NC * tile.BM * TILE * columns / _FLOP_CYCLE
        epilogue = _EPILOGUE * tile.BM / UNIT * (2.2 if argmax else 1.0)
        compute = max(mma, mma / 2 + epilogue) if tile.NC == 2 else mma + epilogue
        bytes_tile = TILE * columns * 2
        moved = bytes_tile + (tile.NC * tile.BM * columns * 2 if QST == 0 else 0)
        readers = min(tile.groups, processors) if tile.shared else 1
        cycles = max(compute, moved / _L2_BYTES_CYCLE, bytes_tile / _HBM_BYTES_CYCLE / readers * programs / processors)
        waves = -(-chunks // programs)
        tiles = max(rows / K * -(-K // blocks), 1) / TILE if sorted_rows is None else max(1, rows / blocks / TILE)
        total = waves * (tiles * cycles + _CHUNK / (2 if QST == 2 else 1)) + (_SECOND_KERNEL if sums > 1 else 0)
        if best is None or total < best[0] * 0.98:
            why = (
                f"{tile.groups} groups of {tile.NC} x {tile.BM} query rows x {blocks} blocks of documents on "
                f"{programs} programs; {'queries resident' if QST else 'queries streamed'}, {ST} stages of {TILE} x {tile.BK * KS}"
            )
            best = (
                total,
                HopperPlan(
                    NC=tile.NC, BM=tile.BM, BN=TILE, BK=tile.BK, KS=KS, KC=KC, ST=ST, QST=QST, G=tile.G, SUM=tile.SUM,
                    shared=tile.shared, parts=tile.parts, groups=tile.groups, blocks=blocks, programs=programs,
                    balanced=sorted_rows is not None and blocks > 1, why=why,
                ),
            )  # fmt: skip
    assert best is not None
    return best


def argmax_dtype(Ld: int) -> torch.dtype:
    """int16 where every row index of a document of at most Ld tokens fits, else int32."""
    return torch.int16 if Ld <= 32767 else torch.int32


def forward(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = "all",
    argmax: bool = False,
    plan: HopperPlan | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Score two batches that `supports` accepts. Launches one kernel, two where a query has several partial sums.

    Args:
        q, d: Nq queries; B documents ("all"), Nq ("pairs") or Nq * K ("candidates").
        argmax: also return the winning row of the document for every query token.
        plan: a plan made by `plan`; None makes it (from a cache).
        out: where to write the scores, fp32, contiguous, of the right shape.

    Returns:
        scores fp32 [Nq, B] | [Nq] | [Nq, K]; with `argmax` also int16 or int32 [..., Lq]: the first row of the document
        that attains the maximum, -1 for a masked query token or an empty document.
    """
    K = documents_per_query(q, d, pairing)
    if plan is None:
        plan = globals()["plan"](q, d, pairing=pairing, argmax=argmax, processors=_processors(q.device.index))
    shape = (q.count,) if pairing == "pairs" else (q.count, K)
    scores = torch.empty(shape, dtype=torch.float32, device=q.device) if out is None else out
    winners = torch.empty((*shape, q.max_length), dtype=argmax_dtype(d.max_length), device=q.device) if argmax else None
    _launch(q, d, plan, K, scores, winners)
    return scores if winners is None else (scores, winners)


def _launch(q: TokenBatch, d: TokenBatch, plan: HopperPlan, K: int, scores: Tensor, winners: Tensor | None) -> None:
    """The kernel over all chunks, then the sum of partial sums where there are several."""
    part = scores
    if plan.sums > 1:
        part = torch.empty((q.count, plan.sums, K), dtype=torch.float32, device=q.device)
    pointers = (part, winners, q.starts, q.lengths, d.starts, d.lengths)
    integers = (
        plan.groups * plan.blocks, plan.groups, plan.blocks, q.count, K, q.pitch, q.max_length, q.values.shape[0], d.pitch,
        d.max_length, d.total_rows or 0, plan.parts,
    )  # fmt: skip
    constants = (
        plan.BM, plan.BN, plan.BK, plan.KS, plan.KC, plan.ST, plan.QST, plan.NC, plan.G, plan.SUM, plan.shared,
        q.starts is not None, q.lengths is not None, d.starts is not None, d.lengths is not None, plan.balanced,
        winners is not None, 240, 24, 4,
    )  # fmt: skip
    kernel = _kernel("maxsim_forward", q.device.index, constants, (q.dtype, None if winners is None else winners.dtype))
    boxes = (_Boxes(q.values, plan.G, plan.BK), _Boxes(d.values, plan.BN, plan.BK))
    kernel(plan.programs, 1, boxes, pointers, integers)
    if part is not scores:
        add = _kernel("add_sums", q.device.index, (plan.SUM == UNIT, 4), ())
        add(-(-K // 128), q.count, (), (part, scores), (q.count, K, plan.sums))


class _Boxes:
    """Rows [R, d] as a tensor map of boxes: what triton's launcher reads from a TensorDescriptor, without its checks.

    `supports` has made the checks; building the checked class costs several microseconds of host time a call.
    """

    __slots__ = ("base", "block_shape", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(self, values: Tensor, rows: int, columns: int) -> None:
        R, d = values.shape
        self.base = values
        self.shape = (R, d)
        self.strides = (values.stride(0) if R > 1 else d, 1)
        self.block_shape = [rows, columns]
        self.padding = "zero"
        self.round_f32_to_tf32 = False

    def checked(self) -> Any:
        """The same as triton's own class, for the call that compiles."""
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        bits = self.base.element_size() * 8
        layout = NVMMASharedLayout(swizzle_byte_width=self.block_shape[1] * bits // 8, element_bitwidth=bits, rank=2)
        return TensorDescriptor(self.base, list(self.shape), list(self.strides), self.block_shape, layout)


class _Kernel:
    """One compiled variant on one device. After the first call it is launched without triton's argument analysis.

    Nothing is specialised on a run-time argument, so every call with these constants runs the same binary.
    """

    def __init__(self, name: str, index: int, constants: tuple[Any, ...]) -> None:
        self.name = name
        self.index = index
        self.constants = constants
        self.compiled: Any = None

    def __call__(
        self,
        grid0: int,
        grid1: int,
        boxes: tuple[_Boxes, ...],
        pointers: tuple[Tensor | None, ...],
        integers: tuple[int, ...],
    ) -> None:
        """Launch on the current stream of the device; `None` is a pointer that this variant does not read."""
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                self(grid0, grid1, boxes, pointers, integers)
            return
        if self.compiled is None:
            from maxsim.fused import hopper_kernels

            function = getattr(hopper_kernels, self.name)
            tensors = [pointers[0] if x is None else x for x in pointers]
            descriptors = [box.checked() for box in boxes]
            self.compiled = function[(grid0, grid1)](
                *descriptors, *tensors, *integers, *self.constants[:-1], num_warps=self.constants[-1]
            )
            return
        compiled = self.compiled
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        # integers in place of tensors spare the launcher a driver query for every pointer
        addresses = [0 if x is None else x.data_ptr() for x in pointers]
        compiled.run(
            grid0, grid1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *boxes, *addresses,
            *integers, *self.constants,
        )  # fmt: skip


_KERNELS: dict[tuple[Any, ...], _Kernel] = {}


def _kernel(name: str, index: int | None, constants: tuple[Any, ...], types: tuple[Any, ...]) -> _Kernel:
    """The variant for these constants and element types."""
    key = (name, index, constants, types)
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = _KERNELS[key] = _Kernel(name, 0 if index is None else index, constants)
    return kernel
