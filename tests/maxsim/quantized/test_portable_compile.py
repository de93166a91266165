"""The portable kernel compiles for Ampere, Hopper and Blackwell in every mode, within registers and shared memory."""

from __future__ import annotations

import os

import pytest

from maxsim.fused.offline import compile_offline
from maxsim.quantized.portable import launch_shape, maxsim_quantized

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
SPILLED_BYTES = 8  # one address a thread, in the loop over chunks of d = 1024; nothing else may spill
# Recorded exceptions: long FP8 queries at d = 1024 on sm_90, where the Hopper kernel is chosen (up to d = 2048), and
# queries as given on sm_100 with triton 3.6 (3.7 spills nothing more than the address).
SPILLED_BYTES_OF = {("fp8", 90, 1024, 1024): 48, ("mixed", 100, 1024, 1024): 32}
TYPES = {"int8": ("*i8", "*i8"), "fp8": ("*fp8e4nv", "*fp8e4nv"), "mixed": ("*fp16", "*i8")}


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("kind", ["int8", "mixed", "fp8"])
@pytest.mark.parametrize(("rows", "d"), [(32, 128), (1024, 128), (1024, 1024)])
def test_it_compiles_within_its_budget(arch, kind, rows, d):
    if kind == "fp8" and arch < 89:
        pytest.skip("e4m3 has no conversion instruction before sm_89; FP8 documents need that or later")
    shape = launch_shape(kind, rows, 300, d)
    query, document = TYPES[kind]
    pointers = {"q_ptr": query, "d_ptr": document, "start_ptr": "*i64", "len_ptr": "*i32"}
    pointers |= dict.fromkeys(("qs_ptr", "ds_ptr", "out_ptr"), "*fp32")
    integers = dict.fromkeys(("first", "B", "q_rows", "n_qt", "pitch", "max_len", "d", "q_stride", "d_stride"), "i32")
    constants = {"G": 32, "BM": shape["BM"], "BN": shape["BN"], "BK": shape["BK"], "NK": -(-d // shape["BK"])}
    constants |= {"KIND": kind, "PER_TOKEN": True, "HAS_STARTS": True, "HAS_LENGTHS": True}
    got = compile_offline(
        maxsim_quantized, pointers | integers, constants, arch, num_warps=shape["num_warps"],
        num_stages=shape["num_stages"], aligned=("q_ptr", "d_ptr", "d", "q_stride", "d_stride"),
    )  # fmt: skip
    assert got.spills <= SPILLED_BYTES_OF.get((kind, arch, rows, d), SPILLED_BYTES)
    assert got.shared <= SHARED_BYTES[arch]
