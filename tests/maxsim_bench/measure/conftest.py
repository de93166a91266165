"""What the tests of `measure` share: work of a known duration."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def busy(ms: float) -> Callable[[], float]:
    """A callable that keeps the processor busy for `ms` milliseconds of wall clock and returns `ms`."""

    def call() -> float:
        end = time.perf_counter_ns() + ms * 1e6
        while time.perf_counter_ns() < end:
            pass
        return ms

    return call


@pytest.fixture
def busy_for() -> Callable[[float], Callable[[], float]]:
    return busy
