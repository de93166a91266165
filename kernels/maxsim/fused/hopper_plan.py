"""How the Hopper forward cuts its work: tiles, stages, chunks and programs, as a pure function of shapes.

Room: `fused`. May import: nothing of ours but `fused.launch`.

A plan is the same on the first call and the thousandth, and can be printed and tested without a GPU. It moves time,
never bits: the kernel sums row maxima in one order whatever the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from maxsim.fused.launch import LaunchPlan

# What these numbers rest on is in docs/kernels.md.
UNIT = 64  # query rows whose maxima are always summed together, the height of one wgmma
TILE = 128  # document rows of a tile, of which two programs that share a multiprocessor may have half
SHARED_BYTES = 227 * 1024 - 1024  # what one program may use on sm_90, less barriers and reductions
CORE_COLUMNS = 512  # columns the tensor core may add up by itself: of more, relative errors pass 1e-6
RUN_COLUMNS = 384  # of a wider d are added up there at a time
LONG_DOCUMENT = 512  # rows from which four consumers can be ahead of two
# Bytes of documents that a multiprocessor asks for at a time where reading is all there is to do, from rings of 2 to 6
# stages that were measured (docs/kernels.md, history); the second where a program has fewer rows than FEW_ROWS.
READ_AHEAD = 96 << 10
READ_AHEAD_FEW = 64 << 10
FEW_ROWS = 2048
MANY_TILES = 384  # of a chunk: a deeper ring is then worth more than the next query group at hand; not swept
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
        shared: several queries meet the same documents, and short ones share a unit.
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
        sharing = ", two a multiprocessor" if self.per_processor > 1 else ""
        return (
            f"hopper: {self.groups} group(s) of {self.NC} x {self.BM} query rows x {self.blocks} block(s) of documents "
            f"on {self.programs} programs{sharing}; tile {self.BM} x {self.BN} x {self.BK * self.KS * self.KC}, "
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
    travel = columns == CORE_COLUMNS  # the rows of four consumers do, and those of two would not
    four = long and (columns <= 64 or travel or (argmax and columns <= 128))
    for NC, BM in ((4, 64), (2, 128), (1, 128), (2, 64), (1, 64)):
        tile = _tile(NC, BM, Nq, K, Lq, d, shared)
        if tile is None or (NC == 4 and not four):
            continue
        if tile.groups * K >= 2 * processors:  # a document at least for each of two programs
            tile = _paired(tile, contiguous) or tile
        cycles, chosen = _schedule(tile, K, Ld, sorted_rows, contiguous, argmax, processors, ceiling)
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
    BN: int = TILE
    per_processor: int = 1

    @property
    def columns(self) -> int:
        """Columns multiplied: d, and zeros that complete the last copy."""
        return self.BK * self.KS * self.KC

    @property
    def sums(self) -> int:
        """Partial sums of a query."""
        return -(-self.parts * UNIT // max(self.SUM, UNIT))


def _columns(d: int) -> tuple[int, int]:
    """Columns of one copy and copies of a row: the fewest columns in all, then the widest copy (128 bytes swizzled).

    A wide embedding takes the widest copy in any case: its runs are whole copies, and one copy is a short run.
    """
    BK = 64 if d > CORE_COLUMNS or -(-d // 64) * 64 == -(-d // 32) * 32 else 32
    return BK, -(-d // BK)


def _run(BK: int, copies: int) -> int:
    """Copies whose products the tensor core may add up: a function of d alone, since it decides the bits."""
    if BK * copies <= CORE_COLUMNS:
        return copies
    return max(k for k in range(1, RUN_COLUMNS // BK + 1) if copies % k == 0)


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
    KS = max(k for k in (1, 2, 3, 4) if _run(BK, copies) % k == 0 and k * BK * TILE * 2 <= 32 * 1024)
    together = shared and (Nq > 1 or G == UNIT)  # nothing is copied for the places of a unit that no query has
    tile = _Tile(NC, BM, BK, KS, copies // KS, G, SUM, together, parts, groups)
    # sums of 64 rows, as four consumers make them, are twice as many as a query may have beyond the first megabyte
    allowed = max(-(-Lq // 128) * Nq * K * 4, SMALL_SUMS_BYTES)
    return tile if tile.sums == 1 or tile.sums * Nq * K * 4 <= allowed else None


def _ring(tile: _Tile, many: bool, few: bool = False) -> tuple[int, int, int, int] | None:
    """(QST, ST, KS, KC): query groups held, ring stages, copies of a stage, stages of a tile.

    Args:
        many: a program has several chunks, so that the next query group can be fetched under this one's products.
        few: a program has few rows to read (`FEW_ROWS`).
    """
    box = tile.BK * 2
    stage = tile.BN * box * tile.KS
    held = tile.NC * tile.BM * box * tile.KS * tile.KC
    if tile.per_processor > 1:
        ahead = (READ_AHEAD_FEW if few else READ_AHEAD) // tile.per_processor
        space, least, most = SHARED_BYTES // tile.per_processor - 1024, 2, max(2, ahead // stage)
    else:
        space, least, most = SHARED_BYTES, 3, 8
    for QST in (2, 1) if many else (1,):
        stages = (space - QST * held) // stage
        if stages >= least:
            return QST, min(stages, most), tile.KS, tile.KC
    if tile.per_processor > 1:
        return None
    stages = SHARED_BYTES // ((TILE + tile.NC * tile.BM) * box)
    return (0, min(stages, 8), 1, tile.KS * tile.KC) if stages >= 3 else None


def _paired(tile: _Tile, contiguous: bool) -> _Tile | None:
    """The tile as two programs have it that share a multiprocessor, where one reads while the other closes a document.

    None where they do not fit: several consumers, or columns that do not fit into one stage of four copies of 64.
    Documents that lie apart keep tiles of 128 rows where they fit: half of one is begun more often and holds no fewer
    rows of a short document.
    """
    if tile.NC > 1:
        return None
    BK, copies = tile.BK, tile.KS * tile.KC
    if copies > 4:  # of 32 columns: zeros that complete 64 cost products, and no reading
        BK, copies = 64, -(-tile.columns // 64)
    halved = replace(tile, BK=BK, KS=copies, KC=1, BN=TILE // 2, per_processor=2)
    whole = replace(halved, BN=TILE)
    wide = tile.BM > UNIT  # a thread has no registers for more than half of the similarities
    for pair in (halved,) if wide else (halved, whole) if contiguous and tile.columns > 64 else (whole, halved):
        if copies <= 4 and _ring(pair, many=False) is not None:
            return pair
    return None


# Model of a Hopper multiprocessor, in cycles; only the order of the candidates matters.
_FLOP_CYCLE = 4096  # dense fp16 per multiprocessor
_HBM_BYTES_CYCLE = 20  # a 132nd of 4.5 TB/s at 1.7 GHz
_L2_BYTES_CYCLE = 42  # of the 64 that a multiprocessor takes
_HALF_ROWS = 1.03  # 64 rows a warpgroup read every document tile twice as often as 128
_HALF_TILE = 1.1  # 64 document rows a tile read the query rows twice as often as 128
_FOUR = 0.98  # four warpgroups of 64 rows read as often, and hide each other's maxima
_FOUR_L2 = 1.15  # and each other's waiting for copies
_EPILOGUE = 280  # maxima of 64 x 128 similarities by one warpgroup
_STALL = 300  # a lone warpgroup between products: waits, handing back the stage, closing a document
_CHUNK = 3500  # filling the ring and loading a query group
_SECOND_KERNEL = 4000


def _cycles(tile: _Tile, QST: int, argmax: bool, programs: int, processors: int) -> float:
    """Modelled cycles of TILE document rows of one program, which shares its multiprocessor with its like."""
    mma = 2 * tile.NC * tile.BM * TILE * tile.columns / _FLOP_CYCLE
    mma *= _FOUR if tile.NC == 4 else 1.0 if tile.BM == 128 else _HALF_ROWS
    mma *= 1.0 if tile.BN == TILE else _HALF_TILE
    epilogue = _EPILOGUE * tile.BM / UNIT * (2.0 if argmax else 1.0)
    serial = mma + epilogue + _STALL if tile.NC == 1 else mma / tile.NC + epilogue
    read = TILE * tile.columns * 2
    moved = read + (tile.NC * tile.BM * tile.columns * 2 if QST == 0 else 0)
    copied = tile.per_processor * moved / _L2_BYTES_CYCLE / (_FOUR_L2 if tile.NC == 4 else 1.0)
    copied += epilogue if tile.NC == 1 else 0.0  # a full ring waits for a lone warpgroup
    readers = min(tile.groups, processors) if tile.shared else 1
    busy = programs / processors
    return max(tile.per_processor * mma, serial, copied, read / _HBM_BYTES_CYCLE / readers * busy)


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
) -> tuple[float, HopperPlan]:
    """Modelled cycles of the best number of blocks for a tile, and the plan."""
    rows = sorted_rows if sorted_rows is not None else K * Ld
    slots = processors * tile.per_processor
    best: tuple[float, HopperPlan] | None = None
    for blocks in _block_counts(tile.groups, K, slots):
        chunks = tile.groups * blocks
        programs = min(chunks, slots)
        waves = -(-chunks // programs)
        documents = -(-K // blocks)
        tiles = max(1, rows / K * documents / TILE) if sorted_rows is None else max(1, rows / blocks / TILE)
        ring = _ring(tile, chunks > programs, few=waves * tiles * TILE < FEW_ROWS)
        if ring is None:
            raise ValueError(f"{tile} does not fit into a multiprocessor")
        QST, ST, KS, KC = ring
        total = waves * (tiles * _cycles(tile, QST, argmax, programs, processors) + _CHUNK / (2 if QST == 2 else 1))
        if QST == 2 and tiles >= MANY_TILES:  # the model knows nothing of depth: no candidate wins or loses by this
            alone = _ring(tile, many=False)
            QST, ST, KS, KC = alone if alone is not None and alone[1] > ST else ring
        elif tile.groups * tile.NC * tile.BM <= 2 * UNIT and KC == 1 and programs == slots:  # reading is all there is
            ST = min(ST, max(3, READ_AHEAD // (tile.BN * tile.BK * KS * 2)))
        total += _SECOND_KERNEL if tile.sums > 1 else 0
        if best is None or total < best[0] * 0.98:
            plan = HopperPlan(
                kernel="hopper", block_m=tile.NC * tile.BM, block_n=tile.BN, block_k=tile.columns, group=tile.G,
                slices=tile.sums, docs_per_program=documents, num_warps=4 * tile.NC + 1, num_stages=ST, ceiling=ceiling,
                why="least modelled time", NC=tile.NC, BM=tile.BM, BN=tile.BN, BR=tile.BN if contiguous else 32,
                BK=tile.BK, KS=KS, KC=KC, KI=_run(tile.BK, KS * KC) // KS, ST=ST, QST=QST, G=tile.G,
                SUM=tile.SUM, shared=tile.shared,
                parts=tile.parts, groups=tile.groups, blocks=blocks, programs=programs,
                per_processor=tile.per_processor, balanced=sorted_rows is not None and blocks > 1,
            )  # fmt: skip
            best = total, plan
    assert best is not None, "at least one number of blocks is tried"
    return best
