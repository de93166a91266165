"""What each policy leaves in the L2 before a timed call, and what a call is charged with, on a device made up.

It has a write-back cache, and one stream whose clock stands beside the host's: work begins when the stream is through
with what came before and the host has enqueued it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsim_bench.declare.cell import TimingPolicy
from maxsim_bench.measure import clock
from maxsim_bench.measure.clock import EventMeter, HostMeter, Pace, Policy, Sample, meter_for
from maxsim_bench.report.axes import PREFERRED
from maxsim_bench.report.names import POLICIES

LINE = 128  # bytes
L2_LINES = 64
CALL_LINES = 16  # that the timed call reads
CYCLES_PER_MS = 1e6


@dataclass
class Device:
    """A least-recently-used cache that writes a line back when it drops it; a line moved to or from memory is 1 ms.

    Attributes:
        host, now: milliseconds of the host, and of the stream when it is through with what was enqueued.
    """

    host: float = 0.0
    now: float = 0.0
    lines: OrderedDict[int, bool] = field(default_factory=OrderedDict)  # address → written, and not in memory yet
    allocated: int = 0
    log: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)  # milliseconds of every kernel that keeps the stream busy

    def work(self, ms: float) -> None:
        """Enqueue a kernel."""
        self.now = max(self.now, self.host) + ms

    def sleep(self, cycles: float) -> None:
        self.slept.append(cycles / CYCLES_PER_MS)
        self.work(cycles / CYCLES_PER_MS)

    def synchronize(self) -> None:
        self.host = max(self.host, self.now)

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
                _sleep=self.sleep,
                synchronize=self.synchronize,
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
        self.device.work(0)
        self.at = self.device.now

    def query(self) -> bool:
        return self.device.host >= self.at

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setitem(sys.modules, "torch", made.torch())
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: int(made.host * 1e6)))
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
    return [sample.ms for sample in samples], device.log, waiting[-1]


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


@dataclass(eq=False)
class Call:
    """A call in parts: the host enqueues each in so many ms, the device takes so many, and the host may wait for it."""

    device: Device
    parts: Sequence[tuple[float, float, bool]]

    def __call__(self) -> None:
        for host_ms, device_ms, waits in self.parts:
            self.device.host += host_ms
            self.device.work(device_ms)
            if waits:
                self.device.synchronize()

    @property
    def device_ms(self) -> float:
        return sum(part[1] for part in self.parts)

    @property
    def waits(self) -> bool:
        return any(part[2] for part in self.parts)


def plain(device: Device, host_ms: float, device_ms: float) -> Call:
    return Call(device, [(host_ms, device_ms, False)])


@pytest.mark.parametrize(
    ("paces", "lead"),
    [
        ([(0.1, 0.02)] * 10, 1.5 - 9 * 0.02),  # short calls: the host's time for all of them, and half as much again
        ([(0.4, 5.0)] * 10, 0.6),  # long calls: a lead for the first
        ([(0.1, 5.0)] * 10, 0.5),  # and one that a host may stumble in
        ([(0.5, 0.02)] * 500, 60.0),  # no more than the device may be kept spinning
        ([(0.4, 0.1), (4.0, 0.1)], 1.5 * 4.4 - 0.1),  # the second takes the host longer than the first the device
        ([(0.4, 6.0), (4.0, 0.1), (2.0, 0.1)], 1.5 * 6.4 - 6.1),  # the third is begun after both
        ([], 0.5),
    ],
)
def test_a_lead_is_as_long_as_the_host_would_keep_the_device_waiting(paces, lead) -> None:
    pace, calls = Pace(), [object() for _ in paces]
    for call, (host_ms, device_ms) in zip(calls, paces, strict=True):
        pace.learn(call, host_ms, Sample(device_ms))  # type: ignore[arg-type]
    assert pace.lead(calls) == (pytest.approx(lead), len(calls))  # type: ignore[arg-type]


def test_what_a_call_takes_the_host_is_learned_from_samples_that_were_enqueued_in_time() -> None:
    pace, one, other = Pace(), object(), object()

    def lead(*calls: object) -> float:
        return pace.lead(calls)[0]  # type: ignore[arg-type]

    assert lead(*[other] * 10) == pytest.approx(1.5), "a tenth of a millisecond for a call while none was seen"
    for host_ms, starved, expected in (
        (1.0, True, 1.0), (1.6, True, 1.6),  # a longer lead is tried
        (1.4, False, 1.4), (1.0, False, 1.0), (2.0, False, 1.1),  # less counts for more: a queue may have been full
        (9.0, True, 2.2), (2.0, True, 2.2), (1.0, False, 1.0),  # a slower host for a while
    ):  # fmt: skip
        pace.learn(one, host_ms, Sample(0.1, starved=starved))  # type: ignore[arg-type]
        assert lead(one) == pytest.approx(1.5 * expected)
    pace.learn(one, 100.0, Sample(float("nan"), RuntimeError()))  # type: ignore[arg-type]
    assert lead(other) == pytest.approx(1.5), "like those that are known"


def test_longer_leads_for_a_call_that_waits_are_given_up() -> None:
    """What follows it finds the stream empty: the lead is for the calls up to it."""
    pace, one, waits = Pace(), object(), object()
    pace.learn(one, 1.0, Sample(0.1))  # type: ignore[arg-type]
    seen = []
    for _ in range(8):
        lead, covered = pace.lead([one, waits, one])  # type: ignore[list-item]
        seen.append(lead)
        pace.learn(waits, lead + 5.0, Sample(5.0, starved=True))  # type: ignore[arg-type]
    assert covered == 2
    assert seen[4] > 2 * seen[1]
    assert seen[6] == seen[7] < 2 * seen[1]


@pytest.mark.parametrize("policy", ["warm_l2", "cold_l2", "clean_l2"])
@pytest.mark.parametrize("tail", [0.0, 0.05, 0.5])
def test_a_call_that_waits_for_the_device_does_not_charge_the_calls_after_it(
    device: Device, policy: Policy, tail: float
) -> None:
    """It leaves the stream empty, or nearly so; another backend's next call would be charged with its own dispatch."""
    meter = EventMeter(policy)
    short = plain(device, 1.2, 0.09)
    waiting = Call(device, [(0.5, 1.0, True), *([(0.3, tail, False)] if tail else [])])
    for _ in range(8):  # nothing is known of the host's time in the first
        samples = meter.block([short, waiting, short, short, waiting, waiting, short])
    gap = 0.3 + tail if tail else 0.0  # what the host does in between stays in the time of the call that waits
    for sample, is_short in zip(samples, (True, False, True, True, False, False, True), strict=True):
        assert sample.starved != is_short
        assert sample.ms == pytest.approx(0.09 if is_short else 1.0 + gap)


def test_a_host_that_stumbles_once_spoils_one_sample(device: Device) -> None:
    meter = EventMeter("warm_l2")
    calls = [plain(device, 1.2, 0.09) for _ in range(8)]
    for _ in range(3):
        meter.block(calls)
    calls[2].parts = [(40.0, 0.09, False)]
    samples = meter.block(calls)
    assert [i for i, sample in enumerate(samples) if sample.starved or sample.ms > 0.0901] == [2]


def test_the_host_time_inside_of_a_call_that_waits_stays_in_its_time(device: Device) -> None:
    """Its second half is enqueued by the host when the first is through: that is what it costs."""
    meter = EventMeter("warm_l2")
    for _ in range(8):
        (sample,) = meter.block([Call(device, [(1.0, 5.0, True), (1.0, 5.0, True)])])
    assert sample.ms == pytest.approx(11.0, abs=1.0)
    assert sample.starved


def test_leads_for_calls_that_wait_take_no_more_than_a_few_times_as_long_as_they(device: Device) -> None:
    meter = EventMeter("warm_l2")
    calls = [Call(device, [(1.0, 5.0, True)])] * 10
    for _ in range(8):
        before = device.host
        meter.block(calls)
    assert device.host - before < 4 * 10 * 6.0


def test_a_short_call_beside_long_ones_is_not_charged_with_the_next_dispatch(device: Device) -> None:
    """On average they outlast their dispatch, and the short ones do not."""
    meter = EventMeter("warm_l2")
    calls = [plain(device, 1.0, ms) for ms in (0.1, 0.1, 0.1, 40.0, 0.1, 0.1)]
    for _ in range(3):
        samples = meter.block(calls)
    assert [round(sample.ms, 6) for sample in samples] == [0.1, 0.1, 0.1, 40.0, 0.1, 0.1]
    assert not any(sample.starved for sample in samples)


PART = st.tuples(st.floats(0.01, 1.2), st.floats(0.01, 20), st.booleans())


@settings(max_examples=300, deadline=None)
@given(
    # the host takes at most 2.4 ms for a call that does not wait: of more, fifteen ask for a lead beyond the limit
    st.lists(st.lists(PART, min_size=1, max_size=2), min_size=1, max_size=15),
    st.randoms(use_true_random=False),
)
def test_every_call_that_does_not_wait_takes_what_it_takes_on_the_device(plan, order) -> None:
    """In any order, after some blocks of every call by itself, as a warm-up has them."""
    made = Device()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", made.torch())
        patch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: int(made.host * 1e6)))
        meter = EventMeter("warm_l2")
        calls = [Call(made, parts) for parts in plan]
        for call in calls:
            for _ in range(3):
                meter.block([call])
        for _ in range(3):
            order.shuffle(calls)
            for call, sample in zip(calls, meter.block(calls), strict=True):
                assert call.waits or sample.ms == pytest.approx(call.device_ms, abs=1e-5)
                assert sample.starved == call.waits


def test_a_call_is_starved_where_the_device_began_it_before_the_host_was_through(device: Device) -> None:
    """In the first block nothing is known of the host yet: the least lead for calls of 5 ms."""
    meter = EventMeter("warm_l2")
    first, second = meter.block([plain(device, 5.0, 0.1), plain(device, 5.0, 0.1)])
    assert first.starved
    assert first.ms > 4
    assert second.starved
