"""Training runs and largest batches in the report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row
from maxsim_bench.report.elements import artefacts


def run(backend: str, seed: int, ndcg: float, shift: float = 0.0) -> Row:
    cell = Cell(
        experiment="training_parity", gpu="h200", op="training_step", Nq=32, B=32, d=128, dtype="fp16",
        dataset="scifact", encoder="minilm", seed=seed,
    )  # fmt: skip
    losses = [3.0 - 0.01 * i + seed + shift for i in range(48)]
    return Row(
        cell=cell, backend=backend, backend_version="1", gpu="x", status="ok", ndcg_at_10=ndcg, queries=300,
        extra=json.dumps({"losses": losses, "held_out": [1.0]}),
    )  # fmt: skip


def test_runs_are_compared_with_eager_of_the_same_seed(made: Any) -> None:
    rows = [run("train_eager", 0, 0.70), run("train_eager", 1, 0.72), run("train_fused", 0, 0.701, 0.25)]
    found = {a.name: a for a in artefacts(made.results([*rows, run("train_fused", 1, 0.718, 0.125)]))}
    table = found["training_parity/parity"].frame.set_index("backend")
    assert table.loc["train_fused", "moved"] == pytest.approx(0.002)
    assert table.loc["train_fused", "loss_moved"] == pytest.approx(0.25)
    assert table.loc["train_eager", "spread"] == pytest.approx(0.0141, abs=1e-4)
    assert table.loc["train_eager", ["moved", "loss_moved"]].isna().all()
    curves = found["training_parity/losses"].data
    first = curves[curves["backend"] == "train_fused"].iloc[0]
    assert first["x"] == 2
    assert (first["low"], first["high"]) == (pytest.approx(3.245), pytest.approx(4.12))


def test_a_run_that_did_not_fit_is_a_line_without_numbers(made: Any) -> None:
    lost = run("train_eager", 0, 0.7)
    oom = Row(cell=lost.cell, backend="train_eager", backend_version="1", gpu="x", status="oom", error="out of memory")
    found = {a.name: a for a in artefacts(made.results([oom, run("train_fused", 0, 0.7)]))}
    table = found["training_parity/parity"].frame.set_index("backend")
    assert table.loc["train_eager", "status"] == "oom"
    assert table.loc["train_fused", ["moved", "loss_moved"]].isna().all()


def test_the_largest_batch_of_a_card_is_the_largest_whose_inputs_and_peak_fit_it(made: Any) -> None:
    def step(backend: str, B: int, gb: float | None) -> Row:
        cell = Cell(
            experiment="training_capacity", gpu="h200", op="training_step", Nq=B, B=B, Lq=1024, Ld=1024, d=128,
        )  # fmt: skip
        told: dict[str, Any] = {"error": "out of memory"}
        if gb is not None:
            told = {"input_bytes": 10**9, "peak_extra_bytes": int((gb - 1) * 1e9)}
        status = "oom" if gb is None else "ok"
        return Row(cell=cell, backend=backend, backend_version="1", gpu="x", status=status, **told)

    rows = [
        step("train_eager", 64, 30.0), step("train_eager", 128, None), step("train_fused", 512, 20.0),
        step("train_fused", 1024, 60.0), step("train_lean", 64, 90.0),
    ]  # fmt: skip
    table = {a.name: a for a in artefacts(made.results(rows))}["training_capacity/largest"]
    found = table.frame.set_index(["card", "backend"])[["largest", "smallest"]]
    assert found.loc[("40 GB card", "train_eager")].tolist() == [64, 128]
    assert found.loc[("40 GB card", "train_fused")].tolist() == [512, 1024]
    assert found.loc[("80 GB card", "train_fused"), "largest"] == 1024
    assert found.loc[("80 GB card", "train_lean")].isna().tolist() == [True, False]
