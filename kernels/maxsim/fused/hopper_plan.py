"""How the Hopper forward cuts its work: tiles, stages, chunks and programs, as a pure function of shapes.

Room: `fused`. May import: nothing of ours but `fused.launch`.

A plan is the same on the first call and the thousandth, and can be printed and tested without a GPU. It moves time,
never bits: the kernel sums row maxima in one order whatever the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from maxsim.fused.launch import LaunchPlan

UNIT = 64  # query rows whose maxima are always summed together, the height of one wgmma
TILE = 128  # document rows of a tile
SHARED_BYTES = 227 * 1024 - 1024  # what one program may use on sm_90, less barriers and reductions
CORE_COLUMNS = (
    512  # columns the tensor core adds up by itself: relative errors reach 8e-7 at d = 512, 1.1e-6 at 768 (H200)
)
RUN_COLUMNS = 384  # of a wider d are added up there at a time: 5e-7 to 6e-7 at any d
LONG_DOCUMENT = 512  # rows from which four consumers can be ahead of two; at 300 they are behind (docs/kernels.md)
PAIR_ROWS = 2048  # document rows a program must have for two to share a multiprocessor
MANY_TILES = 384  # of a chunk: a deeper ring is then worth more than the next query group at hand (docs/kernels.md: a
# step 64 x 64 at 1024 x 1024 2 260 -> 2 065 us on an H200; where it turns was not swept)
SMALL_SUMS_BYTES = 1 << 20  # partial sums of 64 rows instead of 128 are taken where they stay below this
H200_PROCESSORS = 132


@dataclass(frozen=True)
class HopperPlan(LaunchPlan):
    """How one call is cut into programs, tiles and stages; the fields of `LaunchPlan` describe the same launch.

    Attributes:
        NC, BM: consumer warpgroups of a program (1, 2 or 4) and query rows of each (64 or 128).
        BN, BR: document rows of a tile and of one copy into it; copies that no document needs are left out.
        BK, KS, KC: columns of one copy, copies of a stage, stages of a document tile; BK * KS * KC >= d.
        KI: stages that the tensor core adds up before their sum is added in fp32.
        ST: stages of the ring.
        QST: query groups held in shared memory at a time; 0 where they do not fit and travel with the document tiles.
        G: rows given to a query that is shorter than 64 tokens, else 64.
        SUM: rows whose maxima the kernel adds up; a longer query has several such sums, added by a second kernel. Two
            consumers of fewer rows than that add theirs to one number in memory.
        shared: every query meets every document.
        parts: units of 64 rows of one query.
        groups, blocks: query groups and document blocks (per query where not `shared`); a chunk is one of each.
        programs: programs launched, each taking every `programs`-th chunk.
        per_processor: programs resident on a multiprocessor.
        balanced: blocks have equal rows, not equal counts of documents (sorted packed documents).
    """

    NC: int = 1
    BM: int = UNIT
    BN: int = TILE
    BR: int = TILE
    BK: int = 64
    KS: int = 1
    KC: int = 1
    KI: int = 1
    ST: int = 3
    QST: int = 1
    G: int = UNIT
    SUM: int = UNIT
    shared: bool = True
    parts: int = 1
    groups: int = 1
    blocks: int = 1
    programs: int = 1
    per_processor: int = 1
    balanced: bool = False

    @property
    def sums(self) -> int:
        """Partial sums of a query: 1 where the kernel writes scores itself."""
        return -(-self.parts * UNIT // max(self.SUM, UNIT))

    @property
    def added(self) -> bool:
        """Whether two units of rows add to one number in memory, which must then be zero before."""
        return self.SUM > self.BM

    def __str__(self) -> str:
        held = f"{self.QST} query group(s) held" if self.QST else "queries streamed"
        return (
            f"hopper: {self.groups} group(s) of {self.NC} x {self.BM} query rows x {self.blocks} block(s) of documents "
            f"on {self.programs} programs; tile {self.BM} x {self.BN} x {self.BK * self.KS * self.KC}, "
            f"{self.ST} stages of {self.BK * self.KS} columns, {held}, bound by {self.ceiling} ({self.why})"
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
    contiguous: bool = True,
    argmax: bool = False,
    processors: int = H200_PROCESSORS,
    ceiling: str = "unknown",
) -> HopperPlan:
    """The cheapest tile under a model of one program's time.

    Args:
        Nq, K: queries, and documents each of them meets.
        Lq, Ld: longest query and document.
        d: embedding dimension, a multiple of 8.
        shared: all queries meet the same K documents.
        sorted_rows: rows of packed documents whose starts ascend, else None.
        contiguous: a document begins where the one before it ends.
        argmax: the epilogue also tracks indices.
        processors: multiprocessors of the device.
        ceiling: what binds the work, handed through to the plan.
    """
    best: tuple[float, HopperPlan] | None = None
    long = (sorted_rows or K * Ld) >= LONG_DOCUMENT * K
    columns = math.prod(_columns(d))
    four = long and (columns <= 64 or columns == CORE_COLUMNS or (argmax and columns <= 128))
    for NC, BM in ((4, 64), (2, 128), (1, 128), (2, 64), (1, 64)):
        tile = _tile(NC, BM, Nq, K, Lq, d, shared)
        if tile is None or (NC == 4 and not four):
            continue
        each = 2 if _pair_up(tile, sorted_rows or K * Ld, processors) else 1
        cycles, chosen = _schedule(tile, K, Ld, sorted_rows, contiguous, argmax, processors, ceiling, each)
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

    @property
    def columns(self) -> int:
        """Columns multiplied: d, and zeros that complete the last copy."""
        return self.BK * self.KS * self.KC

    @property
    def sums(self) -> int:
        """Partial sums of a query."""
        return -(-self.parts * UNIT // max(self.SUM, UNIT))


def _columns(d: int) -> tuple[int, int]:
    """Columns of one copy and copies of a row: the fewest columns in all, then the widest copy (128 bytes swizzled)."""
    BK = 64 if -(-d // 64) * 64 == -(-d // 32) * 32 else 32
    return BK, -(-d // BK)


def _tile(NC: int, BM: int, Nq: int, K: int, Lq: int, d: int, shared: bool) -> _Tile | None:
    """The candidate tile for these queries, or None where it would waste rows, memory or registers."""
    BK, copies = _columns(d)
    if BK * copies > CORE_COLUMNS and BM > UNIT:
        return None  # two accumulators of 128 rows are more registers than a thread has
    if NC == 4 and BK * copies > CORE_COLUMNS:
        return None  # the registers of four do not hold a sum and two accumulators
    G = UNIT if Lq > 32 else max(8, 1 << (Lq - 1).bit_length())
    parts = -(-Lq // UNIT)
    per_group = NC * BM // UNIT
    if not shared:
        if per_group > 1 and parts <= per_group // 2:
            return None
        parts = -(-parts // per_group) * per_group
        groups = Nq * parts // per_group
        if G < UNIT and per_group > 1:
            return None
    else:
        # a sum of 128 rows needs both units in one query
        if BM == 128 and parts % 2 and parts > 1 and Nq * parts * K * 4 > SMALL_SUMS_BYTES:
            parts += 1
        units = Nq * parts if G == UNIT else -(-Nq * G // UNIT)
        groups = -(-units // per_group)
        if per_group > 1 and units <= per_group // 2:
            return None
    wide = BK * copies > CORE_COLUMNS  # only consumers of 64 rows: two of them make one sum, whichever comes first
    SUM = 128 if G == UNIT and (parts > 1 if wide else BM == 128 and parts % 2 == 0) else G
    KS = max(k for k in (1, 2, 3, 4) if copies % k == 0 and k * BK * TILE * 2 <= 32 * 1024)
    tile = _Tile(NC, BM, BK, KS, copies // KS, G, SUM, shared, parts, groups)
    allowed = max(-(-Lq // 128) * Nq * K * 4, SMALL_SUMS_BYTES)
    return tile if tile.sums == 1 or tile.sums * Nq * K * 4 <= allowed else None


def _ring(tile: _Tile, many: bool, per_processor: int) -> tuple[int, int, int, int] | None:
    """(QST, ST, KS, KC): query groups held, ring stages, copies of a stage, stages of a tile."""
    box = tile.BK * 2
    stage = TILE * box * tile.KS
    held = tile.NC * tile.BM * box * tile.KS * tile.KC
    space = SHARED_BYTES // per_processor - (per_processor - 1) * 1024
    for QST in (2, 1) if many else (1,):
        stages = (space - QST * held) // stage
        if stages >= 3:
            return QST, min(stages, 8), tile.KS, tile.KC
    stages = space // ((TILE + tile.NC * tile.BM) * box)
    return (0, min(stages, 8), 1, tile.KS * tile.KC) if stages >= 3 else None


def _pair_up(tile: _Tile, rows: int, processors: int) -> bool:
    """Whether two programs share a multiprocessor, so that one reads while the other closes a document.

    On an H200, Lq = 32: packed documents of 20..180 tokens 90 -> 81 us, reranking lists of 20..512 188 -> 181 us, but
    1000 x 300 tokens 23.3 -> 23.9 us, where a program has too little to do.
    """
    if tile.NC * tile.BM > UNIT or rows // (2 * processors) < PAIR_ROWS:
        return False
    ring = _ring(tile, False, 2)
    return ring is not None and ring[0] > 0


def _run(tile: _Tile) -> int:
    """Columns whose products the tensor core may add up: the same for every ring, since they decide the bits."""
    if tile.columns <= CORE_COLUMNS:
        return tile.columns
    stage = tile.BK * tile.KS
    return stage * max(k for k in range(1, RUN_COLUMNS // stage + 1) if tile.KC % k == 0)


# Model of a Hopper multiprocessor, in cycles; only the order of the candidates matters.
_FLOP_CYCLE = 4096  # dense fp16 per multiprocessor
_HBM_BYTES_CYCLE = 20  # a 132nd of 4.5 TB/s at 1.7 GHz
_L2_BYTES_CYCLE = 42  # of the 64 that a multiprocessor takes
_HALF_ROWS = 1.03  # 64 rows a warpgroup read every document tile twice as often as 128
_FOUR = 0.98  # four warpgroups of 64 rows read as often, and hide each other's maxima
_FOUR_L2 = 1.15  # and each other's waiting for copies
_EPILOGUE = 280  # maxima of 64 x 128 similarities by one warpgroup
_STALL = 300  # a lone warpgroup between products: waits, handing back the stage, closing a document
_CHUNK = 3500  # filling the ring and loading a query group
_SECOND_KERNEL = 4000


def _cycles(tile: _Tile, QST: int, argmax: bool, programs: int, processors: int, per_processor: int) -> float:
    """Modelled cycles of one document tile of one program, which shares its multiprocessor with its like."""
    mma = 2 * tile.NC * tile.BM * TILE * tile.columns / _FLOP_CYCLE
    mma *= _FOUR if tile.NC == 4 else 1.0 if tile.BM == 128 else _HALF_ROWS
    epilogue = _EPILOGUE * tile.BM / UNIT * (2.0 if argmax else 1.0)
    serial = mma + epilogue + _STALL if tile.NC == 1 else mma / tile.NC + epilogue
    read = TILE * tile.columns * 2
    moved = read + (tile.NC * tile.BM * tile.columns * 2 if QST == 0 else 0)
    copied = per_processor * moved / _L2_BYTES_CYCLE / (_FOUR_L2 if tile.NC == 4 else 1.0)
    copied += epilogue if tile.NC == 1 else 0.0  # a full ring waits for a lone warpgroup
    readers = min(tile.groups, processors) if tile.shared else 1
    busy = programs / processors
    return max(per_processor * mma, serial, copied, read / _HBM_BYTES_CYCLE / readers * busy)


def _block_counts(groups: int, K: int, slots: int) -> list[int]:
    """Numbers of blocks worth trying: whole rounds of equally many chunks for every slot, and what nearly fills them.

    128 queries are 16 groups: 8 blocks leave 4 of 132 slots empty, 33 blocks are 4 rounds of all.
    """
    few = max(1, min(K, slots // groups))
    rounds = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    return sorted({min(K, few * scale) for scale in rounds[:8]} | {max(1, min(K, n * slots // groups)) for n in rounds})


def _schedule(
    tile: _Tile,
    K: int,
    Ld: int,
    sorted_rows: int | None,
    contiguous: bool,
    argmax: bool,
    processors: int,
    ceiling: str = "unknown",
    per_processor: int = 1,
) -> tuple[float, HopperPlan]:
    """Modelled cycles of the best number of blocks for a tile, and the plan."""
    rows = sorted_rows if sorted_rows is not None else K * Ld
    slots = processors * per_processor
    best: tuple[float, HopperPlan] | None = None
    for blocks in _block_counts(tile.groups, K, slots):
        chunks = tile.groups * blocks
        programs = min(chunks, slots)
        ring = _ring(tile, chunks > programs, per_processor)
        if ring is None:
            raise ValueError(f"{per_processor} programs of {tile} do not fit into a multiprocessor")
        QST, ST, KS, KC = ring
        waves = -(-chunks // programs)
        documents = -(-K // blocks)
        tiles = max(1, rows / K * documents / TILE) if sorted_rows is None else max(1, rows / blocks / TILE)
        total = waves * (
            tiles * _cycles(tile, QST, argmax, programs, processors, per_processor) + _CHUNK / (2 if QST == 2 else 1)
        )
        if QST == 2 and tiles >= MANY_TILES:  # the model knows nothing of depth: no candidate wins or loses by this
            alone = _ring(tile, False, per_processor)
            QST, ST, KS, KC = alone if alone is not None and alone[1] > ST else ring
        total += _SECOND_KERNEL if tile.sums > 1 else 0
        if best is None or total < best[0] * 0.98:
            plan = HopperPlan(
                kernel="hopper", block_m=tile.NC * tile.BM, block_n=TILE, block_k=tile.columns, group=tile.G,
                slices=tile.sums, docs_per_program=documents, num_warps=4 * tile.NC + 1, num_stages=ST, ceiling=ceiling,
                why="least modelled time", NC=tile.NC, BM=tile.BM, BN=TILE, BR=TILE if contiguous else 32, BK=tile.BK,
                KS=KS, KC=KC, KI=_run(tile) // (tile.BK * KS), ST=ST, QST=QST, G=tile.G,
                SUM=tile.SUM, shared=tile.shared,
                parts=tile.parts, groups=tile.groups, blocks=blocks, programs=programs, per_processor=per_processor,
                balanced=sorted_rows is not None and blocks > 1,
            )  # fmt: skip
            best = total, plan
    assert best is not None, "at least one number of blocks is tried"
    return best
