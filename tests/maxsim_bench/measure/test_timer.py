"""The timer against work of known duration: on a clock that is made up, on the processor's own, on a GPU."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from maxsim_bench.measure import timer
from maxsim_bench.measure.clock import HostMeter, Policy, Sample
from maxsim_bench.measure.timer import Timing, TimingBudget, TimingFailure, time_callables

Busy = Callable[[float], Callable[[], float]]
POLICIES: tuple[Policy, ...] = ("cold_l2", "clean_l2", "warm_l2")
SHORT = TimingBudget(seconds=0.05, warmup_seconds=0.02, max_samples=200)


def timing(result: Timing | TimingFailure) -> Timing:
    assert isinstance(result, Timing), result
    return result


def test_known_durations_come_out(made_up_time: Any) -> None:
    calls = {"even": [made_up_time.busy(1.0)], "uneven": [made_up_time.busy(3.0, 4.0, 5.0)]}
    budget = TimingBudget(min_samples=30, max_samples=30)
    found = time_callables(calls, "host", budget, "cpu")
    even, uneven = timing(found["even"]), timing(found["uneven"])
    assert (even.p20_ms, even.median_ms, even.p80_ms) == pytest.approx((1.0, 1.0, 1.0), abs=0.01)
    assert (uneven.p20_ms, uneven.median_ms, uneven.p80_ms) == pytest.approx((3.0, 4.0, 5.0), abs=0.01)


def test_known_durations_come_out_of_the_clock_of_the_machine(busy_for: Busy) -> None:
    """A shared processor may add to a duration, never take from it; the sample that went best is near it."""
    found = time_callables({"one": [busy_for(1.0)], "three": [busy_for(3.0)]}, "host", SHORT, "cpu")
    for name, ms in (("one", 1.0), ("three", 3.0)):
        assert ms <= min(timing(found[name]).samples_ms) < 1.3 * ms


def test_backends_are_interleaved_in_a_random_order_that_is_kept(made_up_time: Any) -> None:
    budget = TimingBudget(seconds=0.05, width_percent=0.0, max_samples=30, min_samples=30, warmup_seconds=0.01)
    found = time_callables({name: [made_up_time.busy(0.1)] for name in "abc"}, "host", budget, "cpu")
    order = sorted((p, name) for name in "abc" for p in timing(found[name]).positions)
    assert [p for p, _ in order] == list(range(90))
    rounds = ["".join(name for _, name in order[i : i + 3]) for i in range(0, 90, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 3
    assert timing(found["a"]).rounds == list(range(30))


def test_calls_rotate_over_the_input_sets_and_a_round_shares_one() -> None:
    seen: dict[str, list[int]] = {"a": [], "b": []}

    def on(name: str, index: int) -> Callable[[], None]:
        return lambda: seen[name].append(index)

    calls = {name: [on(name, i) for i in range(3)] for name in seen}
    budget = TimingBudget(seconds=0.01, min_samples=9, max_samples=9, width_percent=0.0, warmup_seconds=0.001)
    found = time_callables(calls, "host", budget, "cpu")
    for name, indices in seen.items():
        assert indices[-12:-3] == [0, 1, 2] * 3
        assert indices[-3:] == [0, 1, 2]  # the closing call on every set, whose results are looked at
        assert timing(found[name]).rounds == list(range(9))


def test_sampling_ends_when_the_interval_is_narrow_enough(made_up_time: Any) -> None:
    """Which more samples make it, where each says little."""
    scattered = random.Random(7)
    durations = [scattered.uniform(0.4, 0.6) for _ in range(3000)]
    budget = TimingBudget(seconds=5.0, width_percent=2.0, warmup_seconds=0.01)
    found = time_callables(
        {"even": [made_up_time.busy(0.5)], "scattered": [made_up_time.busy(*durations)]}, "host", budget, "cpu"
    )
    even, uneven = timing(found["even"]), timing(found["scattered"])
    assert not even.capped
    assert not uneven.capped
    assert uneven.ci_width_percent is not None
    assert uneven.ci_width_percent <= 2.0
    assert budget.min_samples <= len(even.samples_ms) < 50 < len(uneven.samples_ms) < budget.max_samples


def test_a_cap_is_reported_with_the_width_that_was_reached(made_up_time: Any) -> None:
    budget = TimingBudget(seconds=10.0, width_percent=0.001, max_samples=40, warmup_seconds=0.01)
    result = timing(time_callables({"a": [made_up_time.busy(0.2, 2.0)]}, "host", budget, "cpu")["a"])
    assert result.capped
    assert len(result.samples_ms) == 40
    assert result.ci_width_percent is not None
    assert result.ci_width_percent > 0.001


def test_a_callable_slower_than_its_share_gives_three_samples_and_no_interval(made_up_time: Any) -> None:
    budget = TimingBudget(seconds=0.005, warmup_seconds=0.001)
    result = timing(time_callables({"a": [made_up_time.busy(20.0)]}, "host", budget, "cpu")["a"])
    assert len(result.samples_ms) == 3
    assert result.ci_width_percent is None
    assert result.capped


def test_time_spent_is_bounded_by_the_budget(made_up_time: Any) -> None:
    """By each callable's share, of warming up and of samples; the last of either, and the last block, may end later."""
    budget = TimingBudget(seconds=0.1, width_percent=0.0, max_samples=10**6, warmup_seconds=0.02)
    began = made_up_time.monotonic()
    calls = {"fast": [made_up_time.busy(0.2, 0.4)], "slow": [made_up_time.busy(1.5, 2.5)]}
    found = time_callables(calls, "host", budget, "cpu")
    assert 0.2 < made_up_time.monotonic() - began < 0.2 + 2 * 0.02 + 0.05
    for name in calls:
        assert 0.1 <= sum(timing(found[name]).samples_ms) / 1e3 < 0.15


def test_a_callable_that_raises_does_not_disturb_the_others(made_up_time: Any) -> None:
    count = iter(range(10**6))

    def breaks_late() -> None:
        if next(count) > 12:
            raise MemoryError("no more")

    def breaks_at_once() -> None:
        raise ZeroDivisionError

    calls: dict[str, Any] = {"good": [made_up_time.busy(0.2)], "late": [breaks_late], "once": [breaks_at_once]}
    found = time_callables(calls, "host", SHORT, "cpu")
    assert len(timing(found["good"]).samples_ms) >= 10
    assert isinstance(found["late"], TimingFailure)
    assert isinstance(found["late"].error, MemoryError)
    assert isinstance(found["once"], TimingFailure)
    assert list(found) == ["good", "late", "once"]


def test_the_results_of_every_input_set_are_shown_before_the_next_call(made_up_time: Any) -> None:
    """A backend that reuses its output memory is looked at in time; one that is refused there has failed."""
    shared = [0]

    def writes(value: int) -> Callable[[], list[int]]:
        def call() -> list[int]:
            shared[0] = value
            return shared

        return call

    seen: list[tuple[str, int, int]] = []

    def inspect(name: str, index: int, output: Any) -> None:
        seen.append((name, index, output[0]))
        if name == "bad":
            raise ArithmeticError("wrong")

    calls = {"good": [writes(10), writes(11)], "bad": [writes(20), writes(21)]}
    found = time_callables(calls, "host", SHORT, "cpu", inspect=inspect)
    assert seen == [("good", 0, 10), ("good", 1, 11), ("bad", 0, 20)]
    assert isinstance(found["bad"], TimingFailure)
    assert timing(found["good"]).samples_ms


def test_on_a_processor_the_policy_is_host(made_up_time: Any) -> None:
    assert timing(time_callables({"a": [made_up_time.busy(0.1)]}, "cold_l2", SHORT, "cpu")["a"]).policy == "host"


def test_unequal_numbers_of_input_sets_are_refused() -> None:
    def call() -> None: ...

    with pytest.raises(ValueError, match="same number of input sets"):
        time_callables({"a": [call], "b": [call, call]}, "host", SHORT, "cpu")


def test_a_heartbeat_comes_with_every_step(made_up_time: Any) -> None:
    """So that no wait between two is longer than a step, here a block."""
    beats = [made_up_time.monotonic()]
    budget = TimingBudget(seconds=0.2, width_percent=0.0, max_samples=1000, warmup_seconds=0.02)
    calls = {"a": [made_up_time.busy(0.4, 0.6)]}
    time_callables(calls, "host", budget, "cpu", heartbeat=lambda: beats.append(made_up_time.monotonic()))
    beats.append(made_up_time.monotonic())
    assert len(beats) > 10
    assert max(after - before for before, after in pairwise(beats)) < 0.05


def test_every_backend_is_told_of_its_own_samples_how_many_the_host_may_have_held_up(monkeypatch) -> None:
    class Told(HostMeter):
        """A sample a call, starved where the call says so."""

        def block(self, calls):
            return [Sample(1.0, starved=bool(call())) for call in calls]

    monkeypatch.setattr(timer, "meter_for", lambda policy, device: Told(device))
    turns = iter(range(10_000))
    calls = {"never": [lambda: False], "always": [lambda: True], "half": [lambda: next(turns) % 2 == 0]}
    budget = TimingBudget(seconds=5.0, min_samples=20, max_samples=20, width_percent=0.0)
    found = time_callables(calls, "host", budget, "cpu")
    assert [timing(found[name]).starved_percent for name in calls] == [0.0, 100.0, 50.0]
    assert Timing("host").starved_percent == 0.0


# On a GPU.


def spin(cycles: int) -> Callable[[], None]:
    return lambda: torch.cuda._sleep(cycles)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["cold_l2", "clean_l2", "warm_l2", "graph"])
def test_kernels_of_known_duration_come_out(policy: Any) -> None:
    """A launch and the cycles that it spins: a million cycles more take as long again, and the host's clock agrees."""
    millions = {name: [spin(cycles * 1_000_000)] for name, cycles in {"one": 1, "two": 2, "three": 3}.items()}
    found = time_callables(millions, policy, TimingBudget(seconds=0.2), "cuda")
    one, two, three = (timing(found[name]) for name in millions)
    assert three.median_ms - two.median_ms == pytest.approx(two.median_ms - one.median_ms, rel=0.05)
    assert one.median_ms == pytest.approx(two.median_ms - one.median_ms, rel=0.1)
    for result in (one, two, three):
        assert result.suspicion is None
        assert result.check is not None
        assert result.check.wall_ms == pytest.approx(result.median_ms, rel=0.05)


@pytest.mark.gpu
def test_events_do_not_hold_the_gaps_of_a_slow_host() -> None:
    """A kernel of some µs behind 50 µs of Python: the lead of the stream keeps the gap out of the event pair."""

    def slow_to_dispatch() -> None:
        end = time.perf_counter_ns() + 50_000
        while time.perf_counter_ns() < end:
            pass
        torch.cuda._sleep(2_000)

    found = time_callables({"gap": [slow_to_dispatch], "bare": [spin(2_000)]}, "warm_l2", TimingBudget(), "cuda")
    assert timing(found["gap"]).median_ms < 0.02
    host = time_callables({"gap": [slow_to_dispatch]}, "host", TimingBudget(), "cuda")
    assert timing(host["gap"]).median_ms > 0.05


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["cold_l2", "warm_l2"])
def test_a_backend_that_waits_for_the_device_does_not_charge_another_with_its_dispatch(policy: Any) -> None:
    """It leaves the stream nearly empty; the next lead keeps 200 µs of the other's Python out of the event pair."""

    def slow_to_dispatch() -> None:
        end = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < end:
            pass
        torch.cuda._sleep(2_000)

    def waits() -> None:
        torch.cuda._sleep(500_000)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000)

    budget = TimingBudget(seconds=0.2, min_samples=20)
    found = time_callables({"slow": [slow_to_dispatch], "waits": [waits]}, policy, budget, "cuda")
    slow, waiting = timing(found["slow"]), timing(found["waits"])
    assert slow.p80_ms < 0.02
    assert slow.starved_percent < 20
    assert waiting.starved_percent > 80


@pytest.mark.gpu
def test_work_on_another_stream_is_seen_by_the_host_clock() -> None:
    stream = torch.cuda.Stream()

    def hidden() -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)

    result = timing(time_callables({"hidden": [hidden]}, "cold_l2", TimingBudget(), "cuda")["hidden"])
    assert result.suspicion is not None
    assert "another stream" in result.suspicion


@pytest.mark.gpu
def test_a_call_that_waits_for_the_device_cannot_be_captured() -> None:
    def waits() -> float:
        return float(torch.ones(4, device="cuda").sum())

    found = time_callables({"waits": [waits], "good": [spin(10_000)]}, "graph", TimingBudget(), "cuda")
    assert isinstance(found["waits"], TimingFailure)
    assert "CUDA graph" in str(found["waits"].error)
    assert timing(found["good"]).median_ms > 0


@pytest.mark.gpu
def test_a_cold_read_of_a_cached_tensor_is_slower_than_a_warm_one() -> None:
    x = torch.ones(4 << 20, device="cuda")  # 16 MiB: fits the L2 of every data-centre card
    cold, clean, warm = (
        timing(time_callables({"read": [x.sum]}, policy, TimingBudget(), "cuda")["read"]) for policy in POLICIES
    )
    assert min(cold.median_ms, clean.median_ms) > warm.median_ms
