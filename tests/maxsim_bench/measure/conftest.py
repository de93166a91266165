"""What the tests of `measure` share: work of a known duration, on the real clock and on one that is made up."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle

import pytest

from maxsim_bench.measure import clock


def busy(ms: float) -> Callable[[], float]:
    """A callable that keeps the processor busy for `ms` milliseconds of wall clock and returns `ms`."""

    def call() -> float:
        end = time.perf_counter_ns() + ms * 1e6
        while time.perf_counter_ns() < end:
            pass
        return ms

    return call


class MadeUpTime:
    """The clocks that `measure.clock` reads, moved by nothing but work and by being read (a microsecond each time).

    What a test expects of it holds on a machine however slow or shared.
    """

    def __init__(self) -> None:
        self._ns = 0

    def perf_counter_ns(self) -> int:
        self._ns += 1_000
        return self._ns

    def monotonic(self) -> float:
        return self.perf_counter_ns() / 1e9

    def busy(self, *ms: float) -> Callable[[], None]:
        """A callable that takes these milliseconds, each in turn."""
        turns = cycle(ms)

        def call() -> None:
            self._ns += round(next(turns) * 1e6)

        return call


@pytest.fixture
def made_up_time(monkeypatch: pytest.MonkeyPatch) -> MadeUpTime:
    made_up = MadeUpTime()
    monkeypatch.setattr(clock, "time", made_up)
    return made_up


@pytest.fixture
def busy_for() -> Callable[[float], Callable[[], float]]:
    return busy
