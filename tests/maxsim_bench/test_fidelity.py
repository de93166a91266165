"""The fidelity command ranks real text, resumes, and its exit code says whether users would see a difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from maxsim_bench.cli import main
from maxsim_bench.declare.cell import Cell
from maxsim_bench.fidelity import Audited, Request, audited_lines, broken, tasks
from maxsim_bench.machine import Machine
from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CPU = Machine("cpu", "cpu", "a processor", 8 * 10**9, 2)
H200 = Machine("cuda", "h200", "NVIDIA H200", 150 * 10**9, 16)


def row(**changes: object) -> Row:
    cell = Cell(experiment="fidelity", gpu="cpu", op="fidelity", dataset="apidocs", encoder="minilm", dtype="fp32")
    fields: dict[str, object] = {"cell": cell, "backend": "eager", "backend_version": "v", "gpu": "c"}
    if changes.get("status", "ok") == "ok":
        fields |= {"status": "ok", "ndcg_at_10": 0.5, "delta": 1e-5, "queries_moved": 2, "max_rel_err": 1e-7}
    return Row.model_validate(fields | changes)


def test_sizes_and_first_stage_are_part_of_a_cells_identity() -> None:
    request = Request(
        Path("r"),
        EXPERIMENTS,
        datasets=("apidocs",),
        sizes={"queries": 5},
        first_stage="bm25",
        depth=50,
        dtypes=("bf16",),
    )
    (task,) = tasks(request, H200)
    cell = task.cell
    assert (cell.dataset, cell.dtype, cell.k, cell.variant) == ("apidocs", "bf16", 50, "first_stage=bm25;queries=5")
    assert (task.first_stage, task.options) == ("bm25", {"queries": 5})


def test_a_named_data_set_is_ranked_by_the_declared_backends_at_the_precision_of_the_device() -> None:
    (here,) = tasks(Request(Path("r"), EXPERIMENTS, datasets=("scifact",)), CPU)
    (there,) = tasks(Request(Path("r"), EXPERIMENTS, datasets=("scifact",)), H200)
    assert (here.cell.dtype, there.cell.dtype) == ("fp32", "fp16")
    assert set(here.backends) < set(there.backends)
    assert {"fused", "flash_maxsim"} <= set(there.backends)


def test_without_a_data_set_the_declared_experiment_runs() -> None:
    assert {t.cell.dataset for t in tasks(Request(Path("r"), EXPERIMENTS), CPU)} == {"apidocs"}
    declared = tasks(Request(Path("r"), EXPERIMENTS, profile="full", backends=("fused",)), CPU)
    assert {"apidocs", "scifact"} < {t.cell.dataset for t in declared}
    assert {t.backends for t in declared} == {("fused",)}


def test_a_stored_failure_and_a_difference_beyond_the_limit_count() -> None:
    assert broken(row(), 5e-4) is None
    assert broken(row(status="unsupported", error="no"), 5e-4) is None
    assert broken(row(status="crash", error="died"), 5e-4) == "apidocs minilm fp32, eager: crash: died"
    moved = "apidocs minilm fp32, fused: |ΔnDCG@10| = 1.00e-03 exceeds the limit 5e-04"
    assert broken(row(delta=-1e-3, backend="fused"), 5e-4) == moved
    assert broken(row(delta=-1e-3, backend="fused_int8"), 5e-4) is None


def test_the_table_shows_every_row_with_its_difference_or_its_reason() -> None:
    done = Audited(
        folder="r",
        rows=[row(), row(backend="lik", status="oom", error="full\nx")],
        failed=["a"],
        suspicious=["b"],
        absent=["c"],
    )
    assert audited_lines(done) == [
        "data set        dtype backend            nDCG@10          Δ  moved  max rel. error",
        "apidocs         fp32  eager               0.5000   +1.0e-05      2         1.0e-07",
        "apidocs         fp32  lik               oom: full",
        "failed: a",
        "suspicious: b",
        "not here: c",
        "rows in r/fidelity.csv",
    ]


def run(folder: Path, *more: str) -> Result:
    sizes = ("--documents", "40", "--queries", "8", "--backend", "eager", "--into", str(folder))
    return CliRunner().invoke(
        main, ["fidelity", "apidocs", *sizes, "--experiments", str(EXPERIMENTS), *more], catch_exceptions=False
    )


@pytest.mark.slow
def test_the_command_ranks_docstrings_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAXSIM_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run(tmp_path)
    assert done.exit_code == 0
    assert done.stderr == "encoded 40 of 40 documents\napidocs fp32 eager: ΔnDCG@10 +0.00e+00\n"
    (stored,) = Store(tmp_path / "fidelity.csv").rows()
    assert stored.cell.variant == "documents=40;queries=8"
    assert stored.queries == 8
    assert stored.ndcg_at_10 is not None
    assert stored.ndcg_at_10 > 0.5
    again = run(tmp_path, "--json")
    assert again.stderr == ""
    assert [r["backend"] for r in json.loads(again.stdout)["rows"]] == ["eager"]
