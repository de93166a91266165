"""How the Hopper forward cuts its work: limits every plan keeps, and the plans of the shapes people use. No GPU."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from maxsim.fused import hopper_plan
from maxsim.fused.hopper_plan import (
    CORE_COLUMNS,
    FEW_ROWS,
    MANY_TILES,
    READ_AHEAD,
    READ_AHEAD_FEW,
    SMALL_SUMS_BYTES,
    TILE,
    UNIT,
    HopperPlan,
    plan_shape,
)

PROCESSOR_BYTES = 228 * 1024  # shared memory of a multiprocessor of sm_90
RESERVED_BYTES = 1024  # of it, the hardware keeps for each resident program
BARRIER_BYTES = 1024  # at most, of a program: barriers and reductions (test_hopper_kernels holds compiled ones to it)
SIMILARITIES = 64 * 128  # of a consumer: all that a thread of 128 registers has room for

SHAPES = [
    {"Nq": Nq, "K": K, "Lq": Lq, "Ld": Ld, "d": d, "shared": shared}
    for (Nq, K), Lq, Ld, d, shared in itertools.product(
        [(1, 1), (1, 1000), (3, 7), (16, 1000), (100, 37), (1200, 64), (1, 100_000)],
        [1, 7, 32, 33, 64, 65, 128, 300, 1030],
        [1, 300, 1024],
        [8, 96, 128, 200, 512, 2048],
        [True, False],
    )
]


def plans() -> list[tuple[dict, HopperPlan]]:
    return [(shape, plan_shape(**shape)) for shape in SHAPES]


def shared_bytes(plan: HopperPlan) -> int:
    """Shared memory of a program as the kernel allocates it, without barriers."""
    held = (plan.QST * plan.KC if plan.QST else plan.ST) * plan.KS * plan.NC * plan.BM
    return (held + plan.ST * plan.KS * plan.BN) * plan.BK * 2


def paired_plans() -> list[tuple[dict, HopperPlan]]:
    """Plans of which two programs share a multiprocessor, of every width that has such."""
    shapes = [
        {"Nq": Nq, "K": K, "Lq": Lq, "Ld": Ld, "d": d, "contiguous": contiguous, "shared": shared}
        for (Nq, K), Lq, Ld, d, contiguous, shared in itertools.product(
            [(1, 300), (1, 10_000), (400, 100)], [32, 128], [20, 300], range(8, 321, 8), [True, False], [True, False]
        )
    ]
    found = [(shape, plan_shape(**shape)) for shape in shapes]
    return [(shape, plan) for shape, plan in found if plan.per_processor == 2]


def resident_bytes(plan: HopperPlan) -> int:
    """Shared memory of a multiprocessor that its programs of a plan take, with everything."""
    return plan.per_processor * (shared_bytes(plan) + BARRIER_BYTES + RESERVED_BYTES)


def test_every_plan_fits_into_shared_memory_with_a_ring_of_three_stages_or_two_rings_of_two():
    for shape, plan in (*plans(), *paired_plans()):
        assert resident_bytes(plan) <= PROCESSOR_BYTES, shape
        assert plan.ST + plan.per_processor >= 4, shape


def test_two_rings_leave_room_for_the_barriers_of_both_and_for_what_the_hardware_reserves():
    """To the kilobyte: a ring of pieces far smaller than any embedding's, which are of 4 KB and hide the last one."""
    nearest = 0
    for BM, BN, KC in itertools.product((64, 128), (64, 128), range(1, 110)):
        tile = hopper_plan._Tile(1, BM, 8, 1, KC, 64, 64, True, 1, 1, BN, per_processor=2)
        ring = hopper_plan._ring(tile, many=False)
        if ring is not None:
            QST, ST, KS, _ = ring
            used = 2 * ((QST * BM * KC + ST * BN) * 8 * KS * 2 + BARRIER_BYTES + RESERVED_BYTES)
            assert used <= PROCESSOR_BYTES, tile
            nearest = max(nearest, used)
    assert nearest == PROCESSOR_BYTES, "no more is left unused than need be"


def test_a_consumer_of_programs_that_share_a_processor_has_no_more_similarities_than_registers():
    sizes = {(plan.BM, plan.BN) for _, plan in (*plans(), *paired_plans()) if plan.per_processor == 2}
    assert all(BM * BN <= SIMILARITIES for BM, BN in sizes), sizes
    assert sizes == {(64, 64), (64, 128), (128, 64)}


def test_columns_cover_the_embedding_and_waste_less_than_one_copy():
    for shape, plan in plans():
        columns = plan.BK * plan.KS * plan.KC
        fewest = plan.per_processor == 1 and shape["d"] <= CORE_COLUMNS
        assert shape["d"] <= columns < shape["d"] + (32 if fewest else plan.BK), shape


def test_query_groups_hold_every_query_and_no_group_is_empty():
    for shape, plan in plans():
        queries_of_a_unit = UNIT // plan.G if plan.shared else 1
        units = -(-shape["Nq"] // queries_of_a_unit) * plan.parts
        of_a_group = plan.NC * plan.BM // UNIT
        assert plan.groups == -(-units // of_a_group), shape
        assert plan.parts * UNIT >= shape["Lq"] or shape["Lq"] <= plan.G, shape


def test_queries_of_candidates_share_no_group():
    for shape, plan in plans():
        if not plan.shared:
            assert plan.parts % (plan.NC * plan.BM // UNIT) == 0, shape


def test_partial_sums_take_at_most_their_share_of_memory():
    for shape, plan in plans():
        scores = shape["Nq"] * shape["K"] * 4
        allowed = max(-(-shape["Lq"] // 128) * scores, SMALL_SUMS_BYTES)
        assert plan.sums == 1 or plan.sums * scores <= allowed, shape


def test_a_sum_of_128_rows_never_spans_two_queries():
    for shape, plan in plans():
        assert plan.SUM <= UNIT or plan.parts % 2 == 0 or plan.added, shape


def test_at_most_two_units_add_to_one_number_in_memory_so_that_their_order_cannot_matter():
    wide = 0
    for shape, plan in plans():
        assert plan.SUM <= 2 * plan.BM, shape
        assert plan.added == (shape["d"] > CORE_COLUMNS and shape["Lq"] > UNIT), shape
        assert not plan.added or plan.sums == -(-plan.parts // 2), shape
        wide += plan.added
    assert wide


def test_blocks_are_never_empty_and_programs_never_idle():
    for shape, plan in plans():
        assert 1 <= plan.blocks <= shape["K"], shape
        assert 1 <= plan.programs <= min(132 * plan.per_processor, plan.groups * plan.blocks), shape


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ({"Nq": 1, "K": 10_000, "Lq": 32, "Ld": 300}, (1, 64)),
        ({"Nq": 1, "K": 1000, "Lq": 32, "Ld": 1024}, (1, 64)),
        ({"Nq": 1, "K": 1000, "Lq": 128, "Ld": 1024}, (1, 128)),
        ({"Nq": 16, "K": 1000, "Lq": 32, "Ld": 300}, (2, 64)),
        ({"Nq": 1, "K": 10_000, "Lq": 1024, "Ld": 1024}, (2, 128)),
        ({"Nq": 64, "K": 1000, "Lq": 32, "Ld": 1024}, (2, 128)),
        ({"Nq": 1024, "K": 1000, "Lq": 32, "Ld": 1024}, (2, 128)),
        ({"Nq": 64, "K": 64, "Lq": 1024, "Ld": 512, "argmax": True}, (4, 64)),
        ({"Nq": 64, "K": 64, "Lq": 1024, "Ld": 300, "argmax": True}, (2, 128)),
        ({"Nq": 16, "K": 1000, "Lq": 128, "Ld": 1024, "sorted_rows": 600_000, "argmax": True}, (4, 64)),
        ({"Nq": 16, "K": 1000, "Lq": 128, "Ld": 1024, "sorted_rows": 500_000, "argmax": True}, (2, 128)),
    ],
)
def test_few_query_rows_stream_and_everything_else_fills_two_warpgroups_or_four(shape, tile):
    plan = plan_shape(d=128, **shape)
    assert tile == (plan.NC, plan.BM)
    assert plan.programs >= 128


def test_few_documents_spread_over_more_programs_by_smaller_query_groups():
    few, many = (plan_shape(Nq=1, K=K, Lq=1024, Ld=2048, d=128) for K in (4, 1000))
    assert few.NC * few.BM < many.NC * many.BM
    assert few.programs >= 32


def test_packed_documents_get_blocks_of_equal_rows():
    assert plan_shape(Nq=1, K=1000, Lq=32, Ld=512, d=128, sorted_rows=250_000).balanced
    assert not plan_shape(Nq=1, K=1000, Lq=32, Ld=512, d=128).balanced


def test_two_programs_share_a_processor_where_each_has_documents_to_read():
    shape = {"Nq": 1, "Lq": 32, "Ld": 300, "d": 128}
    assert [plan_shape(K=K, **shape).per_processor for K in (100, 263, 264, 1000, 100_000)] == [1, 1, 2, 2, 2]
    assert plan_shape(K=1000, **shape | {"Lq": 128}).per_processor == 2
    assert plan_shape(K=1000, **shape | {"Lq": 512}).per_processor == 1
    assert plan_shape(K=100, **shape | {"Nq": 64, "shared": False}).per_processor == 2
    assert [plan_shape(K=1000, **shape | {"d": d}).per_processor for d in (8, 64, 160, 256, 264, 512)] == [
        2,
        2,
        2,
        2,
        1,
        1,
    ]


def test_programs_that_share_a_processor_ask_for_little_at_a_time():
    """More was slower (docs/kernels.md), the more so where there are few rows in all; a tile is one stage."""
    for shape, plan in plans():
        if plan.per_processor == 2:
            stage = plan.BN * plan.BK * plan.KS * 2
            assert plan.KC == 1, shape
            assert plan.ST == 2 or 2 * plan.ST * stage <= READ_AHEAD, shape
            few = plan.groups == 1 and plan.docs_per_program * shape["Ld"] < FEW_ROWS
            assert plan.ST == 2 or not few or 2 * plan.ST * stage <= READ_AHEAD_FEW, shape
    assert [plan_shape(Nq=1, K=K, Lq=32, Ld=300, d=128).ST for K in (1000, 10_000)] == [2, 3]


def test_a_program_has_as_many_rows_as_all_its_chunks_together():
    """Eight chunks of 1280 rows are many: how far ahead to read is no matter of one chunk."""
    shape = {"Nq": 400, "Lq": 32, "Ld": 64, "d": 128, "shared": False}
    plan = plan_shape(K=100, **shape)
    chunks = -(-plan.groups * plan.blocks // plan.programs)
    rows = plan.docs_per_program * shape["Ld"]
    assert (plan.per_processor, chunks) == (2, 8)
    assert rows < FEW_ROWS < chunks * rows
    assert (plan.ST, plan_shape(K=10, **shape).ST) == (3, 2), "all that READ_AHEAD allows; of few rows, less"


def test_a_lone_short_query_reads_no_further_ahead_than_two_programs_do():
    plan = plan_shape(Nq=1, K=250, Lq=32, Ld=300, d=128)
    assert (plan.per_processor, plan.ST) == (1, 3)
    assert plan_shape(Nq=1, K=100, Lq=32, Ld=300, d=128).ST == 6, "fewer programs than multiprocessors: all that fits"
    assert plan_shape(Nq=1, K=250, Lq=1024, Ld=300, d=128).ST == 5, "products hide the reading"


def test_documents_that_lie_apart_are_copied_in_pieces_into_tiles_of_128_rows():
    shape = {"Nq": 1, "K": 1000, "Lq": 32, "Ld": 300, "d": 128}
    apart, packed = plan_shape(**shape, contiguous=False), plan_shape(**shape)
    assert (apart.BN, apart.BR) == (128, 32)
    assert (packed.BN, packed.BR) == (64, 64)
    assert (plan_shape(**shape | {"d": 64}).BN, plan_shape(**shape | {"Lq": 128}).BN) == (128, 64)


def test_the_tensor_core_adds_up_at_most_512_columns():
    for shape, plan in plans():
        assert plan.KC % plan.KI == 0, shape
        assert plan.KI == 1 or plan.KI * plan.KS * plan.BK <= CORE_COLUMNS, shape
        assert plan.KI == plan.KC or plan.BM == UNIT, shape


@pytest.mark.parametrize("d", [520, 576, 640, 768, 896, 1024, 1152, 1536, 2048])
def test_every_tile_and_ring_of_a_wide_embedding_adds_up_the_same_columns_at_a_time(d):
    """Otherwise a score would depend on which tile was chosen, and that on how many queries there are."""
    runs, rings = set(), set()
    for (Nq, K), Lq, argmax in itertools.product([(1, 1), (1, 1000), (128, 1000)], [32, 64, 128, 1024], [False, True]):
        plan = plan_shape(Nq=Nq, K=K, Lq=Lq, Ld=300, d=d, argmax=argmax)
        runs.add(plan.KI * plan.KS * plan.BK)
        rings.add((plan.QST, plan.KS))
    assert len(runs) == 1, runs
    assert max(runs) <= 384, "longer runs have passed a relative error of 1e-6 (docs/kernels.md)"
    assert max(runs) >= 128, "shorter ones cost half as much again as their products (docs/kernels.md)"
    assert not 768 <= d <= 1024 or len(rings) > 1, "queries are held and travel"


@pytest.mark.parametrize(("argmax", "widths"), [(False, {32, 64, 512}), (True, {32, 64, 96, 128, 512})])
def test_four_consumers_are_for_long_documents_of_widths_at_which_they_were_faster(argmax, widths):
    shape = {"Nq": 1, "K": 1000, "Lq": 1024, "argmax": argmax}
    every = (32, 64, 96, 128, 160, 256, 384, 512, 768, 1024, 2048)
    assert {d for d in every if plan_shape(**shape, Ld=1024, d=d).NC == 4} == widths
    assert not any(plan_shape(**shape, Ld=300, d=d).NC == 4 for d in every)


@pytest.mark.parametrize(("d", "tile"), [(512, (4, 64, 0)), (768, (2, 64, 0)), (1024, (2, 64, 0)), (2048, (2, 64, 0))])
def test_long_queries_of_wide_embeddings_travel_with_their_documents(d, tile):
    """One consumer whose queries are held is slower (docs/kernels.md): nothing hides its maxima."""
    plan = plan_shape(Nq=1, K=500, Lq=1024, Ld=1024, d=d)
    assert tile == (plan.NC, plan.BM, plan.QST)


def test_a_query_that_does_not_fit_travels_with_the_documents():
    assert plan_shape(Nq=1, K=1000, Lq=32, Ld=300, d=2048).QST == 0
    assert plan_shape(Nq=1, K=1000, Lq=32, Ld=300, d=1024).QST == 1


def tiles(shape: dict, plan: HopperPlan) -> float:
    """Document tiles that a query group meets in one chunk."""
    rows = shape.get("sorted_rows")
    return (plan.docs_per_program * shape["Ld"] if rows is None else rows / plan.blocks) / TILE


def held_two(shape: dict, monkeypatch: pytest.MonkeyPatch) -> HopperPlan:
    """The plan where no number of tiles is many, so that two groups are held wherever they fit."""
    with monkeypatch.context() as patch:
        patch.setattr(hopper_plan, "MANY_TILES", math.inf)
        return plan_shape.__wrapped__(**shape)


@pytest.mark.parametrize(
    ("shape", "groups", "stages"),
    [
        ({"Nq": 64, "K": 47, "Lq": 1024, "Ld": 1024, "d": 128}, 2, 3),
        ({"Nq": 64, "K": 48, "Lq": 1024, "Ld": 1024, "d": 128}, 1, 5),
        ({"Nq": 64, "K": 64, "Lq": 1024, "Ld": 1024, "d": 128, "argmax": True}, 1, 5),
        ({"Nq": 64, "K": 64, "Lq": 1024, "Ld": 1024, "d": 96}, 1, 7),
        ({"Nq": 64, "K": 300, "Lq": 1024, "Ld": 300, "d": 128, "shared": False}, 1, 5),
        ({"Nq": 300, "K": 1000, "Lq": 128, "Ld": 512, "d": 128, "sorted_rows": 250_000}, 2, 3),
        ({"Nq": 300, "K": 1000, "Lq": 128, "Ld": 512, "d": 128, "sorted_rows": 500_000}, 1, 5),
        ({"Nq": 1024, "K": 1000, "Lq": 32, "Ld": 1024, "d": 128}, 1, 5),  # a chunk a program: there is no next group
    ],
)
def test_a_query_group_that_meets_many_tiles_is_held_alone_beside_a_deeper_ring(shape, groups, stages):
    plan = plan_shape(**shape)
    assert (plan.QST, plan.ST, plan.num_stages) == (groups, stages, stages)
    assert groups == 1 or tiles(shape, plan) < MANY_TILES


def test_many_tiles_change_what_is_held_and_how_deep_the_ring_is_and_never_which_tile_or_cut_is_chosen(monkeypatch):
    """Scores keep their bits and the model's choice stands: what it compares knows nothing of the ring's depth."""
    deeper = as_before = 0
    options: tuple[dict, ...] = ({}, {"argmax": True}, {"sorted_rows": 300_000})
    every_fifth = SHAPES[::5]  # 5 divides no count of values, so each value of each axis stays
    for shape in (shape | more for shape, more in itertools.product(every_fifth, options)):
        plan, before = plan_shape(**shape), held_two(shape, monkeypatch)
        assert replace(plan, QST=before.QST, ST=before.ST, num_stages=before.ST) == before, shape
        if before.QST < 2 or tiles(shape, plan) < MANY_TILES:
            assert plan == before, shape
            as_before += 1
        else:
            assert plan.ST >= before.ST, shape
            assert plan.ST == before.ST or plan.QST == 1, shape
            deeper += plan.ST > before.ST
    assert deeper > 10, deeper
    assert as_before > 10, as_before


def test_a_plan_prints_what_it_does():
    text = str(plan_shape(Nq=1, K=1000, Lq=1024, Ld=1024, d=128, ceiling="compute"))
    assert "2 x 128 query rows" in text
    assert "132 programs" in text
    assert "bound by compute" in text
    assert "5 stages of 128 columns, 1 query group(s) held" in text
