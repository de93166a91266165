"""Compiled Gluon kernels and their launch by the driver itself: a few microseconds of host time a call.

Room: `fused`. May import: torch; triton only when a kernel is compiled.

Triton's own launch analyses every argument and encodes every tensor map anew on each call. Nothing in these kernels is
specialised on a run-time argument, so after the first call all of that is known: tensor maps are kept by address and
shape (they describe memory, not content), and the remaining arguments are packed into one buffer whose layout is read
off the PTX that Triton compiled.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ENTRY = re.compile(r"\.visible \.entry \w+\((.*?)\)(.*?)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.(b8|u32|u64|s32|s64|b32|b64)\b[^\[,\n]*(?:\[(\d+)\])?")
_THREADS = re.compile(r"\.reqntid (\d+)")
_MAP_BYTES = 128
_ENCODED = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}  # CUtensorMapDataType
_SWIZZLE = {32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle by bytes of a box row
_MOST_CALLS = 256  # grids and streams remembered for a kernel
_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_PROMOTE_L2 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


class DriverError(RuntimeError):
    """The CUDA driver refused a call."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: what is allowed, and the 64 bytes of its value."""

    _fields_ = (("kind", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig of `cuLaunchKernelEx`."""

    _fields_ = (
        ("numbers", ctypes.c_uint * 7),  # grid, threads, bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def _driver() -> ctypes.PyDLL:
    """The CUDA driver library, with the types of the call that takes plain numbers.

    `cuLaunchKernelEx` is given ctypes objects that are made once: converting numbers took half the time of a launch.
    """
    driver = ctypes.PyDLL("libcuda.so.1")
    integer, pointer = ctypes.c_uint, ctypes.c_void_p
    driver.cuTensorMapEncodeTiled.argtypes = [pointer, integer, integer, *[pointer] * 5, *[integer] * 4]
    return driver


def _check(call: str, code: int) -> None:
    """DriverError that names the call and the driver's own word for what happened."""
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{call}: {(text.value or b'unknown error').decode()} ({code})")


class TensorMap:
    """An encoded tensor map: [R, d] elements, `stride` elements from row to row, in boxes; outside reads as zero.

    Attributes:
        address: of the 128 bytes that a launch copies.
        extent: R, d, stride, 1: what triton passes beside them.
    """

    __slots__ = ("address", "extent", "storage")

    def __init__(
        self, address: int, dtype: torch.dtype, R: int, d: int, stride: int, box_rows: int, box_columns: int
    ) -> None:
        size = dtype.itemsize
        self.storage = ctypes.create_string_buffer(_MAP_BYTES + 64)
        self.address = ctypes.addressof(self.storage) + -ctypes.addressof(self.storage) % 64
        self.extent = (R, d, stride, 1)
        dims, strides = (ctypes.c_uint64 * 2)(d, R), (ctypes.c_uint64 * 1)(stride * size)
        box, steps = (ctypes.c_uint32 * 2)(box_columns, box_rows), (ctypes.c_uint32 * 2)(1, 1)
        code = _driver().cuTensorMapEncodeTiled(
            self.address, _ENCODED[dtype], 2, address, dims, strides, box, steps, 0, _SWIZZLE[box_columns * size],
            _PROMOTE_L2, 0,
        )  # fmt: skip
        _check(f"cuTensorMapEncodeTiled of [{R}, {d}] with stride {stride}", code)


tensor_map = lru_cache(maxsize=1024)(TensorMap)  # a map describes memory, not what it holds, so it never goes stale


class Boxes(NamedTuple):
    """Rows [R, d] of a tensor that a kernel copies in boxes of `rows` x `columns`."""

    values: Tensor
    rows: int
    columns: int

    @property
    def stride(self) -> int:
        """Elements from row to row; of a single row as if it were packed, since its stride may be anything."""
        return self.values.stride(0) if self.values.shape[0] > 1 else self.values.shape[1]

    @property
    def description(self) -> tuple[Any, ...]:
        """Arguments of `tensor_map` after the address."""
        return self.values.dtype, *self.values.shape, self.stride, self.rows, self.columns

    def encoded(self) -> TensorMap:
        """The tensor map, from the cache where the same memory was described before."""
        return tensor_map(self.values.data_ptr(), *self.description)

    def descriptor(self) -> Any:
        """The same as triton's own class, for the call that compiles."""
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        size = self.values.element_size()
        layout = NVMMASharedLayout(swizzle_byte_width=self.columns * size, element_bitwidth=size * 8, rank=2)
        shape, strides = list(self.values.shape), [self.stride, 1]
        return TensorDescriptor(self.values, shape, strides, [self.rows, self.columns], layout)


def parameters(ptx: str) -> list[str]:
    """Kinds of the entry's parameters in order: "map" (128 bytes), "I" (32 bits) or "Q" (64 bits).

    Raises:
        ValueError: for an entry that takes anything else; such a kernel is left to triton's launcher.
    """
    entry = _ENTRY.search(ptx)
    if entry is None:
        raise ValueError("the PTX has no entry")
    kinds = []
    for kind, count in _PARAMETER.findall(entry[1]):
        if kind == "b8" and int(count or 0) == _MAP_BYTES:
            kinds.append("map")
        elif kind != "b8" and not count:
            kinds.append("I" if kind.endswith("32") else "Q")
        else:
            raise ValueError(f"a parameter of kind .{kind}[{count}]")
    if len(kinds) != entry[1].count(".param"):
        raise ValueError(f"{entry[1].count('.param')} parameters, of which {len(kinds)} are understood")
    return kinds


class DirectLaunch:
    """A compiled kernel, its argument buffer and everything else a launch needs.

    A kernel that waits for the one before it itself (`griddepcontrol.wait`) is scheduled while that one runs.
    """

    def __init__(self, function: int, ptx: str, shared: int) -> None:
        threads = _THREADS.search(ptx)
        if threads is None:
            raise ValueError("the PTX does not say how many threads a program has")
        kinds = parameters(ptx)
        self.function, self.threads, self.shared, self.kinds = function, int(threads[1]), shared, kinds
        formats = []
        self.offsets: list[int] = []  # of the arguments in a buffer; a map lies elsewhere and takes no room
        self.size = 0
        for kind in kinds:
            width = {"I": 4, "Q": 8, "map": 0}[kind]
            padding = -self.size % width if width else 0
            formats.append(f"{padding}x{'' if kind == 'map' else kind}" if padding else "" if kind == "map" else kind)
            self.offsets.append(self.size + padding)
            self.size += padding + width
        packing = struct.Struct("=" + "".join(formats))
        assert packing.size == self.size, "explicit padding makes the packed layout the natural one"
        self.pack = packing.pack_into
        self.buffer, self.arguments = self.room()
        self.maps = [i for i, kind in enumerate(kinds) if kind == "map"]
        self.values = sum(kind != "map" for kind in kinds)
        self.lock = Lock()
        self.waits = "griddepcontrol.wait" in ptx
        self.launch = _driver().cuLaunchKernelEx
        self.kept = lru_cache(maxsize=_MOST_CALLS)(lambda grid, stream: self.call(grid, stream, self.arguments))

    def room(self) -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_void_p]]:
        """A buffer for arguments, and the address of each in it."""
        buffer = ctypes.create_string_buffer(self.size + 8)
        base = ctypes.addressof(buffer)
        return buffer, (ctypes.c_void_p * len(self.kinds))(*(base + offset for offset in self.offsets))

    def __call__(self, grid: tuple[int, int], stream: int, maps: list[TensorMap], rest: list[int]) -> None:
        """Launch; `rest` are the addresses and integers after the tensor maps. Triton's two scratch pointers are 0."""
        values = [value for one in maps for value in one.extent]
        values += rest
        with self.lock:  # the buffer is shared by threads; the driver copies it during the call
            self.pack(self.buffer, 0, *values, 0, 0)
            for place, one in zip(self.maps, maps, strict=True):
                self.arguments[place] = one.address
            code = self.launch(*self.kept(grid, stream))
        if code:
            _check("cuLaunchKernelEx", code)

    def call(self, grid: tuple[int, int], stream: int, arguments: ctypes.Array[ctypes.c_void_p]) -> tuple[Any, ...]:
        """What `cuLaunchKernelEx` takes for a grid, a stream and the addresses of the arguments."""
        numbers = (ctypes.c_uint * 7)(*grid, 1, self.threads, 1, 1, self.shared)
        overlap = _Attribute(_OVERLAP, 0, (ctypes.c_uint * 16)(1))
        config = _Config(numbers, stream, ctypes.pointer(overlap), int(self.waits))
        return ctypes.pointer(config), ctypes.c_void_p(self.function), arguments, None


class RepeatedLaunch:
    """A launch whose grid, extents and integers are always the same: a call packs addresses alone."""

    def __init__(
        self,
        direct: DirectLaunch,
        grid: tuple[int, int],
        maps: list[TensorMap],
        pointers: int,
        integers: tuple[int, ...],
    ) -> None:
        """`maps`: with the extents of those that every call brings; `pointers`: its addresses, before `integers`."""
        self.maps, self.launch = direct.maps, direct.launch
        self.buffer, self.arguments = direct.room()
        extents = [value for one in maps for value in one.extent]
        direct.pack(self.buffer, 0, *extents, *[0] * pointers, *integers, 0, 0)
        first = len(maps) + len(extents)
        assert direct.kinds[first : first + pointers] == ["Q"] * pointers, "addresses lie side by side"
        self.first, self.pack = direct.offsets[first], struct.Struct(f"={pointers}Q").pack_into
        self.lock = Lock()
        self.kept = lru_cache(maxsize=_MOST_CALLS)(lambda stream: direct.call(grid, stream, self.arguments))

    def __call__(self, stream: int, maps: Sequence[TensorMap], pointers: Sequence[int]) -> None:
        """Launch on a stream."""
        arguments = self.arguments
        with self.lock:  # as in `DirectLaunch`
            self.pack(self.buffer, self.first, *pointers)
            for place, one in zip(self.maps, maps, strict=True):
                arguments[place] = one.address
            code = self.launch(*self.kept(stream))
        if code:
            _check("cuLaunchKernelEx", code)


class Kernel:
    """One compiled variant on one device."""

    def __init__(self, name: str, index: int, constants: tuple[Any, ...], registers: int | None) -> None:
        """`constants`: compile-time arguments, the last the warps; `registers`: of a thread at the start."""
        self.name, self.index, self.constants = name, index, constants
        self.options = {} if registers is None else {"maxnreg": registers}
        self.direct: DirectLaunch | None = None

    def __call__(
        self,
        grid: tuple[int, int],
        boxes: tuple[Boxes, ...],
        pointers: tuple[Tensor | None, ...],
        integers: tuple[int, ...],
    ) -> None:
        """Launch on the current stream of the device; `None` is a pointer that this variant does not read."""
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                self(grid, boxes, pointers, integers)
        elif self.direct is None:
            self._first(grid, boxes, pointers, integers)
        else:
            stream = torch._C._cuda_getCurrentRawStream(self.index)
            rest = [0 if x is None else x.data_ptr() for x in pointers]
            rest.extend(integers)
            self.direct(grid, stream, [box.encoded() for box in boxes], rest)

    def _first(
        self,
        grid: tuple[int, int],
        boxes: tuple[Boxes, ...],
        pointers: tuple[Tensor | None, ...],
        integers: tuple[int, ...],
    ) -> None:
        """Compile and launch by triton, and prepare the direct launch of the calls that follow."""
        from maxsim.fused import hopper_kernels, hopper_tf32_kernels

        module = hopper_kernels if hasattr(hopper_kernels, self.name) else hopper_tf32_kernels
        function = getattr(module, self.name)
        tensors = [pointers[0] if x is None else x for x in pointers]
        compiled = function[grid](
            *(box.descriptor() for box in boxes), *tensors, *integers, *self.constants[:-1],
            num_warps=self.constants[-1], **self.options,
        )  # fmt: skip
        direct = DirectLaunch(compiled.function, compiled.asm["ptx"], compiled.metadata.shared)
        expected = 4 * len(boxes) + len(pointers) + len(integers) + 2
        if direct.values != expected or len(direct.maps) != len(boxes):
            raise DriverError(
                f"{self.name}: triton {_triton_version()} passes {direct.values} arguments and {len(direct.maps)} "
                f"tensor maps, expected {expected} and {len(boxes)}; install a triton version this package names"
            )
        self.direct = direct


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


_KERNELS: dict[tuple[Any, ...], Kernel] = {}


def kernel(
    name: str, index: int, constants: tuple[Any, ...], types: tuple[Any, ...] = (), registers: int | None = None
) -> Kernel:
    """The variant of `name` for these constants and element types on device `index`; compiled when first called."""
    key = (name, index, constants, types, registers)
    found = _KERNELS.get(key)
    if found is None:
        found = _KERNELS[key] = Kernel(name, index, constants, registers)
    return found
