"""How the Hopper forward cuts its work: tiles, stages, chunks and programs, as a pure function of shapes.

Room: `fused`. May import: nothing of ours but `fused.launch`.

A plan is the same on the first call and the thousandth, and can be printed and tested without a GPU. It moves time,
never bits: the kernel sums row maxima in one order whatever the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from maxsim.fused.launch import LaunchPlan

UNIT = 64  # query rows whose maxima are always summed together, the height of one wgmma
TILE = 128  # document rows of a tile
SHARED_BYTES = 227 * 1024 - 1024  # what one program may use on sm_90, less barriers and reductions
SMALL_SUMS_BYTES = 1 << 20  # partial sums of 64 rows instead of 128 are taken where they stay below this
H200_PROCESSORS = 132


@dataclass(frozen=True)
class HopperPlan(LaunchPlan):
    """How one call is cut into programs, tiles and stages; the fields of `LaunchPlan` describe the same launch.

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
    """

    NC: int = 1
    BM: int = UNIT
    BN: int = TILE
    BK: int = 64
    KS: int = 1
    KC: int = 1
    ST: int = 3
    QST: int = 1
    G: int = UNIT
    SUM: int = UNIT
    shared: bool = True
    parts: int = 1
    groups: int = 1
    blocks: int = 1
    programs: int = 1
    balanced: bool = False

    @property
    def sums(self) -> int:
        """Partial sums of a query: 1 where the kernel writes scores itself."""
        return max(1, self.parts * UNIT // max(self.SUM, UNIT))

    def __str__(self) -> str:
        held = f"{self.QST} query group(s) held" if self.QST else "queries streamed"
        return (
            f"hopper: {self.groups} group(s) of {self.NC} x {self.BM} query rows x {self.blocks} block(s) of documents "
            f"on {self.programs} programs; tile {self.BM} x {self.BN} x {self.BK * self.KS * self.KC}, {self.ST} stages "
            f"of {self.BK * self.KS} columns, {held}, bound by {self.ceiling} ({self.why})"
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
    ceiling: str = "unknown",
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
        ceiling: what binds the work, handed through to the plan.
    """
    best: tuple[float, HopperPlan] | None = None
    for NC, BM in ((2, 128), (1, 128), (2, 64), (1, 64)):
        tile = _tile(NC, BM, Nq, K, Lq, d, shared)
        if tile is None:
            continue
        cycles, chosen = _schedule(tile, K, Ld, sorted_rows, argmax, processors, ceiling)
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


def _tile(NC: int, BM: int, Nq: int, K: int, Lq: int, d: int, shared: bool) -> _Tile | None:
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
        # a sum of 128 rows needs both units in one query
        if BM == 128 and parts % 2 and parts > 1 and Nq * parts * K * 4 > SMALL_SUMS_BYTES:
            parts += 1
        units = Nq * parts if G == UNIT else -(-Nq * G // UNIT)
        groups = -(-units // per_group)
        if per_group > 1 and units <= per_group // 2:
            return None
    SUM = 128 if BM == 128 and G == UNIT and parts % 2 == 0 else G
    sums = parts * UNIT // max(SUM, UNIT)
    if sums > max(1, -(-Lq // 128)) and Nq * sums * K * 4 > SMALL_SUMS_BYTES:
        return None  # partial sums may take ceil(Lq / 128) times the memory of the scores, or 1 MiB
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
    tile: _Tile, K: int, Ld: int, sorted_rows: int | None, argmax: bool, processors: int, ceiling: str = "unknown"
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
            plan = HopperPlan(
                kernel="hopper", block_m=tile.NC * tile.BM, block_n=TILE, block_k=columns, group=tile.G, slices=sums,
                docs_per_program=-(-K // blocks), num_warps=4 * tile.NC + 1, num_stages=ST, ceiling=ceiling,
                why="least modelled time", NC=tile.NC, BM=tile.BM, BN=TILE, BK=tile.BK, KS=KS, KC=KC, ST=ST, QST=QST,
                G=tile.G, SUM=tile.SUM, shared=tile.shared, parts=tile.parts, groups=tile.groups, blocks=blocks,
                programs=programs, balanced=sorted_rows is not None and blocks > 1,
            )  # fmt: skip
            best = total, plan
    assert best is not None, "at least one number of blocks is tried"
    return best
