"""Experiments for elements of the paper: their smoke grids give good rows on a processor, and elements find them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from maxsim_bench import training_curve
from maxsim_bench.backends import registry
from maxsim_bench.declare.load import load, load_directory
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.run.protocol import CellRequest
from maxsim_bench.run.session import CellSession

FOLDER = Path(__file__).parents[2] / "experiments"
DOCUMENT = FOLDER.parent / "docs" / "paper.md"
NAMES = [
    "serving_frontier", "operator_ablation", "precision_bf16", "dispersion", "memory_audit", "single_query_backward",
    "correctness", "traffic", "determinism", "compile_audit", "split_d", "pipeline", "out_of_core", "cold_start",
    "training_peers",
    pytest.param("ddp", marks=pytest.mark.slow), pytest.param("full_step", marks=pytest.mark.slow),
    pytest.param("full_step_colpali", marks=pytest.mark.slow),
]  # fmt: skip
QUICK = TimingBudget(seconds=0.01, min_samples=3, max_samples=3, warmup_seconds=0.005, check_seconds=0.002)


@pytest.mark.parametrize("name", NAMES)
def test_the_smoke_grid_gives_good_rows_on_a_processor(name: str) -> None:
    experiment = load(FOLDER / f"{name}.toml", registry.backends())
    planned = experiment.plan("cpu", "smoke").planned
    session = CellSession("cpu", registry.get)
    assert planned
    for cell, backends in ((p.cell, p.backends) for p in planned):
        able = tuple(b for b in backends if registry.get(b).supports(cell, "cpu") is None)
        assert able, f"nothing measures {cell}"
        request = CellRequest(cell, able, dict.fromkeys(able, "1"), experiment.baseline, budget=QUICK)
        rows = session.measure(request, lambda step: None).rows
        assert [(row.backend, row.status, row.error) for row in rows if row.status != "ok"] == []


def test_the_document_lists_every_element_with_the_experiments_that_name_it() -> None:
    named: dict[str, list[str]] = {}
    for name, experiment in load_directory(FOLDER, registry.backends()).items():
        for element in experiment.elements:
            named.setdefault(element, []).append(name)
    named.setdefault(training_curve.ELEMENT, []).append(training_curve.EXPERIMENT)  # a command, no grid
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| ([^|]+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    told = {element: re.findall(r"`([^`]+)`", cells) for element, cells in rows}
    assert {element: experiments for element, experiments in told.items() if experiments} == named
    assert all(cells.startswith("none: ") for element, cells in rows if not told[element])
