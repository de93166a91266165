"""Slow-downs of known size take as long as they say, and refuse what they cannot give."""

from __future__ import annotations

import pytest

from maxsim_bench.measure import delay
from maxsim_bench.measure.clock import HostMeter
from maxsim_bench.measure.delay import DelayError, busy_wait, cycles_between, delay_scale, slowed
from maxsim_bench.measure.timer import Call, Timing, TimingBudget, time_callables

BUDGET = TimingBudget(seconds=0.05, warmup_seconds=0.01)


def test_a_busy_wait_is_never_shorter_than_asked_for() -> None:
    samples = HostMeter("cpu").block([lambda: busy_wait(2.0)] * 5)
    fastest = min(s.ms for s in samples)
    assert 2.0 <= fastest < 3.0


def test_a_slowed_call_returns_what_the_call_returns_and_takes_longer() -> None:
    calls = slowed([lambda: 1, lambda: 2], 2.0, "cpu")
    assert [call() for call in calls] == [1, 2]
    assert min(s.ms for s in HostMeter("cpu").block(calls)) >= 2.0


def test_on_a_processor_a_delay_is_its_own_length() -> None:
    assert delay_scale([lambda: busy_wait(1.0)], "host", "cpu", BUDGET).amount(0.25) == 0.25


def test_a_scale_knows_how_long_the_bare_call_takes() -> None:
    assert 1.0 <= delay_scale([lambda: busy_wait(1.0)], "host", "cpu", BUDGET).bare_ms < 1.5


def test_cycles_lie_on_the_line_through_the_two_calibrated_delays() -> None:
    """A launch of 0.01 ms and a millisecond for every million cycles: 0.11 ms more is the launch and 100,000 cycles."""
    assert cycles_between(1.0, (0.0, 1.01), (1e6, 2.01), 0.11) == pytest.approx(1e5)


def test_a_delay_shorter_than_its_own_launch_is_refused_with_both_sizes() -> None:
    with pytest.raises(DelayError, match=r"costs 10\.00 µs, more than the 5\.00 µs"):
        cycles_between(1.0, (1.0, 1.01), (1e6, 2.01), 0.005)


def test_a_longer_delay_that_takes_no_longer_is_refused() -> None:
    with pytest.raises(DelayError, match="clock of the device"):
        cycles_between(1.0, (1.0, 1.5), (1e6, 1.4), 0.1)


def test_on_a_gpu_cycles_are_found_by_timing_the_call_with_two_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that launches in 2 µs and spins 1.7 million cycles a millisecond: ask for 20 µs, get 18 µs of spinning."""
    spun: list[float] = []

    def timed(calls: dict[str, list[Call]], *_: object) -> dict[str, Timing]:
        found = {}
        for name, group in calls.items():
            spun.clear()
            group[0]()
            found[name] = Timing("cold_l2", [0.4 + sum(0.002 + cycles / 1.7e6 for cycles in spun)])
        return found

    monkeypatch.setattr(delay, "spin", spun.append)
    monkeypatch.setattr(delay, "time_callables", timed)
    scale = delay_scale([lambda: None], "cold_l2", "cuda", BUDGET)
    assert scale.bare_ms == 0.4
    assert scale.amount(0.02) == pytest.approx(0.018 * 1.7e6)


@pytest.mark.gpu
def test_a_calibrated_delay_on_a_gpu_adds_what_was_asked_for() -> None:
    import torch

    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    calls = [lambda: x @ x] * 2
    budget = TimingBudget(seconds=0.2)
    amount = delay_scale(calls, "cold_l2", "cuda", budget).amount(0.05)
    timed = time_callables({"bare": calls, "late": slowed(calls, amount, "cuda")}, "cold_l2", budget, "cuda")
    bare, late = timed["bare"], timed["late"]
    assert isinstance(bare, Timing)
    assert isinstance(late, Timing)
    assert late.median_ms - bare.median_ms == pytest.approx(0.05, rel=0.2)
