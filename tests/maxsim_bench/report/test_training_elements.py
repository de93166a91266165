"""Training runs and largest batches in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench import gradient_audit, parity, training_capacity, training_curve
from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.elements import artefacts
from maxsim_bench.report.page import coverage
from maxsim_bench.report.style import save

ROOT = Path(__file__).parents[3]


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


def test_each_seed_of_a_run_is_a_line_that_says_which(made: Any) -> None:
    rows = [
        run(backend, seed, 0.7).model_copy(update={"peak_extra_bytes": 10**9})
        for backend in ("train_eager", "train_fused")
        for seed in (0, 1)
    ]
    found = {a.name: a for a in artefacts(made.results(rows))}
    memory = found["training_parity/memory"]
    assert [(c.header, [line[i] for line in memory.cells()]) for i, c in enumerate(memory.columns)][:2] == [
        ("GPU", ["H200", "H200"]), ("seed", ["0", "1"]),
    ]  # fmt: skip
    alone = {a.name: a for a in artefacts(made.results(rows[::2]))}["training_parity/memory"]
    assert "seed" not in [c.header for c in alone.columns]


@pytest.mark.parametrize("module", [gradient_audit, parity, training_capacity, training_curve])
def test_what_a_command_measures_has_a_heading_in_words(made: Any, module: Any) -> None:
    """No file declares it, so no file holds its title."""
    titles, _ = coverage(made.results([run("train_fused", 0, 0.7)]), Declared({}))
    assert len(titles[module.EXPERIMENT].split()) > 3


def test_what_a_command_measured_stands_among_what_was_and_was_not_measured(made: Any) -> None:
    """Else a reader sees the declared audit without a row, and no word of the one that went further."""
    declared = Declared.below(ROOT / "experiments")
    audited = made.cell(experiment="gradient_audit_float64", op="training_step", dtype="bf16", timing_policy=None)
    rows = [
        Row(cell=audited, backend=backend, backend_version="1", gpu="x", status="ok", max_rel_err=1e-6)
        for backend in ("train_csr", "train_lean")
    ]
    titles, lines = coverage(made.results(rows), declared)
    names = [line["experiment"] for line in lines]
    assert names == sorted(names)
    found = {(line["experiment"], line["card"]): line for line in lines}
    float64, grid = found["gradient_audit_float64", "h200"], found["gradient_audit", "h200"]
    assert (float64["cells"], float64["done"], float64["left"]) == (None, 1, False)
    assert (grid["done"], grid["left"]) == (0, True)
    assert "gradient_audit_float64 goes further" in titles["gradient_audit"]
    missing = found["training_capacity", "h200"]
    assert (missing["done"], missing["left"]) == (0, True)
    assert missing["command"] == "python -m maxsim_bench.training_capacity"
    assert found["fidelity", "h200"]["command"] == "maxsim-bench fidelity --profile paper", "`run` refuses rankings"


def test_a_cell_that_was_only_refused_is_not_counted_as_measured(made: Any) -> None:
    """Nor is it left to be measured: the answer would be the same."""
    declared = Declared.below(ROOT / "experiments")
    first, second, *_ = (planned.cell for planned in declared.grid("forward", "h200", "paper"))
    refused = {"backend_version": "1", "gpu": "x", "status": "unsupported", "error": "takes no such cell"}
    rows = [
        Row(cell=first, backend="lik", **refused),
        Row(cell=second, backend="lik", **refused),
        Row(cell=second, backend="fused", backend_version="1", gpu="x", status="oom", error="out of memory"),
    ]
    _, lines = coverage(made.results(rows), declared)
    (line,) = (line for line in lines if (line["experiment"], line["card"]) == ("forward", "h200"))
    assert (line["done"], line["refused"], line["left"]) == (1, 1, True)


def test_nothing_is_left_of_a_grid_that_has_rows_or_was_refused(made: Any) -> None:
    declared = Declared.below(ROOT / "experiments")
    cells = [planned.cell for planned in declared.grid("cold_start", "h200", "paper")]
    assert len(cells) > 1
    told = {"backend_version": "1", "gpu": "x", "error": "told"}
    rows = [Row(cell=cells[0], backend="lik", status="unsupported", **told)]
    rows += [Row(cell=cell, backend="lik", status="crash", **told) for cell in cells[1:]]
    _, lines = coverage(made.results(rows), declared)
    (line,) = (line for line in lines if (line["experiment"], line["card"]) == ("cold_start", "h200"))
    assert (line["cells"], line["done"], line["refused"], line["left"]) == (len(cells), len(cells) - 1, 1, False)


def test_what_a_command_measured_on_one_card_is_told_of_that_card(made: Any) -> None:
    """A row that refuses is none of it."""
    cell = made.cell(experiment="training_curve", op="training_step", timing_policy=None)
    done = Row(cell=cell, backend="train_fused", backend_version="1", gpu="x", status="ok", max_rel_err=1e-6)
    refused = {"backend_version": "1", "gpu": "x", "status": "unsupported", "error": "takes no such cell"}
    elsewhere = Row(cell=made.cell(gpu="a100-80gb"), backend="lik", **refused)
    rows = [done, elsewhere, Row(cell=cell.model_copy(update={"B": 7}), backend="lik", **refused)]
    _, lines = coverage(made.results(rows), Declared({}))
    of_curve = [(line["card"], line["done"]) for line in lines if line["experiment"] == "training_curve"]
    assert of_curve == [("h200", 1)]


def test_a_run_that_did_not_fit_is_a_line_without_numbers(made: Any) -> None:
    lost = run("train_eager", 0, 0.7)
    oom = Row(cell=lost.cell, backend="train_eager", backend_version="1", gpu="x", status="oom", error="out of memory")
    found = {a.name: a for a in artefacts(made.results([oom, run("train_fused", 0, 0.7)]))}
    table = found["training_parity/parity"].frame.set_index("backend")
    assert table.loc["train_eager", "status"] == "oom"
    assert table.loc["train_fused", ["moved", "loss_moved"]].isna().all()


def curve(backend: str, shift: float, B: int = 64) -> Row:
    cell = Cell(
        experiment="training_curve", gpu="h200", op="training_step", Nq=B, B=B, Lq=1024, Ld=1024, d=128, dtype="fp16",
        seed=42,
    )  # fmt: skip
    losses = [4.0 - 0.01 * i + shift for i in range(48)]
    told: dict[str, Any] = {"losses": losses, "loss_first": losses[0], "loss_final": losses[-1], "wall_s": 9.0}
    if shift:
        told |= {"loss_max_abs_drift": shift, "loss_mean_abs_drift": shift, "loss_max_rel_drift": shift / 4}
    return Row(
        cell=cell, backend=backend, backend_version="1", gpu="x", status="ok", extra=json.dumps(told),
        input_bytes=10**9, peak_extra_bytes=2 * 10**9,
    )  # fmt: skip


def test_the_papers_curves_are_panels_of_the_figure_of_losses_and_a_table(made: Any) -> None:
    own = [run("train_eager", 0, 0.70), run("train_fused", 0, 0.701)]
    paper = [curve("train_eager", 0.0), curve("train_fused", 0.001)]
    alone = {a.name: a for a in artefacts(made.results(own))}
    both = {a.name: a for a in artefacts(made.results([*own, *paper]))}
    only = {a.name: a for a in artefacts(made.results(paper))}
    shown = both["training_parity/losses"].data
    assert list(dict.fromkeys(shown["panel"])) == ["batch 32, fp16", "Q and D, batch 64, fp16"]
    assert shown[shown["panel"] == "batch 32, fp16"].equals(alone["training_parity/losses"].data)
    line = shown[(shown["panel"] != "batch 32, fp16") & (shown["backend"] == "train_fused")]
    assert (line["x"].iloc[0], line["y"].iloc[0]) == (2, pytest.approx(3.996))
    assert both["training_parity/losses"].sources == ("h200/training_curve.csv", "h200/training_parity.csv")
    assert "Q and D" in both["training_parity/losses"].caption
    assert "Q and D" not in alone["training_parity/losses"].caption
    assert set(only["training_parity/losses"].data["panel"]) == {"Q and D, batch 64, fp16"}
    assert "training_parity/curve" not in alone
    table = both["training_parity/curve"].frame.set_index("backend")
    assert table.loc["train_fused", "loss_max_abs_drift"] == pytest.approx(0.001)
    assert table.loc["train_fused", "bytes"] == 3e9
    assert table.loc["train_eager", ["loss_max_abs_drift", "first_step_s"]].isna().all()
    assert len(both["training_parity/parity"].frame) == len(own)


def test_the_papers_curves_are_drawn_and_their_files_written(made: Any, tmp_path: Path) -> None:
    [figure] = [
        a for a in artefacts(made.results([curve("train_eager", 0.0), curve("train_fused", 0.001)]))
        if a.name == "training_parity/losses"
    ]  # fmt: skip
    drawing = figure.draw(figure.data)
    assert [ax.get_title() for ax in drawing.axes if ax.get_visible()] == ["Q and D, batch 64, fp16"]
    paths = save(drawing, tmp_path / "losses", title=figure.title, data_hash=figure.data_hash())
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_curve_that_did_not_fit_is_a_line_and_one_that_cannot_be_is_none(made: Any) -> None:
    cell = curve("train_eager", 0.0).cell
    rows = [
        Row(cell=cell, backend="train_eager", backend_version="1", gpu="x", status="oom", error="out of memory"),
        Row(cell=cell, backend="train_flash_maxsim", backend_version="1", gpu="x", status="unsupported", error="no"),
    ]
    found = {a.name: a for a in artefacts(made.results(rows))}
    assert found["training_parity/curve"].frame[["backend", "status"]].values.tolist() == [["train_eager", "oom"]]
    assert "training_parity/losses" not in found


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
