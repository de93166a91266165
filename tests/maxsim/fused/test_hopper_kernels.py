"""Every kind of Hopper kernel compiles for sm_90 within its budget of registers, spills and shared memory. No GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton")

from maxsim.fused import hopper_kernels
from maxsim.fused.hopper import CONSUMER_REGISTERS, LOADER_REGISTERS, SHARING_REGISTERS
from maxsim.fused.hopper_plan import HopperPlan, plan_shape
from maxsim.fused.offline import Resources, compile_offline

SHARED_LIMIT = 227 * 1024  # bytes a program may use on sm_90
PROCESSOR_BYTES = 228 * 1024  # of all programs on a multiprocessor, and RESERVED_BYTES for each of them
RESERVED_BYTES = 1024
BARRIER_BYTES = 1024  # of a program, for barriers and reductions, as plans leave them room

EVERYTHING = {"HAS_Q_STARTS": True, "HAS_Q_LENGTHS": True, "HAS_STARTS": True, "HAS_LENGTHS": True}

# name: shape, what the batches carry, registers a thread, bytes of spills a thread. Two consumer warpgroups and the
# loader share 64K registers: ptxas sees 168 a thread, and setmaxnreg moves 240 to the consumers; of four consumers it
# sees 96, and they get 112. Programs that share a multiprocessor have 128. Spills are the greater of what triton 3.6.0
# and 3.7.1 need.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, bool], int, int]] = {
    "one long query": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 128}, {}, 168, 0),
    "several short queries": ({"Nq": 64, "K": 1000, "Lq": 32, "Ld": 1024, "d": 128}, {}, 168, 0),
    "one short query": ({"Nq": 1, "K": 1000, "Lq": 32, "Ld": 300, "d": 128}, {}, 128, 0),
    "one short query, few documents": ({"Nq": 1, "K": 100, "Lq": 32, "Ld": 300, "d": 128}, {}, 255, 0),
    "one short query, packed, argmax": (
        {"Nq": 1, "K": 1000, "Lq": 32, "Ld": 512, "d": 128, "sorted_rows": 250_000, "argmax": True},
        EVERYTHING,
        128,
        0,
    ),
    "one short query, list": (
        {"Nq": 1, "K": 1000, "Lq": 32, "Ld": 512, "d": 128, "contiguous": False, "argmax": True},
        EVERYTHING,
        128,
        0,
    ),
    "one short query, d = 256": ({"Nq": 1, "K": 1000, "Lq": 32, "Ld": 300, "d": 256}, {}, 128, 0),
    "one query of 128 tokens": (
        {"Nq": 1, "K": 1000, "Lq": 128, "Ld": 300, "d": 128, "argmax": True},
        EVERYTHING,
        128,
        0,
    ),
    "packed": ({"Nq": 16, "K": 1000, "Lq": 32, "Ld": 512, "d": 128, "sorted_rows": 250_000}, EVERYTHING, 168, 8),
    "candidates": (
        {"Nq": 64, "K": 100, "Lq": 32, "Ld": 300, "d": 128, "shared": False},
        {"HAS_STARTS": True, "HAS_LENGTHS": True},
        128,
        0,
    ),
    "argmax": ({"Nq": 64, "K": 64, "Lq": 32, "Ld": 300, "d": 128, "argmax": True}, {}, 168, 48),
    "argmax, long documents": ({"Nq": 64, "K": 64, "Lq": 32, "Ld": 1024, "d": 128, "argmax": True}, {}, 96, 88),
    "argmax, packed, long": (
        {"Nq": 64, "K": 64, "Lq": 1024, "Ld": 1024, "d": 128, "argmax": True, "sorted_rows": 60_000},
        EVERYTHING,
        96,
        72,
    ),
    "d = 64": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 64}, {}, 96, 32),
    "d = 96": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 300, "d": 96}, {}, 168, 0),
    "d = 512": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 300, "d": 512}, {}, 168, 0),
    "d = 512, long documents": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 512}, {}, 96, 24),
    "d = 768": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 768}, {}, 168, 0),
    "d = 1024, short queries": ({"Nq": 1, "K": 1000, "Lq": 32, "Ld": 300, "d": 1024}, {}, 255, 0),
    "d = 2048": ({"Nq": 1, "K": 1000, "Lq": 1024, "Ld": 1024, "d": 2048}, {}, 168, 8),
}


def resources(shape: dict[str, Any], carries: dict[str, bool], dtype: str) -> Resources:
    """Compile the kernel of a shape's plan for sm_90."""
    from triton.experimental.gluon.language import NVMMASharedLayout

    plan: HopperPlan = plan_shape(**shape)
    constants: dict[str, Any] = {
        name: getattr(plan, name) for name in ("BM", "BN", "BR", "BK", "KS", "KC", "KI", "ST", "QST", "NC", "G", "SUM")
    }
    flags = {"HAS_Q_STARTS": False, "HAS_Q_LENGTHS": False, "HAS_STARTS": False, "HAS_LENGTHS": False} | carries
    constants |= flags
    constants |= {"SHARED": plan.shared, "BALANCED": plan.balanced, "ARGMAX": shape.get("argmax", False)}
    constants |= {"R1": CONSUMER_REGISTERS[plan.NC], "R2": LOADER_REGISTERS, "num_warps": 4}
    layout = NVMMASharedLayout(swizzle_byte_width=plan.BK * 2, element_bitwidth=16, rank=2)
    kernel = hopper_kernels.maxsim_forward
    signature = dict.fromkeys(kernel.arg_names, "i32") | {
        "q_desc": f"tensordesc<{dtype}[{plan.G}, {plan.BK}],{layout!r}>",
        "d_desc": f"tensordesc<{dtype}[{plan.BR}, {plan.BK}],{layout!r}>",
        "out_ptr": "*fp32",
        "arg_ptr": "*i16",
        "q_start_ptr": "*i64",
        "q_len_ptr": "*i32",
        "d_start_ptr": "*i64",
        "d_len_ptr": "*i32",
    }
    most = None if plan.per_processor == 1 else SHARING_REGISTERS
    return compile_offline(kernel, signature, constants, 90, max_registers=most)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_stays_within_its_budget(name):
    shape, carries, registers, spills = VARIANTS[name]
    used = resources(shape, carries, "fp16")
    assert used.registers <= registers
    assert used.spills <= spills
    assert used.shared <= SHARED_LIMIT
    plan = plan_shape(**shape)
    assert plan.per_processor * (used.shared + RESERVED_BYTES) <= PROCESSOR_BYTES
    query_rows = (plan.QST * plan.KC if plan.QST else plan.ST) * plan.NC * plan.BM
    tiles = (query_rows + plan.ST * plan.BN) * plan.KS * plan.BK * 2
    assert tiles < used.shared <= tiles + BARRIER_BYTES


def test_bf16_costs_what_fp16_costs():
    shape, carries, registers, spills = VARIANTS["one long query"]
    used = resources(shape, carries, "bf16")
    assert (used.registers, used.spills) == (registers, spills)


@pytest.fixture
def ptx(monkeypatch) -> list[str]:
    """PTX of every kernel that is compiled, in order."""
    import triton.compiler

    seen: list[str] = []
    compiles = triton.compiler.compile

    def keep(*args: Any, **options: Any) -> Any:
        compiled = compiles(*args, **options)
        seen.append(compiled.asm["ptx"])
        return compiled

    monkeypatch.setattr(triton.compiler, "compile", keep)
    return seen


@pytest.mark.parametrize("pairs", [True, False])
def test_the_second_kernel_touches_memory_only_when_the_first_has_written_it(ptx, pairs):
    """It is scheduled while the first one runs, and neither may it read early nor write what others still read."""
    signature = {"part_ptr": "*fp32", "out_ptr": "*fp32", "Nq": "i32", "K": "i32", "sums": "i32"}
    used = compile_offline(hopper_kernels.add_sums, signature, {"PAIRS": pairs, "num_warps": 4}, 90)
    assert used.spills == 0
    before, wait, after = ptx[0].partition("griddepcontrol.wait;")
    assert wait
    touches = [re.findall(r"\b(?:ld|st|atom|red|cp|prefetch)\w*[.\w:]*\.global", part) for part in (before, after)]
    assert touches[0] == []
    assert len(touches[1]) >= (3 if pairs else 2), "sums of 64 rows in pairs, a total"
    assert "griddepcontrol" not in after, "the wait is one, in no branch that could pass it by"


def test_the_first_kernel_lets_the_second_one_be_scheduled(ptx):
    resources(VARIANTS["several short queries"][0], {}, "fp16")
    assert ptx[0].count("griddepcontrol.launch_dependents;") == 1
    assert "griddepcontrol.wait" not in ptx[0]
