# Arguments of kernels have no Python types, and Gluon gives integers methods.
# mypy: disable-error-code="no-untyped-def, attr-defined"
"""What the tensor cores of an sm_90 device reach in the tile of the forward kernel, and nothing else: a ceiling.

Room: `fused`. May import: torch, triton. Two consumer warpgroups multiply their 128 query rows with document tiles that
lie in shared memory, over and over: no copy, no barrier between them, no maximum.
"""

from collections.abc import Callable

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

CONSUMERS = 2
ROWS = 128  # of a consumer, and of a document tile
COLUMNS = 64  # of a box, 128 bytes
BOXES = 2  # of a tile: d = 128
TILES = 4  # resident, so that operands change from product to product
PRODUCTS = 512  # of each consumer in one call, a multiple of TILES


@gluon.jit
def _multiply(q_boxes, d_boxes, bar, out_ptr, products, W: gl.constexpr, TILES: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    mbarrier.wait(bar, 0)
    acc = gl.zeros([128, 128], gl.float32, layout)
    for _i in range(products // TILES):
        for tile in gl.static_range(TILES):
            for box in gl.static_range(2):
                d_tile = d_boxes.index(tile * 2 + box).permute((1, 0))
                acc = warpgroup_mma(q_boxes.index(W * 2 + box), d_tile, acc, use_acc=True, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
    acc = warpgroup_mma_wait(0, deps=(acc,))
    place = gl.program_id(0) * 256 + W * 128 + gl.arange(0, 128, layout=gl.SliceLayout(1, layout))
    gl.store(out_ptr + place, gl.max(acc, axis=1))


@gluon.jit
def _multiply0(q_boxes, d_boxes, bar, out_ptr, products, TILES: gl.constexpr):
    _multiply(q_boxes, d_boxes, bar, out_ptr, products, 0, TILES)


@gluon.jit
def _multiply1(q_boxes, d_boxes, bar, out_ptr, products, TILES: gl.constexpr):
    _multiply(q_boxes, d_boxes, bar, out_ptr, products, 1, TILES)


@gluon.jit
def multiply_only(desc, out_ptr, products, TILES: gl.constexpr, num_warps: gl.constexpr):
    """desc: [(2 + TILES) * 128, 128] embeddings in boxes [128, 64]; out_ptr [programs, 256] fp32 maxima of the sums."""
    q_boxes = gl.allocate_shared_memory(desc.dtype, [4, 128, 64], desc.layout)
    d_boxes = gl.allocate_shared_memory(desc.dtype, [TILES * 2, 128, 64], desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    mbarrier.expect(bar, (4 + TILES * 2) * desc.block_type.nbytes)
    for i in gl.static_range(4):
        tma.async_copy_global_to_shared(desc, [i // 2 * 128, i % 2 * 64], bar, q_boxes.index(i))
    for i in gl.static_range(TILES * 2):
        tma.async_copy_global_to_shared(desc, [(2 + i // 2) * 128, i % 2 * 64], bar, d_boxes.index(i))
    gl.warp_specialize([
        (_multiply0, (q_boxes, d_boxes, bar, out_ptr, products, TILES)),
        (_multiply1, (q_boxes, d_boxes, bar, out_ptr, products, TILES)),
    ], [4], [232])  # fmt: skip


def operations(processors: int) -> float:
    """Floating-point operations of one call, two for each product."""
    return 2.0 * processors * CONSUMERS * PRODUCTS * ROWS * ROWS * COLUMNS * BOXES


def operands(dtype: torch.dtype, device: str = "cuda") -> torch.Tensor:
    """Random unit vectors [(CONSUMERS + TILES) * ROWS, 128], as embeddings are: their bits move the clock of a card."""
    x = torch.randn((CONSUMERS + TILES) * ROWS, COLUMNS * BOXES, device=device)
    return torch.nn.functional.normalize(x, dim=-1).to(dtype)


def expected(x: torch.Tensor) -> torch.Tensor:
    """What one program of `matrix_loop` writes for operands `x`, [CONSUMERS * ROWS] fp32, up to rounding."""
    queries, tiles = x.float().split([CONSUMERS * ROWS, TILES * ROWS])
    sums = PRODUCTS // TILES * (queries @ tiles.T).view(-1, TILES, ROWS).sum(1)
    return sums.amax(1)


def matrix_loop(processors: int, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call that runs the loop on every multiprocessor over fp16 or bf16 `operands`; returns [processors, 256] fp32.

    Raises:
        RuntimeError: on a device that is not sm_90.
    """
    capability = torch.cuda.get_device_capability(x.device)
    if capability != (9, 0):
        raise RuntimeError(
            f"the kernel whose tile this measures is for sm_90, this device is sm_{capability[0]}{capability[1]}"
        )
    kind = gl.float16 if x.dtype == torch.float16 else gl.bfloat16
    layout = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], kind)
    descriptor = TensorDescriptor.from_tensor(x, [ROWS, COLUMNS], layout)
    out = torch.empty((processors, CONSUMERS * ROWS), dtype=torch.float32, device=x.device)

    def call() -> torch.Tensor:
        multiply_only[(processors,)](descriptor, out, PRODUCTS, TILES=TILES, num_warps=4)
        return out

    return call
