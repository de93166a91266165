"""Progress is a bar on a terminal and a log elsewhere; failures show in both."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from maxsim_bench.declare.cell import Cell
from maxsim_bench.progress import SweepProgress, outcome
from maxsim_bench.record.row import Row
from maxsim_bench.run.sweep import Progress

CELLS = [Cell(experiment="tiny", gpu="cpu", op="forward", B=B, Lq=3) for B in (1, 2)]


def rows(cell: Cell) -> tuple[Row, ...]:
    base = {"cell": cell, "backend_version": "v", "gpu": "c"}
    return (
        Row.model_validate({**base, "backend": "eager", "status": "ok", "latency_ms": 1.23456}),
        Row.model_validate({**base, "backend": "lik", "status": "unsupported", "error": "needs a GPU"}),
        Row.model_validate({**base, "backend": "fused", "status": "crash", "error": "died [of this]\nstack"}),
    )


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    with SweepProgress("tiny", CELLS, Console(file=out, force_terminal=terminal, width=90)) as progress:
        progress.cell(Progress(1, 2, CELLS[0], rows(CELLS[0]), 130.0))
        progress.cell(Progress(2, 2, CELLS[1], (), 0.0))
    return out.getvalue()


def test_a_log_has_one_line_a_measured_cell_and_one_a_failure() -> None:
    assert shown(terminal=False) == (
        "[1/2, 2 min left] tiny B=1: eager 1.235 ms, without lik\n"
        "[1/2, 2 min left] tiny B=1 fused: crash: died [of this]\n"
    )


def test_a_median_that_is_not_known_well_is_shown_with_its_interval() -> None:
    row = rows(CELLS[0])[0]
    assert outcome(row.model_copy(update={"ci_width_percent": 84.6})) == "1.235 ms (± 85 %)"
    assert outcome(row.model_copy(update={"ci_width_percent": 1.0})) == "1.235 ms"


def test_the_last_cell_leaves_no_time() -> None:
    out = io.StringIO()
    with SweepProgress("tiny", CELLS, Console(file=out, width=90)) as progress:
        progress.cell(Progress(2, 2, CELLS[1], rows(CELLS[1]), 1.0))
    assert out.getvalue().startswith("[2/2] tiny")


def test_a_terminal_has_a_bar_with_the_time_left_and_a_line_a_failure() -> None:
    text = shown(terminal=True)
    assert "[1/2, 2 min left] tiny B=1 fused: crash: died [of this]" in text
    assert "eager 1.235" not in text
    assert "2/2" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_cell_that_takes_long_is_a_line_with_its_step(terminal: bool) -> None:
    out = io.StringIO()
    with SweepProgress("tiny", CELLS, Console(file=out, force_terminal=terminal, width=90)) as progress:
        progress.waiting("waiting for 20 s: fused alone [1]")
    assert "tiny, waiting for 20 s: fused alone [1]\n" in out.getvalue().replace("\r", "")


@pytest.mark.parametrize(("index", "told"), [(0, "1.235 ms"), (1, "unsupported: needs a GPU")])
def test_an_outcome_is_the_time_or_the_reason(index: int, told: str) -> None:
    assert outcome(rows(CELLS[0])[index]) == told
