"""How the fp32 Hopper forward cuts its work, what it launches, and what its kernels occupy when compiled. No GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from maxsim import tokens
from maxsim.fused import hopper, hopper_launch, hopper_tf32
from maxsim.fused.hopper_plan import SHARED_BYTES, UNIT, HopperPlan

pytest.importorskip("triton")

from maxsim.fused import hopper_tf32_kernels
from maxsim.fused.offline import Resources, compile_offline

SHAPES = [
    {"Nq": Nq, "K": K, "Lq": Lq, "Ld": Ld, "d": d, "shared": shared}
    for (Nq, K), Lq, Ld, d, shared in itertools.product(
        [(1, 1), (1, 1000), (3, 7), (16, 1000), (1200, 64), (1, 100_000)],
        [1, 7, 32, 33, 64, 65, 128, 300, 1030],
        [1, 300, 1024],
        [4, 32, 96, 128, 132, 256, 2048],
        [True, False],
    )
]


def plans() -> list[tuple[dict[str, Any], HopperPlan]]:
    return [(shape, hopper_tf32.plan_shape(**shape)) for shape in SHAPES]


def test_every_plan_fits_into_shared_memory_with_both_parts_of_three_stages():
    for shape, plan in plans():
        held = (plan.QST * plan.KC if plan.QST else plan.ST) * plan.NC * plan.BM
        assert 2 * (held + plan.ST * plan.BN) * plan.BK * 4 <= SHARED_BYTES, shape
        assert plan.ST >= 3, shape


def test_columns_cover_the_embedding_and_the_tensor_core_adds_up_at_most_128_of_them():
    for shape, plan in plans():
        assert shape["d"] <= plan.BK * plan.KC < shape["d"] + 32, shape
        assert plan.KC % plan.KI == 0, shape
        assert plan.KI * plan.BK <= 128, shape


def test_query_groups_hold_every_query_and_queries_of_candidates_share_none():
    for shape, plan in plans():
        units = -(-shape["Nq"] // (UNIT // plan.G if plan.shared else 1)) * plan.parts
        assert plan.groups == -(-units // plan.NC), shape
        assert plan.parts * UNIT >= shape["Lq"] or shape["Lq"] <= plan.G, shape
        assert plan.shared or plan.parts % plan.NC == 0, shape


def test_blocks_are_never_empty_and_programs_never_idle():
    for shape, plan in plans():
        assert 1 <= plan.blocks <= shape["K"], shape
        assert 1 <= plan.programs <= min(132, plan.groups * plan.blocks), shape


def test_a_plan_says_what_multiplies():
    q, d = (tokens(torch.zeros(shape)) for shape in ((1, 300, 128), (50, 200, 128)))
    plan = hopper.plan(q, d)
    assert (plan.kernel, plan.precision) == ("hopper", "tf32x3")
    assert "three TF32 products" in str(plan)


def test_rows_that_no_tensor_map_can_address_are_refused_in_units_of_four():
    assert "not a multiple of 4" in str(hopper._unaddressable(tokens(torch.zeros(2, 4, 102))))
    assert hopper._unaddressable(tokens(torch.zeros(2, 4, 100))) is None


def test_fp32_operands_launch_the_kernel_of_three_products(monkeypatch):
    seen: list[dict[str, Any]] = []

    def record(self, grid, boxes, pointers, integers):
        names = hopper_tf32_kernels.maxsim_forward_tf32x3.arg_names
        seen.append({"kernel": self.name})
        if self.name == hopper_tf32.KERNEL:
            seen[-1] |= dict(zip(names, [*boxes, *pointers, *integers, *self.constants], strict=True))

    monkeypatch.setattr(hopper_launch.Kernel, "__call__", record)
    scores = hopper.forward(tokens(torch.zeros(1, 512, 128)), tokens(torch.zeros(1000, 20, 128)))
    assert [launch["kernel"] for launch in seen] == ["maxsim_forward_tf32x3", "add_sums"]
    assert scores.shape == (1, 1000)
    assert (seen[0]["NC"], seen[0]["num_warps"]) == (2, 4)
    # 16 warps share 64K registers; the first consumer takes what the second does
    assert 2 * seen[0]["R1"] + seen[0]["R2"] + seen[0]["R3"] == 512


# name: shape, what the batches carry, registers a thread as ptxas sees them (setmaxnreg moves them), bytes of spills
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, bool], int, int]] = {
    "one long query": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 128}, {}, 128, 16),
    "one short query": ({"Nq": 1, "K": 1000, "Lq": 32, "Ld": 300, "d": 128}, {}, 168, 0),
    "argmax": ({"Nq": 64, "K": 64, "Lq": 32, "Ld": 1024, "d": 128, "argmax": True}, {}, 128, 32),
    "packed": (
        {"Nq": 16, "K": 1000, "Lq": 32, "Ld": 512, "d": 128, "sorted_rows": 250_000},
        {"HAS_Q_STARTS": True, "HAS_Q_LENGTHS": True, "HAS_STARTS": True, "HAS_LENGTHS": True},
        128,
        72,
    ),
    "d = 768": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 768}, {}, 128, 16),
}


def resources(shape: dict[str, Any], carries: dict[str, bool]) -> Resources:
    """Compile the kernel of a shape's plan for sm_90."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    plan = hopper_tf32.plan_shape(**shape)
    names = ("BM", "BN", "BR", "BK", "KS", "KC", "KI", "ST", "QST", "NC", "G", "SUM")
    constants: dict[str, Any] = {name: getattr(plan, name) for name in names}
    constants |= dict.fromkeys(("HAS_Q_STARTS", "HAS_Q_LENGTHS", "HAS_STARTS", "HAS_LENGTHS"), False) | carries
    constants |= {"SHARED": plan.shared, "BALANCED": plan.balanced, "ARGMAX": shape.get("argmax", False)}
    constants |= dict(zip(("R1", "R2", "R3"), hopper_tf32.REGISTERS[plan.NC], strict=True)) | {"num_warps": 4}
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)
    kernel = hopper_tf32_kernels.maxsim_forward_tf32x3
    signature = dict.fromkeys(kernel.arg_names, "i32") | {
        "q_desc": f"tensordesc<fp32[{plan.G}, {plan.BK}],{layout!r}>",
        "d_desc": f"tensordesc<fp32[{plan.BR}, {plan.BK}],{layout!r}>",
        "out_ptr": "*fp32",
        "arg_ptr": "*i16",
        "q_start_ptr": "*i64",
        "q_len_ptr": "*i32",
        "d_start_ptr": "*i64",
        "d_len_ptr": "*i32",
    }
    return compile_offline(kernel, signature, constants, 90)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_stays_within_its_budget(name):
    shape, carries, registers, spills = VARIANTS[name]
    used = resources(shape, carries)
    assert used.registers <= registers
    assert used.spills <= spills
    assert used.shared <= 227 * 1024
