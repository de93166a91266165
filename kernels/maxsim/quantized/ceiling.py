# Arguments of kernels have no Python types, and Gluon gives integers methods.
# mypy: disable-error-code="no-untyped-def, attr-defined"
"""What the tensor cores of an sm_90 device reach in the tile of the quantised kernel, and nothing else: a ceiling.

Room: `quantized`. May import: fused, tokens. Two consumer warpgroups multiply their 128 query rows with tiles that lie
in shared memory, over and over; no copy, no barrier between them, no maximum. Scoring cannot be faster in this tile.
"""

from collections.abc import Callable

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = 128  # of a consumer, and of a document tile
DEPTH = 128
CONSUMERS = 2
TILES = 8  # resident, so that operands change from product to product
PRODUCTS = 1024  # of each consumer in one call, a multiple of TILES


@gluon.jit
def _multiply(q_tile, d_tiles, bar, out_ptr, products, W: gl.constexpr, TILES: gl.constexpr, ACC: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    mbarrier.wait(bar, 0)
    acc = gl.full([128, 128], 0, ACC, layout)
    for _i in range(products // TILES):
        for tile in gl.static_range(TILES):
            acc = warpgroup_mma(q_tile, d_tiles.index(tile).permute((1, 0)), acc, use_acc=True, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
    acc = warpgroup_mma_wait(0, deps=(acc,))
    place = gl.program_id(0) * 256 + W * 128 + gl.arange(0, 128, layout=gl.SliceLayout(1, layout))
    gl.store(out_ptr + place, gl.max(acc, axis=1).to(gl.float32))


@gluon.jit
def _multiply0(q_tiles, d_tiles, bar, out_ptr, products, TILES: gl.constexpr, ACC: gl.constexpr):
    _multiply(q_tiles.index(0), d_tiles, bar, out_ptr, products, 0, TILES, ACC)


@gluon.jit
def _multiply1(q_tiles, d_tiles, bar, out_ptr, products, TILES: gl.constexpr, ACC: gl.constexpr):
    _multiply(q_tiles.index(1), d_tiles, bar, out_ptr, products, 1, TILES, ACC)


@gluon.jit
def multiply_only(
    desc, out_ptr, products, TILES: gl.constexpr, ACC: gl.constexpr, num_warps: gl.constexpr
):  # fmt: skip
    """desc: [(2 + TILES) * 128, 128] codes in boxes [128, 128]; out_ptr [programs, 256] fp32 keeps the loop alive."""
    q_tiles = gl.allocate_shared_memory(desc.dtype, [2, 128, 128], desc.layout)
    d_tiles = gl.allocate_shared_memory(desc.dtype, [TILES, 128, 128], desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    mbarrier.expect(bar, (2 + TILES) * desc.block_type.nbytes)
    for i in gl.static_range(2):
        tma.async_copy_global_to_shared(desc, [i * 128, 0], bar, q_tiles.index(i))
    for i in gl.static_range(TILES):
        tma.async_copy_global_to_shared(desc, [(2 + i) * 128, 0], bar, d_tiles.index(i))
    gl.warp_specialize([
        (_multiply0, (q_tiles, d_tiles, bar, out_ptr, products, TILES, ACC)),
        (_multiply1, (q_tiles, d_tiles, bar, out_ptr, products, TILES, ACC)),
    ], [4], [232])  # fmt: skip


def operations(processors: int) -> float:
    """Operations of one call: two for each product of codes."""
    return 2.0 * processors * CONSUMERS * PRODUCTS * ROWS * ROWS * DEPTH


def matrix_loop(processors: int, *, fp8: bool = False) -> Callable[[], object]:
    """A call that runs the loop on every multiprocessor, over codes of random unit vectors as documents have them.

    Raises:
        RuntimeError: on a device that is not sm_90.
    """
    import torch
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from maxsim.quantized.quantizers import quantize_fp8, quantize_int8

    if torch.cuda.get_device_capability() != (9, 0):
        raise RuntimeError("the kernel whose tile this measures is for sm_90")
    x = torch.nn.functional.normalize(torch.randn((CONSUMERS + TILES) * ROWS, DEPTH, device="cuda"), dim=-1)
    codes = (quantize_fp8 if fp8 else quantize_int8)(x).codes.values
    layout = gl.NVMMASharedLayout.get_default_for([ROWS, DEPTH], gl.float8e4nv if fp8 else gl.int8)
    descriptor = TensorDescriptor.from_tensor(codes, [ROWS, DEPTH], layout)
    out = torch.empty(processors * CONSUMERS * ROWS, dtype=torch.float32, device="cuda")

    def call() -> object:
        multiply_only[(processors,)](
            descriptor, out, PRODUCTS, TILES=TILES, ACC=gl.float32 if fp8 else gl.int32, num_warps=4
        )
        return out

    return call
