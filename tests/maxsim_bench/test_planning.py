"""Plans in words: sizes and durations as exact as an estimate is, cells by what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Experiment
from maxsim_bench.declare.select import Filters
from maxsim_bench.planning import describe, duration, outline, outline_lines, size, varying


@pytest.mark.parametrize(("seconds", "told"), [(0.2, "1 s"), (89.4, "89 s"), (90, "2 min"), (7500, "2 h 5 min")])
def test_a_duration_is_told_in_the_unit_that_suits_it(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(("count", "told"), [(12, "12 B"), (5400, "5.4 kB"), (1.2e8, "120 MB"), (26.84e9, "26.8 GB")])
def test_a_size_is_told_with_three_digits(count: float, told: str) -> None:
    assert size(count) == told


def test_a_cell_is_described_by_the_axes_that_vary() -> None:
    cells = [Cell(experiment="x", gpu="cpu", op="forward", B=B, Lq=3) for B in (1, 2)]
    assert varying(cells) == ["B"]
    assert describe(cells[0], varying(cells)) == "B=1"
    assert describe(cells[0]) == "B=1 Lq=3 seed=0"
    assert varying([]) == []


def test_a_cell_whose_tensor_exceeds_the_card_is_marked_and_reasons_are_counted() -> None:
    experiment = Experiment.model_validate(
        {
            "name": "x", "title": "t", "backends": ["eager"],
            "axes": {"B": [1, 10_000, 10**7], "Nq": 1, "Lq": 1024, "Ld": 1024, "d": 128, "dtype": "fp32"},
        }
    )  # fmt: skip
    lines = outline_lines(outline(experiment, "a100-40gb", "full"))
    assert lines[1].endswith("B=1  eager")
    assert lines[2].endswith("B=10000  eager  (similarity tensor and inputs exceed 42.4 GB)")
    assert lines[3].startswith("  left out: 1 × cell: ")
    assert outline_lines(outline(experiment, "cpu", "full")) == ["x (full) on cpu: no cells"]


def test_a_constraint_that_leaves_nothing_out_anywhere_is_told() -> None:
    """It is a mistake that the cells would not show; one that a smaller profile or another card needs is none."""
    experiment = Experiment.model_validate(
        {
            "name": "x", "title": "t", "backends": ["eager"],
            "axes": {"gpu": ["cpu", "any"], "B": [1, 2], "Nq": 1, "Lq": 8, "Ld": 8, "d": 8, "dtype": "fp32"},
            "leave_out": [
                {"when": {"gpu": "h200"}, "why": "of another card"},
                {"when": {"B": 3}, "why": "of the smoke grid"},
                {"when": {"B": 4}, "why": "mistyped"},
            ],
            "profiles": {
                "smoke": {"axes": {"B": 3}, "leave_out": [{"when": {"B": 1}, "why": "of the full grid alone"}]}
            },
        }
    )  # fmt: skip
    lines = outline_lines(outline(experiment, "cpu", "full"))
    assert [line for line in lines if "nothing out" in line] == [
        "  leaves nothing out, on any card under any profile: mistyped",
        "  leaves nothing out, on any card under any profile: of the full grid alone",
    ]


def two_cards(**changes: Any) -> Experiment:
    axes = {"gpu": ["cpu", "h200"], "B": [1, 2], "Nq": 1, "Lq": 8, "Ld": 8, "d": 8, "dtype": "fp32"}
    return Experiment.model_validate(
        {"name": "x", "title": "t", "backends": ["eager", "fused"], "axes": axes} | changes
    )


def test_the_command_for_another_card_measures_the_part_that_was_asked_for() -> None:
    """And no more: a full grid may take hours that nobody asked for."""
    filters = Filters(("B>1", "dtype=fp16,fp32"), ("eager", "fused"), 10**9, Path("my grids"))
    told = [line for line in outline_lines(outline(two_cards(), "cpu", "full", filters)) if "elsewhere" in line]
    assert told == [
        "  elsewhere: 1 cells for h200: on that machine `maxsim-bench run x --profile full --backend eager "
        "--backend fused --where 'B>1' --where dtype=fp16,fp32 --memory-cap 1000000000 --experiments 'my grids'`, "
        "then merge its CSV here"
    ]


def test_what_is_finished_is_measured_again_by_force_only() -> None:
    assert Filters(("Lq=32",)).command(["x"], "paper") == "maxsim-bench run x --profile paper --where Lq=32"
    again = Filters(("Lq=32",)).command(["x"], "paper", force=True)
    assert again == "maxsim-bench run x --profile paper --force --where Lq=32"


def test_rankings_are_made_by_a_command_of_their_own_elsewhere_too() -> None:
    """`run` refuses them by name, and `fidelity` knows no --where."""
    axes = {"gpu": ["cpu", "h200"], "dataset": ["apidocs"], "split": "test", "encoder": "minilm", "dtype": "fp32"}
    plan = outline(two_cards(op="fidelity", axes=axes), "cpu", "full", Filters(("dtype=fp32",), ("eager",)))
    assert plan.elsewhere == {"h200": 1}
    assert plan.command == "maxsim-bench fidelity --profile full --backend eager"
