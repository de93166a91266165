"""A second opinion on event times: many calls between two device-wide synchronisations, on the host's clock.

Room: `measure`. Imports nothing else of ours. The same run reads the card's energy counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maxsim_bench.measure.nvml import energy_mj

_SLACK_MS = 0.1  # two synchronisations and the first launch
_MOST_CALLS = 5000
_LONG_MS = 50.0


@dataclass(frozen=True)
class Sustained:
    """Calls back to back until the device was idle.

    Attributes:
        calls: how many.
        wall_ms: host milliseconds a call, until everything on every stream of the device had ended.
        enqueue_ms: host milliseconds a call for dispatching alone.
        joules: a call, from the card's energy counter between two of its ticks; None where it does not count, or ticked
            less than twice.
    """

    calls: int
    wall_ms: float
    enqueue_ms: float
    joules: float | None = None


def sustained(calls: Sequence[Callable[[], object]], seconds: float, energy_seconds: float = 0.0) -> Sustained:
    """Run `calls` in rotation for about `seconds`, at least three calls (one if it is long), then wait for the device.

    Where the card counts energy, bursts go on for at least `energy_seconds`.
    """
    import torch

    index = 0

    def burst(count: int) -> tuple[float, float]:
        nonlocal index
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(count):
            calls[index % len(calls)]()
            index += 1
        queued = time.perf_counter_ns()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - began) / 1e6, (queued - began) / 1e6

    count = 1
    wall, queued = burst(count)
    if wall < _LONG_MS:  # a longer call needs no company to outlast two synchronisations
        count = max(3, min(_MOST_CALLS, int(seconds * 1e3 / max(wall, 1e-3))))
        wall, queued = burst(count)
    joules = _joules(burst, wall / count, energy_seconds) if energy_seconds > 0 else None
    return Sustained(count, wall / count, queued / count, joules)


def _joules(burst: Callable[[int], tuple[float, float]], call_ms: float, least_seconds: float) -> float | None:
    """Joules a call, between the first and the last tick of the counter seen in `least_seconds` or a little more."""
    previous = energy_mj()
    if previous is None:
        return None
    step = max(1, int(4.0 / max(call_ms, 1e-3)))  # about 4 ms: finer than the counter ticks
    done = 0
    ticks: list[tuple[int, int]] = []  # calls done, millijoules
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < 2 * least_seconds and (elapsed < least_seconds or len(ticks) < 2):
        burst(step)
        done += step
        now = energy_mj()
        if now is None:
            return None
        if now != previous:
            ticks.append((done, now))
            previous = now
    if len(ticks) < 2:
        return None
    (calls_0, energy_0), (calls_1, energy_1) = ticks[0], ticks[-1]
    return (energy_1 - energy_0) / 1e3 / (calls_1 - calls_0)


def other_stream(median_ms: float, check: Sustained) -> str | None:
    """Why the event time cannot be the whole work, or None.

    Calls back to back take as long as the device or the host needs, whichever is slower. Much more than both means that
    the device worked where the events did not look.
    """
    expected = max(median_ms, check.enqueue_ms)
    surplus = check.wall_ms * check.calls - (1.5 * expected * check.calls + _SLACK_MS)
    if surplus <= 0:
        return None
    return (
        f"not synchronised: events say {median_ms:.4g} ms, but the device was busy for {check.wall_ms:.4g} ms a call; "
        "it works on another stream than the current one"
    )
