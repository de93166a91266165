"""Every launch of the table compiles for GPUs that are not here, within recorded registers, spills and shared memory.

`python tests/maxsim/fused/test_compile_budget.py` records the budget again (the larger of what is recorded and what
this Triton needs, so that running it under each supported version covers them all); `--fresh` forgets the old one.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
import torch

from maxsim.fused.launch import choose

BUDGET = Path(__file__).with_name("compile_budget.csv")
ARCHS = (80, 86, 90, 100, 120)
SHARED_LIMIT = {
    80: 163 << 10,
    86: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    120: 99 << 10,
}  # bytes a block may use, CUDA programming guide, table 30
SLACK = 8  # registers: a compiler release moves a few, a lost optimisation moves more


@dataclass(frozen=True, order=True)
class Variant:
    """One kernel that the table can ask for."""

    arch: int
    dtype: str
    d: int
    Nq: int
    Lq: int
    precision: str
    argmax: bool
    packed: bool

    def compile(self):
        """`Resources` of the launch that `choose` gives."""
        from maxsim.fused import portable
        from maxsim.fused.offline import compile_offline

        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[self.dtype]
        plan = choose(self.arch, dtype, self.d, self.Nq, self.Lq, 300, 1000, precision=self.precision)
        names = portable.score_kernel.arg_names
        signature = dict.fromkeys(names, "i32")
        signature |= {"q_ptr": f"*{self.dtype}", "d_ptr": f"*{self.dtype}", "out_ptr": "*fp32", "argmax_ptr": "*i16"}
        signature |= {"q_starts": "*i64", "d_starts": "*i64", "q_lengths": "*i32", "d_lengths": "*i32"}
        constants = portable.constants(plan, self.d, shared=True, wide=False)
        if not self.packed:
            constants |= {"q_starts": None, "q_lengths": None, "d_starts": None, "d_lengths": None}
        if not self.argmax:
            constants["argmax_ptr"] = None
        aligned = tuple(
            name
            for name in ("q_ptr", "d_ptr", "out_ptr", "q_stride", "d_stride", *signature)
            if name not in constants
            and (name.endswith(("_ptr", "_starts", "_lengths")) or (self.d % 16 == 0 and "stride" in name))
        )
        return compile_offline(
            portable.score_kernel, signature, constants, self.arch,
            num_warps=plan.num_warps, num_stages=plan.num_stages, aligned=tuple(dict.fromkeys(aligned)),
        )  # fmt: skip


def variants(arch: int) -> list[Variant]:
    """One of every tile of the table that this architecture uses, scores alone and with the argmax."""
    rows = {"fp16": [(1, 16), (1, 32), (1, 64), (1, 1024)], "fp32": [(1, 32), (1, 1024)]}
    plain = [
        Variant(arch, dtype, d, Nq, Lq, precision, argmax, packed)
        for dtype, precision in (("fp16", "ieee"), ("fp32", "ieee"), ("fp32", "tf32"))
        for d in ((128, 256, 768) if dtype == "fp16" else (128, 768))
        for Nq, Lq in rows[dtype]
        for argmax, packed in ((False, False), (True, True))
    ]
    return [
        *plain,
        Variant(arch, "bf16", 128, 64, 32, "ieee", True, False),
        Variant(arch, "fp16", 17, 1, 32, "ieee", False, True),
    ]


def quick(variant: Variant) -> bool:
    """The launches most used: 16-bit, d=128, and the exact fp32 path at one query."""
    return (
        variant.arch in (80, 90, 100)
        and variant.d <= 128
        and (variant.dtype != "fp32" or (variant.precision == "ieee" and variant.Lq == 32))
    )


def recorded() -> dict[Variant, tuple[int, int, int]]:
    """The budget file: variant -> registers, spills, shared."""
    if not BUDGET.exists():
        return {}
    with BUDGET.open(newline="") as file:
        return {
            Variant(
                int(r["arch"]), r["dtype"], int(r["d"]), int(r["Nq"]), int(r["Lq"]), r["precision"],
                r["argmax"] == "True", r["packed"] == "True",
            ): (int(r["registers"]), int(r["spills"]), int(r["shared"]))
            for r in csv.DictReader(file)
        }  # fmt: skip


def check(variant: Variant) -> None:
    """Compile and compare with the budget."""
    registers, spills, shared = recorded()[variant]
    used = variant.compile()
    assert used.registers <= registers + SLACK, f"{variant}: {used}, recorded {registers} registers"
    assert used.spills <= spills, f"{variant}: {used}, recorded {spills} bytes of spills"
    assert used.shared <= shared, f"{variant}: {used}, recorded {shared} bytes of shared memory"


@pytest.mark.parametrize("variant", [v for arch in ARCHS for v in variants(arch) if quick(v)], ids=str)
def test_the_most_used_launches_stay_within_their_recorded_budget(variant):
    check(variant)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_every_launch_of_the_table_stays_within_its_recorded_budget(arch):
    for variant in variants(arch):
        if not quick(variant):
            check(variant)


def test_the_budget_covers_every_launch_and_fits_the_device():
    budget = recorded()
    assert set(budget) == {v for arch in ARCHS for v in variants(arch)}
    for variant, (_, spills, shared) in budget.items():
        assert shared <= SHARED_LIMIT[variant.arch], variant
        assert spills <= 128, (
            variant
        )  # sm_90, three-pass TF32: 8 warps without spills reach 38 TFLOP/s there, 4 with them 54


def record(fresh: bool) -> None:
    """Write the budget file."""
    budget = {} if fresh else recorded()
    rows = []
    for variant in (v for arch in ARCHS for v in variants(arch)):
        used = variant.compile()
        old = budget.get(variant, (0, 0, 0))
        rows.append((*astuple(variant), *map(max, old, astuple(used))))
        print(*rows[-1], flush=True)
    with BUDGET.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Variant.__dataclass_fields__, "registers", "spills", "shared"])
        writer.writerows(rows)


if __name__ == "__main__":
    record("--fresh" in sys.argv)
