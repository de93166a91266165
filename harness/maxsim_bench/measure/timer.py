"""The one timer: several callables in, interleaved samples of each out.

Room: `measure`. Imports nothing else of ours.

Every round times each callable once, in a random order, on the same input set; the next round takes the next set.
Rounds are grouped in blocks that are synchronised once. A callable leaves when its median is known well enough, or when
its share of the time is used up. `sustained` then asks the host's clock whether the events told the whole story.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from maxsim_bench.measure import clock
from maxsim_bench.measure.clock import Meter, Policy, meter_for
from maxsim_bench.measure.crosscheck import Sustained, other_stream, sustained
from maxsim_bench.measure.graphs import CaptureError, capture
from maxsim_bench.measure.statistics import Interval, is_stable, median, median_interval, quantile

Call = Callable[[], object]

_BLOCK_MS = 40.0  # a block this long is re-planned often enough, and synchronised rarely enough
_BLOCK_ROUNDS = 25
_FEWEST = 3  # samples, of a call so slow that one of them uses its whole share up


@dataclass(frozen=True)
class TimingBudget:
    """How long to measure.

    Attributes:
        seconds: of sampling for each callable.
        min_samples, max_samples: for each callable; fewer than `min_samples` only where they would take more than
            three times `seconds`.
        width_percent: sampling ends once the 95 % interval of the median is within this.
        warmup_seconds: bound on warming up each callable, after the first call on every input set (which may compile).
        check_seconds: of the cross-check on the host clock.
        energy_seconds: least duration of the cross-check where the card counts energy; 0 for no energy.
        seed: of the order.
    """

    seconds: float = 0.3
    min_samples: int = 10
    max_samples: int = 2000
    width_percent: float = 1.0
    warmup_seconds: float = 0.1
    check_seconds: float = 0.01
    energy_seconds: float = 0.0
    seed: int = 0


@dataclass
class Timing:
    """Samples of one callable and what they say.

    Attributes:
        policy: as timed; on a processor always "host".
        samples_ms: in the order taken, milliseconds a call.
        rounds: round of each sample; samples of two callables with the same round are a pair.
        positions: place of each sample in the sequence of all callables' samples: the order of measuring.
        warmup_calls: before the first sample.
        capped: the time or count was used up before the interval was narrow enough.
        starved: how many of the samples the device began before the host was through with them, so that they may hold
            waits for the host: nearly all of a call that itself waits for the device in between.
        check: the sustained run on the host clock.
        suspicion: why the times cannot be trusted, None if nothing speaks against them.
    """

    policy: Policy
    samples_ms: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    warmup_calls: int = 0
    capped: bool = False
    starved: int = 0
    check: Sustained | None = None
    suspicion: str | None = None

    @property
    def median_ms(self) -> float:
        return median(self.samples_ms)

    @property
    def p20_ms(self) -> float:
        return quantile(self.samples_ms, 0.2)

    @property
    def p80_ms(self) -> float:
        return quantile(self.samples_ms, 0.8)

    @property
    def starved_percent(self) -> float:
        """`starved` in percent of the samples."""
        return 100.0 * self.starved / max(len(self.samples_ms), 1)

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the median, None for fewer than six samples."""
        return median_interval(self.samples_ms)

    @property
    def ci_width_percent(self) -> float | None:
        """Half-width of the interval in percent of the median."""
        interval = self.interval
        return None if interval is None else interval.width_percent


@dataclass(frozen=True)
class TimingFailure:
    """A callable that raised while it was warmed up, captured or timed."""

    error: Exception


def time_callables(
    calls: Mapping[str, Sequence[Call]],
    policy: Policy,
    budget: TimingBudget,
    device: str,
    heartbeat: Callable[[], None] = lambda: None,
    inspect: Callable[[str, int, object], None] = lambda name, index, output: None,
) -> dict[str, Timing | TimingFailure]:
    """Time several callables against each other.

    Args:
        calls: name → the same work prepared on each input set; equally many sets for every name.
        policy: see the design of measurement; a processor knows only "host".
        budget: bounds on the time spent.
        device: "cuda" or "cpu".
        heartbeat: called before every warm-up, block and check, for whoever watches that this goes on.
        inspect: given (name, input set, output) of one more call on every set at the end, before the next call can
            write to the same memory: what came out of the very callables that were timed. What it raises is that
            callable's failure.

    Returns:
        For each name its `Timing`, or the exception it raised; the others are not disturbed by it.

    Raises:
        ValueError: for unequal numbers of input sets.
        RuntimeError: from the CUDA driver, where the whole process is lost.
    """
    sets = {len(group) for group in calls.values()}
    if len(sets) != 1 or 0 in sets:
        raise ValueError(f"every callable needs the same number of input sets, at least one; got {sorted(sets)}")
    effective: Policy = policy if device == "cuda" else "host"
    with _quiet_collector():
        return _Session(calls, effective, budget, device, heartbeat, inspect).run()


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keep Python's cycle collector out of the samples."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Session:
    """The state of one `time_callables`: who is still measured, what they took so far."""

    def __init__(
        self,
        calls: Mapping[str, Sequence[Call]],
        policy: Policy,
        budget: TimingBudget,
        device: str,
        heartbeat: Callable[[], None],
        inspect: Callable[[str, int, object], None],
    ) -> None:
        self.heartbeat, self.inspect = heartbeat, inspect
        self.calls: dict[str, list[Call]] = {name: list(group) for name, group in calls.items()}
        self.policy, self.budget = policy, budget
        self.meter: Meter = meter_for(policy, device)
        self.cuda = device == "cuda"
        self.results: dict[str, Timing | TimingFailure] = {}
        self.spent: dict[str, float] = dict.fromkeys(calls, 0.0)
        self.cost_ms: dict[str, float] = {}
        self.order = random.Random(budget.seed)
        self.rounds = self.position = 0

    def run(self) -> dict[str, Timing | TimingFailure]:
        for name in list(self.calls):
            self._attempt(name, self._warm_up)
        active = [name for name in self.calls if isinstance(self.results[name], Timing)]
        while active:
            self.heartbeat()
            self._block(active)
            active = [name for name in active if self._goes_on(name)]
        for name, result in self.results.items():
            if isinstance(result, Timing):
                self._attempt(name, self._cross_check)
        return {name: self.results[name] for name in self.calls}

    def _attempt(self, name: str, step: Callable[[str], None]) -> None:
        self.heartbeat()
        try:
            step(name)
        except Exception as error:
            self.results[name] = TimingFailure(error)
            self.calls[name] = []  # releases what it holds

    def _warm_up(self, name: str) -> None:
        timing = Timing(self.policy)
        if self.policy == "graph":
            self.calls[name] = capture(self.calls[name])
        for call in self.calls[name]:
            call()
        self.meter.synchronize()
        values: list[float] = []
        began = clock.seconds()
        while not is_stable(values) and len(values) < self.budget.max_samples:
            elapsed = clock.seconds() - began
            if values and elapsed >= self.budget.warmup_seconds:
                break
            count = 1 if not values else max(1, min(5, int(self.budget.warmup_seconds * 1e3 / max(values[-1], 1e-3))))
            values += _times(self.meter.block([self._call(name, len(values) + i) for i in range(count)]))
        timing.warmup_calls = len(self.calls[name]) + len(values)
        self.cost_ms[name] = max((clock.seconds() - began) * 1e3 / len(values), 1e-4)
        self.results[name] = timing

    def _call(self, name: str, index: int) -> Call:
        group = self.calls[name]
        return group[index % len(group)]

    def _block(self, active: list[str]) -> None:
        """Some rounds over everybody who is still measured, then one synchronisation."""
        most = min(_BLOCK_ROUNDS, self.budget.max_samples - self.rounds)  # whoever is active was in every round
        rounds = int(max(1, min(most, _BLOCK_MS / sum(self.cost_ms[name] for name in active))))
        plan = [(r, name) for r in range(self.rounds, self.rounds + rounds) for name in self._shuffled(active)]
        self.rounds += rounds
        began = clock.seconds()
        samples = self.meter.block([self._call(name, r) for r, name in plan])
        wall_ms = (clock.seconds() - began) * 1e3
        timed = sum(s.ms for s in samples if s.error is None)
        overhead = max(wall_ms - timed, 0.0) / len(plan)
        for (r, name), sample in zip(plan, samples, strict=True):
            self._take(name, r, sample)
            self.spent[name] += ((0.0 if sample.error else sample.ms) + overhead) / 1e3
            self.position += 1
        for name in active:
            if isinstance(timing := self.results[name], Timing):
                self.cost_ms[name] = max(median(timing.samples_ms[-rounds:]) + overhead, 1e-4)

    def _shuffled(self, names: list[str]) -> list[str]:
        return self.order.sample(names, len(names))

    def _take(self, name: str, round_: int, sample: clock.Sample) -> None:
        timing = self.results[name]
        if not isinstance(timing, Timing):
            return  # it raised earlier in this block
        if sample.error is not None:
            self.results[name] = TimingFailure(sample.error)
            return
        timing.samples_ms.append(sample.ms)
        timing.starved += sample.starved
        timing.rounds.append(round_)
        timing.positions.append(self.position)

    def _goes_on(self, name: str) -> bool:
        timing, budget = self.results[name], self.budget
        if not isinstance(timing, Timing):
            self.calls[name] = []
            return False
        count, spent = len(timing.samples_ms), self.spent[name]
        width = timing.ci_width_percent
        if count >= budget.min_samples and width is not None and width <= budget.width_percent:
            return False
        enough = count >= budget.min_samples or (count >= _FEWEST and spent >= 3 * budget.seconds)
        if count >= budget.max_samples or (spent >= budget.seconds and enough):
            timing.capped = True
            return False
        return True

    def _cross_check(self, name: str) -> None:
        timing = self.results[name]
        assert isinstance(timing, Timing)
        if self.cuda:
            timing.check = sustained(self.calls[name], self.budget.check_seconds, self.budget.energy_seconds)
            if self.policy != "host":
                timing.suspicion = other_stream(timing.median_ms, timing.check)
        for index, call in enumerate(self.calls[name]):
            output = call()
            self.meter.synchronize()
            self.inspect(name, index, output)
            del output  # the next call is not to need room for two results


def _times(samples: Sequence[clock.Sample]) -> list[float]:
    """Milliseconds of a warm-up block; the first exception of one is raised."""
    for sample in samples:
        if sample.error is not None:
            raise sample.error
    return [sample.ms for sample in samples if not math.isnan(sample.ms)]


__all__ = ["Call", "CaptureError", "Timing", "TimingBudget", "TimingFailure", "time_callables"]
