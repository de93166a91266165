"""The direct launch: parameters are read as PTX states them, arguments arrive where the driver looks. No GPU."""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from maxsim.fused import hopper_launch
from maxsim.fused.hopper_launch import Boxes, DirectLaunch, DriverError, RepeatedLaunch, parameters

PTX = """
.visible .entry scores(
	.param .align 64 .b8 scores_param_0[128],
	.param .u32 scores_param_1,
	.param .u32 scores_param_2,
	.param .u64 scores_param_3,
	.param .u64 scores_param_4,
	.param .u64 .ptr .global .align 1 scores_param_5,
	.param .u32 scores_param_6,
	.param .u64 .ptr .global .align 1 scores_param_7,
	.param .u64 .ptr .global .align 1 scores_param_8
)
.reqntid 384
{
"""


POINTERS = PTX.replace(  # two addresses and two integers, as a scoring kernel has several of each
    ".param .u32 scores_param_6",
    ".param .u64 scores_param_a,\n\t.param .u32 scores_param_b,\n\t.param .u32 scores_param_6",
)
WAITING = PTX + "\tgriddepcontrol.wait;\n"  # for the kernel before it, by itself


class Driver:
    """Stands in for libcuda: reads the arguments of a launch as the real one does."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.seen: list[object] = []
        self.encoded: list[object] = []
        self.maps: list[int] = []

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        """Reads bytes where cuda.h has the fields of CUlaunchConfig and of CUlaunchAttribute, whatever ours say."""
        assert extra is None
        *numbers, shared, stream, at, count = struct.unpack("=7I4xQQI", ctypes.string_at(config, 52))
        attributes = [struct.unpack("=I4xI", ctypes.string_at(at + 72 * i, 12)) for i in range(count)]
        values = passed(arguments)
        self.maps.append(arguments[0])
        self.seen.append((function.value, tuple(numbers[:3]), tuple(numbers[3:]), shared, stream, attributes, values))
        return self.code

    def cuTensorMapEncodeTiled(self, at, dtype, rank, address, dims, strides, box, steps, inter, swizzle, l2, fill):
        assert at % 64 == 0
        self.encoded.append((dtype, rank, address, list(dims), list(strides), list(box), swizzle))
        ctypes.memmove(at, bytes(range(128)), 128)
        return self.code

    def cuGetErrorString(self, code, text):
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"invalid argument"


def passed(arguments) -> list[object]:
    """Values at the addresses that a launch of `PTX` or `POINTERS` is given."""
    formats = ["128s", "I", "I", "Q", "Q", "Q", *(["Q", "I"] if len(arguments) == 11 else []), "I", "Q", "Q"]
    return [
        struct.unpack(f, ctypes.string_at(at, struct.calcsize(f)))[0] for at, f in zip(arguments, formats, strict=True)
    ]


@pytest.fixture
def driver(monkeypatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(hopper_launch, "_driver", lambda: fake)
    hopper_launch.tensor_map.cache_clear()
    return fake


def test_parameters_are_read_in_order():
    assert parameters(PTX) == ["map", "I", "I", "Q", "Q", "Q", "I", "Q", "Q"]


def test_a_parameter_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"\.b8\[64\]"):
        parameters(PTX.replace("[128]", "[64]"))
    with pytest.raises(ValueError, match="9 parameters, of which 8"):
        parameters(PTX.replace(".param .u32 scores_param_6", ".param .f32 scores_param_6"))


def test_arguments_arrive_where_the_driver_looks_for_them(driver):
    launch = DirectLaunch(1234, PTX, 200_000)
    boxes = Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64)
    launch((5, 2), 99, [boxes.encoded()], [2**40 + 1, 17])
    [(function, grid, threads, shared, stream, attributes, values)] = driver.seen
    assert (function, grid, threads, shared, stream) == (1234, (5, 2, 1), (384, 1, 1), 200_000, 99)
    assert attributes == [], "scheduled when the kernel before it is done"
    assert values == [bytes(range(128)), 7, 96, 96, 1, 2**40 + 1, 17, 0, 0]


def test_an_argument_of_eight_bytes_behind_one_of_four_is_found_behind_the_padding(driver, monkeypatch):
    """Scratch pointers come behind padding, too, but are 0 as padding is."""
    found = []
    monkeypatch.setattr(driver, "cuLaunchKernelEx", lambda config, function, arguments, extra: found.extend(arguments))
    launch = DirectLaunch(1234, PTX.replace(".param .u32 scores_param_2", ".param .u64 scores_param_2"), 0)
    launch((1, 1), 0, [map_of(torch.zeros(7, 96, dtype=torch.float16))], [2**40 + 1, 17])
    values = [
        struct.unpack(f, ctypes.string_at(at, struct.calcsize(f)))[0] for at, f in zip(found[1:5], "IQQQ", strict=True)
    ]
    assert values == [7, 96, 96, 1]


def test_the_structures_of_a_launch_lie_in_memory_as_cuda_h_has_them():
    """Seven numbers, 4 bytes of padding, two pointers and a count; an id, 4 bytes of padding and 64 of a value."""
    config, attribute = hopper_launch._Config, hopper_launch._Attribute
    assert (config.numbers.offset, config.numbers.size) == (0, 28)
    assert (config.stream.offset, config.attributes.offset, config.count.offset) == (32, 40, 48)
    assert (attribute.kind.offset, attribute.value.offset, attribute.value.size) == (0, 8, 64)
    assert (ctypes.sizeof(config), ctypes.sizeof(attribute)) == (56, 72)


def test_a_kernel_that_waits_itself_may_be_scheduled_while_the_one_before_it_runs(driver):
    """CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is 6; what a kept call points to must live as long."""
    launch = DirectLaunch(1234, WAITING, 200_000)
    boxes = Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64)
    kept = []
    for _ in range(3):
        launch((5, 2), 2**40 + 8, [boxes.encoded()], [2**40 + 1, 17])
        gc.collect()
        kept += [ctypes.create_string_buffer(b"\xff" * size, size) for size in (28, 56, 64, 72) for _ in range(1000)]
    values = [bytes(range(128)), 7, 96, 96, 1, 2**40 + 1, 17, 0, 0]
    assert driver.seen == [(1234, (5, 2, 1), (384, 1, 1), 200_000, 2**40 + 8, [(6, 1)], values)] * 3
    assert launch.kept.cache_info().currsize == 1


def test_grids_and_streams_of_a_kernel_that_waits_are_kept_apart(driver):
    launch = DirectLaunch(1234, WAITING, 200_000)
    maps = [Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64).encoded()]
    calls = [((5, 2), 99), ((6, 2), 99), ((5, 3), 98), ((5, 2), 99)]
    for grid, stream in calls:
        launch(grid, stream, maps, [1, 2])
    assert [(grid[:2], stream) for _, grid, _, _, stream, _, _ in driver.seen] == calls


def test_a_refused_launch_of_a_kernel_that_waits_is_an_error(driver):
    launch = DirectLaunch(1234, WAITING, 0)
    encoded = map_of(torch.zeros(1, 8, dtype=torch.float16))
    driver.code = 1
    with pytest.raises(DriverError, match=r"invalid argument \(1\)"):
        launch((1, 1), 0, [encoded], [0, 0])


def test_grids_and_streams_of_one_kernel_are_kept_apart(driver):
    launch = DirectLaunch(1234, PTX, 200_000)
    maps = [Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64).encoded()]
    for grid, stream in (((5, 2), 99), ((6, 2), 99), ((5, 2), 98), ((5, 2), 99)):
        launch(grid, stream, maps, [1, 2])
    assert [(grid[0], stream) for _, grid, _, _, stream, _, _ in driver.seen] == [(5, 99), (6, 99), (5, 98), (5, 99)]


def test_the_calls_kept_do_not_grow_without_bound(driver):
    launch = DirectLaunch(1234, PTX, 200_000)
    maps = [Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64).encoded()]
    for stream in range(1, 2 * hopper_launch._MOST_CALLS):
        launch((1, 1), stream, maps, [1, 2])
    assert launch.kept.cache_info().currsize <= hopper_launch._MOST_CALLS


def map_of(values: torch.Tensor) -> hopper_launch.TensorMap:
    return Boxes(values, 32, 64).encoded()


def test_memory_is_described_once_and_again_when_its_shape_changes(driver):
    values = torch.zeros(9, 128, dtype=torch.bfloat16)
    assert map_of(values) is map_of(values)
    assert map_of(values[:, :96]) is not map_of(values)
    at = values.data_ptr()
    assert driver.encoded == [
        (9, 2, at, [128, 9], [256], [64, 32], 3),
        (9, 2, at, [96, 9], [256], [64, 32], 3),
    ]


def test_a_refused_launch_is_an_error_in_the_drivers_words(driver):
    launch = DirectLaunch(1234, PTX, 0)
    encoded = map_of(torch.zeros(1, 8, dtype=torch.float16))
    driver.code = 1
    with pytest.raises(DriverError, match=r"cuLaunchKernelEx: invalid argument \(1\)"):
        launch((1, 1), 0, [encoded], [0, 0])


def test_a_repeated_launch_packs_addresses_alone(driver):
    """Two of one kernel have a buffer each, and its own launch has a third; each call brings its maps and addresses."""
    launch = DirectLaunch(1234, POINTERS, 200_000)
    one, two = (Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64).encoded() for _ in range(2))
    near = RepeatedLaunch(launch, (5, 2), [one], 2, (17, 18))
    far = RepeatedLaunch(launch, (6, 1), [two], 2, (27, 28))
    near(99, [one], (2**40 + 1, 2**41))
    far(98, [one], (1, 2))
    launch((1, 1), 97, [two], [3, 4, 37, 38])
    near(96, [two], (0, 2**42))
    extents, scratch = [7, 96, 96, 1], [0, 0]
    assert [(grid[:2], stream) for _, grid, _, _, stream, _, _ in driver.seen] == [
        ((5, 2), 99), ((6, 1), 98), ((1, 1), 97), ((5, 2), 96),
    ]  # fmt: skip
    assert [values[1:] for *_, values in driver.seen] == [
        [*extents, 2**40 + 1, 2**41, 17, 18, *scratch],
        [*extents, 1, 2, 27, 28, *scratch],
        [*extents, 3, 4, 37, 38, *scratch],
        [*extents, 0, 2**42, 17, 18, *scratch],
    ]
    assert driver.maps == [one.address, one.address, two.address, two.address]


def test_a_repeated_launch_that_is_refused_is_an_error_and_its_streams_are_bounded(driver):
    maps = [Boxes(torch.zeros(7, 96, dtype=torch.float16), 32, 64).encoded()]
    again = RepeatedLaunch(DirectLaunch(1234, POINTERS, 0), (1, 1), maps, 2, (17, 18))
    for stream in range(1, 2 * hopper_launch._MOST_CALLS):
        again(stream, maps, (1, 2))
    assert again.kept.cache_info().currsize <= hopper_launch._MOST_CALLS
    driver.code = 1
    with pytest.raises(DriverError, match=r"cuLaunchKernelEx: invalid argument \(1\)"):
        again(5, maps, (1, 2))


@pytest.mark.parametrize("repeated", [False, True], ids=["direct", "repeated"])
def test_threads_that_share_a_launch_do_not_mix_their_arguments(driver, repeated):
    """The interpreter may change threads between the address of a tensor map and a launch: four calls a thread."""
    direct = DirectLaunch(1234, POINTERS, 0)
    maps = [Boxes(torch.zeros(n, 96, dtype=torch.float16), 32, 64).encoded() for n in range(1, 5)]
    shared = RepeatedLaunch(direct, (1, 1), [maps[0]], 2, (17, 18)) if repeated else direct
    inside = []
    taken, give = shared.launch, threading.Barrier(4)

    def watched(*call):
        inside.append(1)
        time.sleep(0.002)  # another thread runs now, and waits for the lock
        assert inside.pop() == 1
        assert not inside, "two threads fill one buffer"
        return taken(*call)

    shared.launch = watched

    def calls(n):
        give.wait()
        for _ in range(4):
            if repeated:
                shared(n, [maps[n]], (n, n))
            else:
                shared((1, 1), n, [maps[n]], [n, n, 17, 18])

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    seen = [(stream, at, values[5:7]) for (*_, stream, _, values), at in zip(driver.seen, driver.maps, strict=True)]
    assert len(seen) == 16
    assert all(at == maps[n].address and values == [n, n] for n, at, values in seen)


def test_one_row_has_the_stride_of_a_packed_row():
    assert Boxes(torch.zeros(1, 64, dtype=torch.float16).as_strided((1, 64), (3, 1)), 32, 64).stride == 64


def test_a_kernel_of_another_device_or_type_is_another_kernel(monkeypatch):
    monkeypatch.setattr(hopper_launch, "_KERNELS", {})
    one = hopper_launch.kernel("add_sums", 0, (True, 4))
    assert hopper_launch.kernel("add_sums", 0, (True, 4)) is one
    assert hopper_launch.kernel("add_sums", 1, (True, 4)) is not one
    assert hopper_launch.kernel("add_sums", 0, (True, 4), (torch.float16,)) is not one


def test_a_triton_that_passes_other_arguments_is_named(monkeypatch, driver):
    pytest.importorskip("triton")
    from maxsim.fused import hopper_kernels

    compiled = SimpleNamespace(function=1, asm={"ptx": PTX}, metadata=SimpleNamespace(shared=0))
    monkeypatch.setattr(hopper_kernels, "add_sums", {(1, 1): lambda *args, **options: compiled})
    kernel = hopper_launch.Kernel("add_sums", 0, (True, 4), None)
    with pytest.raises(DriverError, match="passes 8 arguments and 1 tensor maps, expected 7 and 0"):
        kernel._first((1, 1), (), (torch.zeros(1), torch.zeros(1)), (1, 2, 3))
