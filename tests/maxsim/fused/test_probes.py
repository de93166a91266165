"""The loop of products that serves as a ceiling: it compiles without spills, and multiplies what it says."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from maxsim.fused import probes
from maxsim.fused.offline import compile_offline


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_loop_compiles_for_sm_90_without_spills(dtype):
    from triton.experimental.gluon.language import NVMMASharedLayout

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    signature = {"desc": f"tensordesc<{dtype}[128, 64],{layout!r}>", "out_ptr": "*fp32", "products": "i32"}
    used = compile_offline(probes.multiply_only, signature, {"TILES": probes.TILES, "num_warps": 4}, 90)
    assert used.spills == 0
    assert used.shared <= 227 * 1024


def test_its_operations_are_two_for_every_product_of_two_numbers():
    """One program: 2 consumers, 512 products of 128 query rows with 128 document rows of 128 columns."""
    assert probes.operations(1) == 2 * 2 * 512 * 128 * 128 * 128
    assert probes.PRODUCTS % probes.TILES == 0


def test_what_it_computes_is_known():
    """The operands hold 256 query rows and the resident tiles; every row keeps its greatest sum over tiles."""
    x = torch.zeros(6 * 128, 128)
    x[3, 0] = 1.0
    x[256 + 5, 0] = x[256 + 3 * 128 + 5, 0] = 0.5
    sums = probes.expected(x)
    assert sums.shape == (256,)
    assert sums[3] == probes.PRODUCTS // probes.TILES
    assert sums.sum() == sums[3]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loop_multiplies_what_it_claims(dtype):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the loop is for sm_90")
    x = probes.operands(dtype)
    torch.testing.assert_close(probes.matrix_loop(4, x)(), probes.expected(x).expand(4, -1), rtol=1e-3, atol=0)
