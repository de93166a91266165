"""Slow-downs of known size, put behind a call to see whether a comparison finds them.

Room: `measure`. Imports nothing else of ours. A processor is made to wait by its own clock; a GPU runs a kernel that
spins for so many cycles, and how many make a millisecond is found by the timer that later judges.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from maxsim_bench.measure.clock import Policy
from maxsim_bench.measure.statistics import median
from maxsim_bench.measure.timer import Call, Timing, TimingBudget, time_callables

_SHORT_CYCLES = 1.0
_LONG_CYCLES_PER_MS = 1.5e5  # about a tenth of a call's own time, at clocks near 1.5 GHz
_LEAST_LONG_CYCLES = 1e5  # tens of microseconds, so that a line through it does not hang on the jitter of events


class DelayError(RuntimeError):
    """A call that cannot be slowed down by so little, or that failed while that was tried."""


@dataclass(frozen=True)
class DelayScale:
    """How long a call takes, and what to give `slowed` so that it takes longer.

    Attributes:
        bare_ms: the call takes.
        short, long: amount and the milliseconds of the call with it; time is a straight line of the amount between
            them, whose offset is what putting a delay there costs. None where an amount is milliseconds (a processor).
    """

    bare_ms: float
    short: tuple[float, float] | None = None
    long: tuple[float, float] | None = None

    def amount(self, ms: float) -> float:
        """What adds `ms` milliseconds: milliseconds on a processor, cycles on a GPU.

        Raises:
            DelayError: where the offset alone is more than `ms`, or the line does not rise.
        """
        if self.short is None or self.long is None:
            return ms
        return cycles_between(self.bare_ms, self.short, self.long, ms)


def busy_wait(ms: float) -> None:
    """Keep the calling thread busy for `ms` milliseconds (≥ 0) of wall time, without sleeping."""
    until = time.perf_counter_ns() + int(ms * 1e6)
    while time.perf_counter_ns() < until:
        pass


def spin(cycles: float) -> None:
    """Enqueue a kernel on the current stream that spins for `cycles` cycles (≥ 1) of the GPU's clock."""
    import torch

    torch.cuda._sleep(max(int(cycles), 1))


def delay_scale(calls: Sequence[Call], policy: Policy, device: str, budget: TimingBudget) -> DelayScale:
    """Time a call bare and, on a GPU, with the shortest delay and with a long one behind it.

    Raises:
        DelayError: where the call failed.
    """
    bare = _medians({"bare": list(calls)}, policy, device, budget)["bare"]
    if device != "cuda":
        return DelayScale(bare)
    long = max(_LONG_CYCLES_PER_MS * bare, _LEAST_LONG_CYCLES)
    timed = {"bare": list(calls), "short": slowed(calls, _SHORT_CYCLES, device), "long": slowed(calls, long, device)}
    found = _medians(timed, policy, device, budget)
    return DelayScale(found["bare"], (_SHORT_CYCLES, found["short"]), (long, found["long"]))


def cycles_between(bare_ms: float, short: tuple[float, float], long: tuple[float, float], ms: float) -> float:
    """Cycles that add `ms` to a call of `bare_ms`, on the line through two points (cycles, ms of the call with them).

    Raises:
        DelayError: where it takes fewer cycles than those of the short one, or the line does not rise.
    """
    slope = (long[1] - short[1]) / (long[0] - short[0])
    if slope <= 0:
        raise DelayError("a longer delay did not take longer: the clock of the device moves too much to calibrate")
    cycles = short[0] + (bare_ms + ms - short[1]) / slope
    if cycles < short[0]:
        raise DelayError(
            f"the launch of a delay alone costs {1e3 * (short[1] - bare_ms):.2f} µs, more than the {1e3 * ms:.2f} µs "
            "that were to be added"
        )
    return cycles


def slowed(calls: Sequence[Call], amount: float, device: str) -> list[Call]:
    """The same calls, each followed by a delay of `amount`: milliseconds on a CPU, cycles on a GPU."""
    wait = spin if device == "cuda" else busy_wait

    def behind(call: Call) -> Call:
        def both() -> object:
            result = call()
            wait(amount)
            return result

        return both

    return [behind(call) for call in calls]


def _medians(calls: dict[str, list[Call]], policy: Policy, device: str, budget: TimingBudget) -> dict[str, float]:
    found = {}
    for name, timing in time_callables(calls, policy, budget, device).items():
        if not isinstance(timing, Timing):
            raise DelayError(f"{name} failed while its delay was calibrated: {timing.error}") from timing.error
        found[name] = median(timing.samples_ms)
    return found
