"""The loop that only multiplies: counted right, and compiled to products without anything in between."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from maxsim.quantized import ceiling

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def test_operations_count_two_for_each_product_of_codes():
    assert ceiling.PRODUCTS % ceiling.TILES == 0
    assert ceiling.operations(1) == 2.0 * ceiling.CONSUMERS * ceiling.PRODUCTS * 128 * 128 * 128


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Gluon is compiled, it cannot be interpreted")
def test_the_loop_holds_products_and_neither_spills_nor_maxima_between_them(tmp_path):
    constants = {"TILES": ceiling.TILES, "ACC": gl.int32, "num_warps": 4}
    layout = gl.NVMMASharedLayout.get_default_for([128, 128], gl.int8)
    types = {"desc": f"tensordesc<i8[128, 128],{layout!r}>", "out_ptr": "*fp32", "products": "i32"}
    kernel = ceiling.multiply_only
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    built = triton.compile(
        GluonASTSource(kernel, signature, places, {}), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}
    )
    file = tmp_path / "loop.cubin"
    file.write_bytes(built.asm["cubin"])
    usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file], capture_output=True, text=True, check=True).stdout
    sass = subprocess.run([TOOLS / "nvdisasm", "-c", file], capture_output=True, text=True, check=True).stdout
    assert "STACK:0" in usage
    found = re.findall(r"\b(IGMMA|VIMNMX3?|I2FP)\b", sass)
    products = [at for at, name in enumerate(found) if name == "IGMMA"]
    assert len(products) == 2 * ceiling.TILES * 8  # two consumers, eight instructions of 64 x 128 x 32 a tile
    half = len(products) // 2
    for run in (products[:half], products[half:]):
        assert run == list(range(run[0], run[0] + half)), "something else stands between the products of a consumer"
