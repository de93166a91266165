"""The only clocks of the project: host time, CUDA event pairs, and the buffer that empties the L2.

Room: `measure`. Imports nothing else of ours. Whoever needs a time asks this room; a test looks for clocks elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

Policy = Literal["cold_l2", "clean_l2", "warm_l2", "graph", "host"]

_DEFAULT_L2 = 64 << 20  # bytes, where the driver does not say; larger than the L2 of any card before Hopper
# Choices, not measurements: too short a lead is told by `Sample.starved`, too long a one takes time and nothing else.
_SPIN_LIMIT_MS = 60.0
_LEAST_LEAD_MS = 0.5
_FIRST_DISPATCH_MS = 0.1  # of a call while none was seen
_TRIES = 4  # longer leads for a call that was never enqueued in time


def seconds() -> float:
    """Monotonic host time in seconds, for deadlines and progress."""
    return time.monotonic()


def utc_now() -> str:
    """Date and time in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Sample:
    """One timed call.

    Attributes:
        ms: milliseconds it took.
        error: what it raised instead; `ms` is then NaN.
        starved: the device began it before the host was through with it, so that `ms` may hold waits for the host.
    """

    ms: float
    error: Exception | None = None
    starved: bool = False


class Meter(Protocol):
    """Times a sequence of calls in the order given."""

    def block(self, calls: Sequence[Callable[[], object]]) -> list[Sample]:
        """Times each call once. A call that raises gives a sample with the exception, and the rest goes on."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has nothing left to do."""
        ...


class HostMeter:
    """Wall clock of one call from Python, dispatch and (on a GPU) the wait for its result included."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def synchronize(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def block(self, calls: Sequence[Callable[[], object]]) -> list[Sample]:
        samples = []
        for call in calls:
            self.synchronize()
            start = time.perf_counter_ns()
            try:
                call()
                self.synchronize()
            except Exception as error:
                samples.append(Sample(float("nan"), error))
                continue
            samples.append(Sample((time.perf_counter_ns() - start) / 1e6))
        return samples


class EventMeter:
    """CUDA events around each call, recorded back to back on the current stream, one synchronisation at the end.

    Before a block the stream is kept busy for about as long as the host needs to enqueue it: without that lead an event
    pair around a kernel shorter than its dispatch measures the gap that the host leaves. It is given another lead where
    the device caught up with the host: a call that waits for the device itself would otherwise charge the calls after
    it, which may be another backend's, with their dispatch. What the host does inside of a call stays in its time.

    Under `cold_l2` and `clean_l2` a buffer of twice the L2 is overwritten before every call, outside its events, so
    that nothing of the inputs is in the cache. What was written last still is, in lines that memory does not have yet:
    the timed call pays for writing them back. Under `clean_l2` the buffer is then read, which pays for that beforehand.
    """

    def __init__(self, policy: Policy) -> None:
        import torch

        self._torch: Any = torch
        size = l2_bytes() or _DEFAULT_L2
        empties = policy in ("cold_l2", "clean_l2")
        self._flush = torch.empty(2 * size // 8, dtype=torch.int64, device="cuda") if empties else None
        self._reads_back = policy == "clean_l2"
        self._events: list[Any] = []
        self._pace = Pace()
        self._cycles_per_ms = self._calibrate()

    def _calibrate(self) -> float:
        """Cycles of the spinning kernel in one millisecond, at the clock of the moment."""
        start, end = self._event_pairs(1)[0]
        cycles = 1_000_000
        self._torch.cuda._sleep(cycles)
        start.record()
        self._torch.cuda._sleep(cycles)
        end.record()
        self._torch.cuda.synchronize()
        return cycles / max(start.elapsed_time(end), 1e-3)

    def _event_pairs(self, count: int) -> list[tuple[Any, Any]]:
        while len(self._events) < 2 * count:
            self._events.append(self._torch.cuda.Event(enable_timing=True))
        return [(self._events[2 * i], self._events[2 * i + 1]) for i in range(count)]

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def _lead(self, calls: Sequence[Callable[[], object]]) -> int:
        """Keep the stream busy while the host enqueues the first of these calls; how many the lead is for."""
        ms, covered = self._pace.lead(calls)
        self._torch.cuda._sleep(int(ms * self._cycles_per_ms))
        return covered

    def block(self, calls: Sequence[Callable[[], object]]) -> list[Sample]:
        pairs = self._event_pairs(len(calls))
        errors: list[Exception | None] = []
        starved: list[bool] = []
        host_ms: list[float] = []
        covered = 0
        for i, (call, (start, end)) in enumerate(zip(calls, pairs, strict=True)):
            if i >= covered or starved[-1]:  # the device has caught up with the host, or may have
                covered = i + self._lead(calls[i:])
            began = time.perf_counter_ns()
            if self._flush is not None:
                self._flush.zero_()
                if self._reads_back:
                    self._flush.sum()
            start.record()
            try:
                call()
                errors.append(None)
            except Exception as error:
                errors.append(error)
            end.record()
            host_ms.append((time.perf_counter_ns() - began) / 1e6)
            starved.append(bool(start.query()))
        self._torch.cuda.synchronize()
        samples = [
            Sample(start.elapsed_time(end), None, waited) if error is None else Sample(float("nan"), error)
            for (start, end), error, waited in zip(pairs, errors, starved, strict=True)
        ]
        for call, ms, sample in zip(calls, host_ms, samples, strict=True):
            self._pace.learn(call, ms, sample)
        return samples


@dataclass
class _Known:
    """Of one call that was seen.

    Attributes:
        call: itself, so that its id is nobody else's.
        host_ms: to enqueue it.
        device_ms: the least on the device of a sample that was not starved, infinite while there is none.
        least_ms: that the host took while there was none.
        tries: samples since then that were starved for all that.
    """

    call: Callable[[], object]
    host_ms: float = math.inf
    device_ms: float = math.inf
    least_ms: float = math.inf
    tries: int = 0


class Pace:
    """What host and device take for each call, as far as a meter has seen it, and the lead that follows."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the call's id

    def lead(self, calls: Sequence[Callable[[], object]]) -> tuple[float, int]:
        """How long to keep a stream busy before calls are enqueued, in ms, so that the device begins none too early.

        The device begins a call after the lead and the calls before it; by then the host is to be through with it, half
        as much time again allowed. Behind a call that was never enqueued in time the stream may be empty whatever the
        lead is, so it is for the calls up to the first such one, whose number is returned too.
        """
        times = [known.host_ms for known in self._known.values()]
        typical = sum(times) / len(times) if times else _FIRST_DISPATCH_MS
        lead = host = device = 0.0
        covered = 0
        for call in calls:
            known = self._known.get(id(call))
            host += 1.5 * (typical if known is None else known.host_ms)
            lead = max(lead, host - device)
            covered += 1
            if known is not None and known.device_ms == math.inf:
                break
            device += 0.0 if known is None else known.device_ms
        return min(max(lead, _LEAST_LEAD_MS), _SPIN_LIMIT_MS), covered

    def learn(self, call: Callable[[], object], host_ms: float, sample: Sample) -> None:
        """Take in what the host took for a call, and its sample.

        That is the dispatch of one that was not starved; it may have been held up by a full queue, so that less counts
        for more. One that was starved may need a longer lead, or wait for the device itself: a longer one is tried, and
        given up after some tries.
        """
        if sample.error is not None:
            return
        known = self._known.setdefault(id(call), _Known(call))
        ahead = known.device_ms < math.inf
        if not sample.starved:
            rises = ahead and host_ms > known.host_ms
            known.host_ms = 0.9 * known.host_ms + 0.1 * host_ms if rises else host_ms
            known.device_ms = min(known.device_ms, sample.ms)
        elif ahead:  # the host is slower than before
            known.host_ms = max(known.host_ms, min(host_ms, 2 * known.host_ms))
        else:
            known.least_ms = min(known.least_ms, host_ms)
            known.tries += 1
            known.host_ms = min(host_ms, 2 * known.host_ms) if known.tries <= _TRIES else known.least_ms


def l2_bytes() -> int | None:
    """Bytes of L2 of the current GPU, None without a GPU or where the driver does not say."""
    import torch

    if not torch.cuda.is_available():
        return None
    return getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", None) or None


def meter_for(policy: Policy, device: str) -> Meter:
    """The meter of a timing policy. On a processor every policy is `host`."""
    if device != "cuda" or policy == "host":
        return HostMeter(device)
    return EventMeter(policy)
