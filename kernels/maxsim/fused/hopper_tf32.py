"""How the fp32 Hopper forward cuts its work: the shared memory, rows and documents of a program, from shapes alone.

Room: `fused`. May import: nothing of ours but `fused.hopper_plan`.

The kernel is `hopper_tf32_kernels.maxsim_forward_tf32x3`. A number takes eight bytes of shared memory, four for each
of its parts, so a program holds at most 128 query rows. Those of more than 128 dimensions travel with the documents.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from maxsim.fused.hopper_plan import H200_PROCESSORS, SHARED_BYTES, TILE, UNIT, HopperPlan

KERNEL = "maxsim_forward_tf32x3"
COLUMNS = 32  # of a copy and of a stage: 128 bytes
CORE_STAGES = 4  # stages that the tensor core adds up by itself: as many truncations as 256 columns of fp16
PARTS = 2  # fp32 words that a number becomes: its high and its low part
# Registers a thread of the second consumer, the loader and the converter; the first consumer has what the second has.
REGISTERS = {1: (240, 24, 80), 2: (216, 24, 56)}  # by the number of consumers

# Model of a multiprocessor, in cycles; only the order of the candidates matters.
_PRODUCTS_CYCLE = 1024  # TF32 products of a multiprocessor
_HBM_BYTES_CYCLE = 20  # a 132nd of 4.5 TB/s at 1.7 GHz
_STALL = 700  # a lone consumer between products: its maximum, its waits
_CHUNK = 6000  # filling the ring, loading and splitting a query group
_SECOND_KERNEL = 4000


class _Rows(NamedTuple):
    """Query rows of a program: NC consumers of 64; `parts` units a query, `groups` of NC units in all."""

    NC: int
    G: int
    parts: int
    groups: int


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
    """The cheaper of one and two consumers, with the best number of blocks; arguments as for `hopper_plan`."""
    del argmax  # costs too little beside three products
    G = UNIT if Lq > 32 else max(8, 1 << (Lq - 1).bit_length())
    units = -(-Lq // UNIT) if not shared else -(-Nq * G // UNIT) if G < UNIT else Nq * -(-Lq // UNIT)
    best: tuple[float, HopperPlan] | None = None
    for NC in (2, 1) if units > 1 else (1,):
        cut = _rows(NC, G, Nq, Lq, shared)
        for blocks in _blocks(K, max(1, processors // cut.groups)):
            programs = min(cut.groups * blocks, processors)
            waves = -(-cut.groups * blocks // programs)
            rows = -(-K // blocks) * Ld if sorted_rows is None else sorted_rows / blocks
            tiles = max(1.0, rows / TILE)
            cycles = waves * (tiles * _cycles(NC, d, programs / processors, cut.groups if shared else 1) + _CHUNK)
            cycles += _SECOND_KERNEL if cut.parts > 1 else 0
            if best is None or cycles < 0.98 * best[0]:
                chosen = _plan(cut, K, d, blocks, programs, shared, contiguous, sorted_rows is not None, ceiling)
                best = cycles, chosen
    assert best is not None, "at least one cut is tried"
    return best[1]


def _rows(NC: int, G: int, Nq: int, Lq: int, shared: bool) -> _Rows:
    """How queries of Lq tokens fill groups of NC units of 64 rows."""
    parts = -(-Lq // UNIT)
    if shared:
        units = Nq * parts if G == UNIT else -(-Nq * G // UNIT)
        return _Rows(NC, G, parts, -(-units // NC))
    parts = -(-parts // NC) * NC  # a group holds rows of one query
    return _Rows(NC, G, parts, Nq * parts // NC)


def _blocks(K: int, few: int) -> list[int]:
    """Numbers of document blocks worth trying."""
    return sorted({min(K, few * scale) for scale in (1, 2, 3, 4, 6, 8, 12, 16)})


def _cycles(NC: int, d: int, busy: float, readers: int) -> float:
    """Modelled cycles of one document tile of one program."""
    columns = -(-d // COLUMNS) * COLUMNS
    multiply = 3 * NC * UNIT * TILE * columns / _PRODUCTS_CYCLE
    read = TILE * columns * 4 / _HBM_BYTES_CYCLE / readers * busy
    return max(multiply + (_STALL if NC == 1 else 0), read)


def ring(NC: int, d: int, many: bool) -> tuple[int, int]:
    """(QST, ST): query groups held at a time, 0 where their rows travel with the documents; stages of the ring."""
    box = COLUMNS * 4 * PARTS
    held = NC * UNIT * box * -(-d // COLUMNS)
    for QST in (2, 1) if many else (1,):
        stages = (SHARED_BYTES - QST * held) // (TILE * box)
        if stages >= 3:
            return QST, min(stages, 6)
    return 0, SHARED_BYTES // ((TILE + NC * UNIT) * box)


def _plan(
    cut: _Rows,
    K: int,
    d: int,
    blocks: int,
    programs: int,
    shared: bool,
    contiguous: bool,
    ascending: bool,
    ceiling: str,
) -> HopperPlan:
    """The launch of a cut."""
    QST, ST = ring(cut.NC, d, cut.groups * blocks > programs)
    KC = -(-d // COLUMNS)
    KI = max(k for k in range(1, min(KC, CORE_STAGES) + 1) if KC % k == 0)
    return HopperPlan(
        kernel="hopper", block_m=cut.NC * UNIT, block_n=TILE, block_k=KC * COLUMNS, group=cut.G, slices=cut.parts,
        docs_per_program=-(-K // blocks), num_warps=4 * cut.NC + 5, num_stages=ST, precision="tf32x3", ceiling=ceiling,
        why="fp32 as three TF32 products, least modelled time", NC=cut.NC, BM=UNIT, BN=TILE,
        BR=TILE if contiguous else 32, BK=COLUMNS, KS=1, KC=KC, KI=KI, ST=ST, QST=QST, G=cut.G, SUM=cut.G,
        shared=shared, parts=cut.parts, groups=cut.groups, blocks=blocks, programs=programs,
        balanced=ascending and blocks > 1,
    )  # fmt: skip
