"""The headline cells under pytest-benchmark: our timer on a GPU, wall time on a processor, speed-up over eager.

`make bench` runs it; `--benchmark-save=NAME` and `--benchmark-compare` work as usual, and `maxsim-bench compare` reads
the JSON. Each record carries shape, backend, speed-up and environment in `extra_info`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure import environment
from maxsim_bench.measure.timer import Timing, TimingBudget, time_callables

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CANONICAL = ((1000, 32, 300), (1000, 32, 1024), (1000, 128, 1024), (1000, 512, 1024), (1000, 1024, 1024))
SMALL = ((50, 32, 180), (50, 32, 300))
BASELINE = "eager"


def _cells() -> list[Cell]:
    shapes, dtype = (CANONICAL, "fp16") if DEVICE == "cuda" else (SMALL, "fp32")
    base: dict[str, Any] = {"experiment": "headline", "gpu": "any", "op": "forward", "Nq": 1, "d": 128, "dtype": dtype}
    return [Cell(**base, layout="dense", pairing="all", B=B, Lq=Lq, Ld=Ld) for B, Lq, Ld in shapes]


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    """What this was measured on."""
    return environment.capture(DEVICE)


@pytest.mark.parametrize("cell", _cells(), ids=lambda c: f"B{c.B}-Lq{c.Lq}-Ld{c.Ld}")
@pytest.mark.parametrize("name", ["fused", "eager", "flash_maxsim", "lik", "maxsim_cpu"])
def test_forward(benchmark: BenchmarkFixture, machine: dict[str, Any], name: str, cell: Cell) -> None:
    """One headline cell with one backend, and its paired ratio to eager from one interleaved run."""
    backend = registry.get(name)
    reason = backend.supports(cell, DEVICE)
    if reason is not None:
        pytest.skip(reason)
    sets = [make_inputs(cell, DEVICE, index) for index in range(2)]
    calls = {n: [registry.get(n).prepare(cell, inputs) for inputs in sets] for n in dict.fromkeys((name, BASELINE))}
    policy = "cold_l2" if DEVICE == "cuda" else "host"
    timed = time_callables(calls, policy, TimingBudget(seconds=0.2), DEVICE)
    ours, baseline = timed[name], timed[BASELINE]
    assert isinstance(ours, Timing), ours
    assert isinstance(baseline, Timing), baseline
    benchmark.extra_info.update(
        backend=name, backend_version=backend.version(), cell=cell.model_dump(exclude_none=True), policy=ours.policy,
        latency_ms=ours.median_ms, speedup_over_eager=baseline.median_ms / ours.median_ms,
        samples=len(ours.samples_ms), environment=machine, environment_id=environment.environment_id(machine),
        budget=dataclasses.asdict(TimingBudget(seconds=0.2)),
    )  # fmt: skip
    call = calls[name][0]

    def once() -> None:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    benchmark.pedantic(once, rounds=10, warmup_rounds=2)
    assert benchmark.stats.stats.median > 0
