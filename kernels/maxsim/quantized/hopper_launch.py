"""Launching the quantised Hopper kernels by the driver itself, as the forward's are.

Room: `quantized`. May import: fused, tokens. What `fused.hopper_launch` does for tensor maps of fp16 and bf16 rows this
module adds for rows of codes and for scales; everything else is its `Kernel`.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsim.fused import hopper_launch
from maxsim.fused.hopper_launch import DirectLaunch, DriverError

_BYTES, _FLOATS = 0, 7  # CUtensorMapDataType: UINT8, FLOAT32
_SWIZZLE = {32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle by bytes of a box row
_PROMOTE_L2 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


class Map:
    """An encoded tensor map of one or two dimensions; outside it reads as zero.

    Attributes:
        address: of the 128 bytes that a launch copies.
        extent: sizes, outermost first, then strides: what triton passes beside them.
    """

    __slots__ = ("address", "extent", "storage")

    def __init__(self, address: int, kind: int, sizes: tuple[int, ...], stride: int, box: tuple[int, ...]) -> None:
        """`sizes` and `box` outermost first; `stride` bytes from row to row, not read for one dimension."""
        rank = len(sizes)
        self.storage = ctypes.create_string_buffer(128 + 64)
        self.address = ctypes.addressof(self.storage) + -ctypes.addressof(self.storage) % 64
        self.extent = (*sizes, stride, 1) if rank == 2 else (*sizes, 1)
        dims = (ctypes.c_uint64 * rank)(*reversed(sizes))
        strides = (ctypes.c_uint64 * 1)(stride)
        boxes, steps = (ctypes.c_uint32 * rank)(*reversed(box)), (ctypes.c_uint32 * rank)(*[1] * rank)
        swizzle = _SWIZZLE[box[1]] if rank == 2 else 0
        code = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address), kind, rank, ctypes.c_void_p(address), dims, strides, boxes, steps, 0,
            swizzle, _PROMOTE_L2, 0,
        )  # fmt: skip
        if code:
            raise DriverError(f"cuTensorMapEncodeTiled of {sizes} with stride {stride} in boxes {box}: error {code}")


_map = lru_cache(maxsize=1024)(Map)  # a map describes memory, not what it holds, so it never goes stale


class Codes(NamedTuple):
    """Rows [R, d] of one-byte codes that a kernel copies in boxes of `rows` x `columns`."""

    values: Tensor
    rows: int
    columns: int

    def encoded(self) -> Map:
        """The tensor map, from the cache where the same memory was described before."""
        R, d = self.values.shape
        return _map(self.values.data_ptr(), _BYTES, (R, d), self._stride, (self.rows, self.columns))

    def descriptor(self) -> Any:
        """The same as triton's own class, for the call that compiles."""
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = NVMMASharedLayout(swizzle_byte_width=self.columns, element_bitwidth=8, rank=2)
        shape = list(self.values.shape)
        return TensorDescriptor(self.values, shape, [self._stride, 1], [self.rows, self.columns], layout)

    @property
    def _stride(self) -> int:
        """Bytes from row to row; of a single row as if it were padded to 16, since its stride may be anything."""
        return self.values.stride(0) if self.values.shape[0] > 1 else -(-self.values.shape[1] // 16) * 16


class Scales(NamedTuple):
    """Scales [n] fp32 that a kernel copies `rows` at a time."""

    values: Tensor
    rows: int

    def encoded(self) -> Map:
        """The tensor map, from the cache where the same memory was described before."""
        return _map(self.values.data_ptr(), _FLOATS, (self.values.shape[0],), 0, (self.rows,))

    def descriptor(self) -> Any:
        """The same as triton's own class, for the call that compiles."""
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
        return TensorDescriptor(self.values, [self.values.shape[0]], [1], [self.rows], layout)


class Kernel(hopper_launch.Kernel):
    """One compiled variant of a kernel of this room on one device."""

    def _first(self, grid: Any, boxes: Any, pointers: Any, integers: Any) -> None:
        """Compile and launch by triton, and prepare the direct launch of the calls that follow."""
        from maxsim.quantized import hopper_kernels

        tensors = [pointers[0] if x is None else x for x in pointers]
        compiled = getattr(hopper_kernels, self.name)[grid](
            *(box.descriptor() for box in boxes), *tensors, *integers, *self.constants[:-1],
            num_warps=self.constants[-1], **self.options,
        )  # fmt: skip
        direct = DirectLaunch(compiled.function, compiled.asm["ptx"], compiled.metadata.shared)
        extents = sum(2 * len(box.descriptor().shape) for box in boxes)
        expected = extents + len(pointers) + len(integers) + 2
        if direct.values != expected or len(direct.maps) != len(boxes):
            raise DriverError(
                f"{self.name}: triton passes {direct.values} arguments and {len(direct.maps)} tensor maps, expected "
                f"{expected} and {len(boxes)}; install a triton version this package names"
            )
        self.direct = direct


@cache
def kernel(
    name: str, index: int, constants: tuple[Any, ...], types: tuple[torch.dtype, ...], registers: int | None = None
) -> Kernel:
    """The variant of `name` for these constants and element types on device `index`; compiled when first called."""
    del types  # part of the key: triton compiles anew for another element type
    return Kernel(name, index, constants, registers)
