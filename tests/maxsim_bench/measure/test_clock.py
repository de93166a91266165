"""What each policy leaves in the L2 before a timed call, on a device made up of a write-back cache and a clock."""

from __future__ import annotations

import itertools
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from maxsim_bench.declare.cell import TimingPolicy
from maxsim_bench.measure import clock
from maxsim_bench.measure.clock import EventMeter, HostMeter, Policy, lead_ms, meter_for
from maxsim_bench.report.axes import PREFERRED
from maxsim_bench.report.names import POLICIES

LINE = 128  # bytes
L2_LINES = 64
CALL_LINES = 16  # that the timed call reads


@dataclass
class Device:
    """A least-recently-used cache that writes a line back when it drops it; a line moved to or from memory is 1 ms."""

    now: float = 0.0
    lines: OrderedDict[int, bool] = field(default_factory=OrderedDict)  # address → written, and not in memory yet
    allocated: int = 0
    log: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)  # cycles of every kernel that keeps the stream busy
    still_busy: list[bool] = field(default_factory=list)  # when asked for the first time, the second, ...; then no more

    def touch(self, address: int, *, write: bool) -> None:
        if address in self.lines:
            self.lines.move_to_end(address)
        else:
            self.now += 0 if write else 1
            if len(self.lines) == L2_LINES:
                self.now += self.lines.popitem(last=False)[1]
        self.lines[address] = self.lines.get(address, False) or write

    def empty(self, count: int, *, dtype: int, device: str) -> Tensor:
        assert device == "cuda"
        first, lines = self.allocated, count * dtype // LINE
        self.allocated += lines
        return Tensor(self, range(first, first + lines))

    def torch(self) -> Any:
        """As much of torch as the meter asks for."""
        return SimpleNamespace(
            empty=self.empty,
            int64=8,
            cuda=SimpleNamespace(
                is_available=lambda: True,
                current_device=lambda: 0,
                get_device_properties=lambda index: SimpleNamespace(L2_cache_size=L2_LINES * LINE),
                Event=lambda enable_timing=False: Event(self),
                _sleep=self.slept.append,
                synchronize=lambda: None,
            ),
        )


@dataclass
class Tensor:
    device: Device
    addresses: range

    def zero_(self) -> None:
        self.device.log.append("overwrite")
        for address in self.addresses:
            self.device.touch(address, write=True)

    def sum(self) -> None:
        self.device.log.append("read")
        for address in self.addresses:
            self.device.touch(address, write=False)


@dataclass
class Event:
    device: Device
    at: float = 0.0

    def record(self) -> None:
        self.device.log.append("event")
        self.at = self.device.now

    def query(self) -> bool:
        return not (self.device.still_busy and self.device.still_busy.pop(0))

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setitem(sys.modules, "torch", made.torch())
    return made


def timed(device: Device, policy: Policy) -> tuple[list[float], list[str], int]:
    """Milliseconds of three reads of the same inputs, what happened, and lines to be written back at the last start."""
    meter = meter_for(policy, "cuda")
    assert isinstance(meter, EventMeter)
    inputs = device.empty(CALL_LINES * LINE // 8, dtype=8, device="cuda")
    waiting: list[int] = []

    def call() -> None:
        waiting.append(sum(device.lines.values()))
        inputs.sum()

    inputs.sum()  # a warm-up: where nothing empties the cache, every timed call finds its inputs there
    device.log.clear()
    samples = meter.block([call] * 3)
    return [sample.ms for sample in samples], device.log[1:], waiting[-1]


def test_an_overwritten_cache_is_full_of_lines_that_the_timed_call_writes_back(device: Device) -> None:
    ms, log, waiting = timed(device, "cold_l2")
    assert ms == [2 * CALL_LINES] * 3, "every line read, and one written back for it"
    assert log == ["overwrite", "event", "read", "event"] * 3
    assert waiting == L2_LINES


def test_a_clean_cache_holds_neither_the_inputs_nor_anything_to_write_back(device: Device) -> None:
    ms, log, waiting = timed(device, "clean_l2")
    assert ms == [CALL_LINES] * 3, "every line read, and nothing else"
    assert log == ["overwrite", "read", "event", "read", "event"] * 3, "overwriting and reading back are outside"
    assert waiting == 0


def test_a_warm_cache_is_left_as_the_call_before_left_it(device: Device) -> None:
    ms, log, _ = timed(device, "warm_l2")
    assert ms == [0.0] * 3
    assert log == ["event", "read", "event"] * 3
    assert device.allocated == CALL_LINES, "no buffer"


@pytest.mark.parametrize("policy", get_args(Policy))
def test_on_a_processor_every_policy_is_the_host_clock(policy: Policy) -> None:
    assert isinstance(meter_for(policy, "cpu"), HostMeter)


def test_what_is_timed_what_is_declared_and_what_is_shown_know_the_same_policies() -> None:
    assert get_args(Policy) == get_args(TimingPolicy)
    assert set(POLICIES) == set(PREFERRED["timing_policy"]) == set(get_args(Policy))


@pytest.mark.parametrize(
    ("calls", "enqueue_ms", "device_ms", "lead"),
    [
        (10, 0.1, 0.02, 1.5),  # short calls: the host's time for all of them, and half as much again
        (10, 0.1, 5.0, 1.5),  # long calls: a lead for the first
        (500, 0.5, 0.02, 60.0),  # no more than the device may be kept spinning
        (10, 1.1, 1.2, 16.5),  # as long as the host's: the last block may have been waiting for it
        (10, 1.1, 2.3, 1.65),  # the first call waits for its own dispatch
    ],
)
def test_a_call_that_may_have_waited_for_the_host_gets_the_whole_lead(calls, enqueue_ms, device_ms, lead) -> None:
    assert lead_ms(calls, enqueue_ms, device_ms) == pytest.approx(lead)


def test_a_block_gets_the_lead_that_the_blocks_before_it_call_for(device: Device, monkeypatch) -> None:
    """Four calls that the host enqueues in 8 ms: of 10 ms on the device in the first block, of 1 ms from then on."""
    host = itertools.count(step=8_000_000)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: next(host)))
    meter = EventMeter("warm_l2")
    cycles_per_ms = device.slept[0] / 1e-3  # of a device that calibrates in no time, taken for a microsecond
    device.slept.clear()

    def call(ms: float) -> None:
        device.now += ms

    for ms in (10.0, 1.0, 1.0):
        meter.block([lambda ms=ms: call(ms)] * 4)  # type: ignore[misc]
    leads = [cycles / cycles_per_ms for cycles in device.slept]
    assert leads == pytest.approx([lead_ms(4, 0.1, 0.0), lead_ms(4, 1.05, 10.0), lead_ms(4, 1.525, 1.0)])
    assert leads == pytest.approx([0.6, 1.575, 9.15])


@pytest.mark.parametrize(("still_busy", "starved"), [([False, True], 0), ([True, False], 1), ([True, True], 0)])
def test_a_block_is_starved_where_the_device_had_nothing_to_do_before_its_last_call(
    device: Device, still_busy: list[bool], starved: int
) -> None:
    meter = EventMeter("warm_l2")
    device.still_busy = still_busy
    meter.block([lambda: None] * 2)
    assert (meter.blocks, meter.starved) == (1, starved)
