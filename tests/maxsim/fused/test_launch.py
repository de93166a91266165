"""Launches come from the table: for every shape, on every architecture, and they say why."""

from __future__ import annotations

import pytest
import torch

from maxsim.fused import launch
from maxsim.fused.launch import LaunchPlan, choose

ARCHS = (80, 86, 89, 90, 100, 103, 120)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_shape_has_a_launch_that_holds_it(arch, dtype):
    for d in (1, 17, 64, 96, 128, 320, 768, 1000, 2048, 5000):
        for Nq, Lq in ((1, 0), (1, 1), (1, 32), (3, 33), (1000, 1), (16, 128), (2, 129), (1, 1030)):
            for pairing in ("all", "pairs", "candidates"):
                plan = choose(arch, dtype, d, Nq, Lq, 300, 10, pairing)
                assert plan.block_m * plan.slices >= Lq
                assert 16 <= plan.block_m <= 128
                assert plan.block_m % plan.group == 0
                assert plan.block_m == plan.group or (pairing == "all" and plan.slices == 1)
                assert plan.slices == max(1, -(-Lq // 128))
                assert plan.block_k >= 16
                assert plan.docs_per_program >= 1


def test_several_short_queries_share_a_tile():
    packed, alone = choose(90, torch.float16, 128, 64, 32, 300, 1000), choose(90, torch.float16, 128, 1, 32, 300, 1000)
    assert (packed.block_m, packed.group) == (128, 32)
    assert (alone.block_m, alone.group) == (32, 32)
    assert choose(90, torch.float16, 128, 64, 32, 300, 1000, "pairs").block_m == 32


def test_arithmetic_depends_on_dtype_and_precision_only():
    for dtype, precision in ((torch.float16, "tf32"), (torch.float32, "ieee"), (torch.float32, "tf32")):
        seen = {
            choose(90, dtype, 128, Nq, Lq, Ld, K, precision=precision).precision
            for Nq in (1, 64)
            for Lq in (1, 32, 300)
            for Ld in (10, 1000)
            for K in (1, 100000)
        }
        assert len(seen) == 1
        assert (seen == {"tf32"}) == (dtype == torch.float32 and precision == "tf32")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("d", [17, 96, 128, 192, 256, 320, 768, 2048])
def test_where_16_bit_sums_are_rounded_does_not_depend_on_the_batch(arch, d):
    batches = [(Nq, Lq) for Nq in (1, 2, 64) for Lq in (1, 16, 32, 64, 128, 1000)]
    assert len({choose(arch, torch.float16, d, Nq, Lq, 300, 1000).block_k for Nq, Lq in batches}) == 1


def test_the_ceiling_is_what_binds():
    assert choose(90, torch.float16, 128, 1, 1024, 1024, 1000).ceiling == "compute"
    assert choose(90, torch.float16, 128, 1, 32, 300, 10000).ceiling == "memory"
    assert choose(90, torch.float16, 128, 1, 32, 300, 10).ceiling == "launch"
    assert choose(90, torch.float16, 128, 256, 32, 300, 50, "candidates").ceiling == "memory"


def test_one_program_takes_several_documents_only_when_enough_programs_remain():
    assert choose(90, torch.float16, 128, 1, 32, 20, 100).docs_per_program == 1
    for K in (1000, 100000):
        plan = choose(90, torch.float16, 128, 1, 32, 20, K)
        assert plan.docs_per_program == 1 or K // plan.docs_per_program >= 500


@pytest.mark.parametrize(
    ("d", "limit", "expected"),
    [(128, 128, 128), (96, 128, 128), (17, 128, 32), (1, 128, 16), (192, 128, 64), (768, 128, 128), (320, 128, 64)],
)
def test_the_chunk_of_dimensions_pads_least(d, limit, expected):
    assert launch.chunk(d, limit) == expected


def test_every_tile_says_why_and_fits_a_kind_that_is_asked_for():
    for tile in launch.tiles():
        assert len(tile["why"]) > 10
        assert tile["block_n"] & (tile["block_n"] - 1) == 0
        assert tile["block_k"] & (tile["block_k"] - 1) == 0
        assert tile["rows"] in (16, 32, 64, 128)


def test_a_plan_prints_kernel_tile_and_reason():
    text = str(choose(90, torch.float16, 128, 64, 32, 300, 1000))
    assert text.startswith("portable: tile 128 x ")
    assert "4 queries of 32 rows" in text
    assert "bound by" in text
    assert "8 slice(s) of 128 rows" in str(choose(90, torch.float16, 128, 1, 1024, 300, 1000))
    assert str(LaunchPlan("torch", why="because")) == "torch (because)"
