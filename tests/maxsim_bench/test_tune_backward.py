"""The table of backward paths follows from rows: one rule where one path wins, a threshold only where it pays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store
from maxsim_bench.tune_backward import main, points, table


def row(backend: str, B: int, Ld: int, ms: float, policy: str = "cold_l2") -> Row:
    cell = Cell(
        experiment="backward_paths", gpu="h200", op="training_step", Nq=B, B=B, Lq=32, Ld=Ld, d=128,
        timing_policy=policy,  # type: ignore[arg-type]
    )  # fmt: skip
    return Row(cell=cell, backend=backend, backend_version="1", gpu="A card", status="ok", latency_ms=ms)


def rows(times: dict[tuple[int, int], dict[str, float]]) -> list[Row]:
    return [row(backend, B, Ld, ms) for (B, Ld), each in times.items() for backend, ms in each.items()]


def test_a_path_that_wins_everywhere_is_the_only_rule_beside_the_limit_of_31_bits():
    found = table(
        points(rows({(16, 300): {"train_csr": 1, "train_lean": 2}, (64, 300): {"train_csr": 1, "train_lean": 3}})), "A"
    )
    assert [(r["path"], bool(r["when"])) for r in found] == [("onehot", True), ("csr", False)]
    assert "2.00 to 3.00 times" in found[-1]["why"]


def test_a_path_that_wins_below_a_size_gets_a_threshold_between_the_sizes():
    times = {
        (16, 300): {"train_csr": 2.0, "train_lean": 1.0}, (64, 300): {"train_csr": 1.0, "train_lean": 4.0},
        (256, 300): {"train_csr": 1.0, "train_lean": 4.0},
    }  # fmt: skip
    found = table(points(rows(times)), "A")
    assert [r["path"] for r in found] == ["onehot", "onehot", "csr"]
    assert found[1]["when"] in ({"entries_per_document": [0, (512 + 2048) // 2]}, {"documents": [0, 40]})
    assert found[1]["why"].startswith("2.00 times as fast as csr")


def test_a_gain_within_noise_makes_no_rule():
    times = {(16, 300): {"train_csr": 1.01, "train_lean": 1.0}, (64, 300): {"train_csr": 1.0, "train_lean": 4.0}}
    assert len(table(points(rows(times)), "A")) == 2


def test_atomics_other_policies_and_cells_of_one_path_are_not_looked_at():
    given = [
        row("train_atomic", 16, 300, 0.1),
        row("train_csr", 16, 300, 1.0),
        row("train_lean", 64, 300, 0.1, "graph"),
    ]
    assert points(given) == []
    with pytest.raises(ValueError, match="maxsim-bench run backward_paths"):
        table([], "A")


def test_the_command_prints_a_table_that_the_dispatcher_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "backward_paths.csv"
    Store(path).append(rows({(16, 300): {"train_csr": 1.0, "train_lean": 2.0}}))
    main(["--rows", str(path)])
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert rules[-1] == {"path": "csr", "when": {}, "why": rules[-1]["why"]}
    assert "A card" in rules[-1]["why"]


def test_no_rows_are_an_error_that_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--rows", str(tmp_path / "none.csv")])
    assert "maxsim-bench run backward_paths" in capsys.readouterr().err
