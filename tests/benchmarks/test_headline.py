"""The headline cells under pytest-benchmark: our timer's samples on a GPU and on a processor, speed-up over eager.

`make bench` runs it; `--benchmark-save=NAME` and `--benchmark-compare` work as usual, and `maxsim-bench compare` reads
the JSON. Each record carries shape, backend, speed-up with its paired ratios, and environment in `extra_info`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from maxsim_bench.backends import registry
from maxsim_bench.declare.cell import Cell
from maxsim_bench.headline import headline_cells, input_sets, scores_inspector, timed_rounds
from maxsim_bench.machine import this_machine
from maxsim_bench.measure import environment
from maxsim_bench.measure.timer import TimingBudget

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

MACHINE = this_machine()
BASELINE = "eager"
BUDGET = TimingBudget(seconds=0.2)


class Playback:
    """A clock for pytest-benchmark that moves by what our timer measured, so that its statistics are of those samples.

    Its own clock around a call would time the host's dispatch and a synchronisation with it, on a GPU.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def read(self) -> float:
        """Seconds played back so far."""
        return self.seconds

    def play(self, ms: float) -> None:
        """One sample."""
        self.seconds += ms / 1e3


PLAYBACK = Playback()


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What this is measured on."""
    return environment.capture(MACHINE.device)


@pytest.mark.benchmark(timer=PLAYBACK.read)
@pytest.mark.parametrize("cell", headline_cells(MACHINE), ids=lambda c: f"B{c.B}-Lq{c.Lq}-Ld{c.Ld}")
@pytest.mark.parametrize("name", ["fused", "eager", "flash_maxsim", "lik", "maxsim_cpu"])
def test_forward(benchmark: BenchmarkFixture, facts: dict[str, Any], name: str, cell: Cell) -> None:
    """One headline cell with one backend: right, timed, and its paired ratio to eager from one interleaved run."""
    backend = registry.get(name)
    reason = backend.supports(cell, MACHINE.device)
    if reason is not None:
        pytest.skip(reason)
    sets = input_sets(cell, MACHINE.device)
    calls = {n: [registry.get(n).prepare(cell, inputs) for inputs in sets] for n in dict.fromkeys((name, BASELINE))}
    rounds = timed_rounds(cell, calls, MACHINE.device, BUDGET, scores_inspector(cell, sets, backend_of=str)).times_ms
    benchmark.extra_info.update(
        backend=name, backend_version=backend.version(), cell=cell.model_dump(exclude_none=True),
        gpu=MACHINE.key, policy=cell.timing_policy, budget=dataclasses.asdict(BUDGET),
        environment=facts, environment_id=environment.environment_id(facts),
    )  # fmt: skip
    if name != BASELINE:
        ratios = np.asarray(rounds[BASELINE]) / np.asarray(rounds[name])
        benchmark.extra_info.update(speedup=float(np.median(ratios)), ratios=ratios.tolist())
    left = iter(rounds[name])
    benchmark.pedantic(lambda: PLAYBACK.play(next(left)), rounds=len(rounds[name]))
    if benchmark.enabled:  # not under --benchmark-disable
        assert benchmark.stats.stats.median == pytest.approx(np.median(rounds[name]) / 1e3)
