"""Probes of ceilings are found by themselves, and say what they measure."""

from __future__ import annotations

import pytest

from maxsim_bench.backends.ceilings import probes
from maxsim_bench.measure.ceilings import Offer, measure_ceilings
from maxsim_bench.measure.timer import TimingBudget


def test_every_probe_has_a_name_of_its_own_and_a_unit_that_rows_use():
    found = probes()
    assert len({probe.name for probe in found}) == len(found)
    assert {"mma_loop_int8", "mma_loop_fp8"} <= {probe.name for probe in found}
    assert {probe.unit for probe in found} <= {"fp16", "bf16", "tf32", "fp32", "int8", "fp8"}


@pytest.mark.gpu
def test_a_probe_reaches_a_rate_and_one_that_cannot_run_is_named():
    offers = [Offer(p.name, p.unit, p.make, p.operations()) for p in probes()]
    found = measure_ceilings("cuda", TimingBudget(seconds=0.05, warmup_seconds=0.05), offers)
    for probe in probes():
        assert found.all_measured.get(probe.name, 0.0) > 0.0 or probe.name in found.missing
    assert found.matmul_tflops["int8"] >= found.all_measured.get("mma_loop_int8", 0.0)
