"""The only clocks of the project: host time, CUDA event pairs, and the buffer that empties the L2.

Room: `measure`. Imports nothing else of ours. Whoever needs a time asks this room; a test looks for clocks elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

Policy = Literal["cold_l2", "clean_l2", "warm_l2", "graph", "host"]

_DEFAULT_L2 = 64 << 20  # bytes, where the driver does not say; larger than the L2 of any card before Hopper
_SPIN_LIMIT_MS = 60.0
_OUTLASTS_MS = 1.0  # on the device; shorter calls get a lead each, and so do those that the host may have held up


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
    it ran dry in between: a call that waits for the device itself would otherwise charge the calls after it, which may
    be another backend's, with their dispatch. What the host does inside of a call stays in its time.

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
        self._enqueue_ms = 0.1  # host time a call, refined by every block
        self._device_ms = 0.0  # least device time of a call in the last block
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

    def _lead(self, calls: int) -> Any:
        """Keep the stream busy while the host enqueues so many calls; the event at the end of that."""
        lead = self._torch.cuda.Event()
        self._torch.cuda._sleep(int(lead_ms(calls, self._enqueue_ms, self._device_ms) * self._cycles_per_ms))
        lead.record()
        return lead

    def block(self, calls: Sequence[Callable[[], object]]) -> list[Sample]:
        pairs = self._event_pairs(len(calls))
        errors: list[Exception | None] = []
        starved: list[bool] = []
        host_ms: list[float] = []
        before = self._lead(len(calls))
        for call, (start, end) in zip(calls, pairs, strict=True):
            if before.query():  # the device has nothing left to do
                self._lead(len(calls) - len(errors))
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
            before = end
        # a call that waited for the device took the host longer than its dispatch
        ahead = [ms for ms, waited in zip(host_ms, starved, strict=True) if not waited] or host_ms
        if ahead:
            self._enqueue_ms = 0.5 * self._enqueue_ms + 0.5 * sum(ahead) / len(ahead)
        self._torch.cuda.synchronize()
        samples = [
            Sample(start.elapsed_time(end), None, waited) if error is None else Sample(float("nan"), error)
            for (start, end), error, waited in zip(pairs, errors, starved, strict=True)
        ]
        self._device_ms = min((sample.ms for sample in samples if sample.error is None), default=0.0)
        return samples


def lead_ms(calls: int, enqueue_ms: float, device_ms: float) -> float:
    """How long to keep a stream busy before so many calls are enqueued, in milliseconds.

    A call on the device for twice as long as on the host outlasts the dispatch of the next one, and only the first
    needs a lead. A call that appears to take as long on the device as on the host may be one that waited for the host:
    it is given the whole lead.

    Args:
        calls: of the block.
        enqueue_ms: host time of a call, as the last blocks had it.
        device_ms: least device time of a call in the last block: under the shortest, too, the next is to be enqueued.
    """
    if device_ms > max(_OUTLASTS_MS, 2 * enqueue_ms):
        return 1.5 * max(_OUTLASTS_MS, enqueue_ms)
    return min(1.5 * enqueue_ms * calls, _SPIN_LIMIT_MS)


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
