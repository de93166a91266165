"""What the tests of `run` share: cells, experiments, and modules that worker processes find over PYTHONPATH."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Experiment

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(autouse=True)
def fixture_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fake_session` and `measured_backends` are importable here and in every process started from here."""
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FIXTURES), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    """A small forward cell; any axis can be given."""

    def make(**axes: Any) -> Cell:
        usual: dict[str, Any] = {
            "experiment": "test", "gpu": "cpu", "op": "forward", "Nq": 1, "B": 20, "Lq": 8, "Ld": 12, "d": 16,
            "dtype": "fp32", "layout": "dense", "pairing": "all", "timing_policy": "cold_l2",
        }  # fmt: skip
        return Cell(**usual | axes)

    return make


@pytest.fixture
def make_experiment() -> Callable[..., Experiment]:
    def make(*backends: str, **fields: Any) -> Experiment:
        axes = {"Nq": 1, "B": [10, 100, 1000], "Lq": 2, "Ld": 3, "d": 4, "dtype": "fp32", "gpu": "cpu"}
        usual: dict[str, Any] = {"name": "test", "title": "Test", "backends": backends, "axes": axes}
        return Experiment(**usual | fields)

    return make
