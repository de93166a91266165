"""Paired ratios: only of what was timed together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples, common_rounds
from maxsim_bench.report.load import load
from maxsim_bench.report.paired import Pairs, timed_together


def test_only_rounds_that_both_were_in_are_pairs() -> None:
    one = {"ms": [1.0, 2.0, 3.0], "round": [0, 1, 3]}
    other = {"ms": [10.0, 30.0], "round": [0, 3]}
    assert common_rounds(one, other) == ([1.0, 3.0], [10.0, 30.0])


@pytest.mark.parametrize(
    "other", [None, {}, {"ms": [1.0], "round": [0], "interleaved_with": ["eager", "fused", "lik"]}]
)
def test_what_was_timed_in_other_company_is_no_pair(other: Any) -> None:
    """A backend that was measured again later carries the round numbers of another run."""
    one = {"ms": [1.0], "round": [0], "interleaved_with": ["eager", "fused"]}
    assert common_rounds(one, other) == ([], [])


def written(folder: Path, made: Any, samples: dict[str, list[float]]) -> tuple[Pairs, dict[str, Row]]:
    rows = made.sweep([made.cell()], list(samples))
    root = made.written(folder, rows)
    kept = {row.key: {"ms": samples[row.backend], "round": list(range(len(samples[row.backend])))} for row in rows}
    append_samples(root / "h200" / "forward.csv", kept)
    results = load([root])
    return Pairs(results), {row.backend: row for row in results.rows}


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_samples_that_are_no_times_give_no_ratio(tmp_path: Path, made: Any, bad: float) -> None:
    pairs, rows = written(tmp_path, made, {"eager": [2.0, 2.0, 2.0], "fused": [1.0, bad, 1.0]})
    assert pairs.ratio(rows["fused"], rows["eager"]) is None


def test_the_ratio_is_the_median_over_rounds_with_its_interval(tmp_path: Path, made: Any) -> None:
    times = {"eager": [2.0, 4.2, 6.0, 8.0, 10.0], "fused": [1.0, 2.0, 3.0, 4.0, 5.0]}
    pairs, rows = written(tmp_path, made, times)
    effect = pairs.ratio(rows["eager"], rows["fused"])
    assert effect is not None
    assert effect.ratio == pytest.approx(2.0)
    assert effect.low <= 2.0 <= effect.high <= 2.1 + 1e-9


def test_one_round_and_rows_of_two_cells_have_no_paired_ratio(tmp_path: Path, made: Any) -> None:
    pairs, rows = written(tmp_path, made, {"eager": [2.0], "fused": [1.0]})
    assert pairs.ratio(rows["eager"], rows["fused"]) is None
    elsewhere = rows["eager"].model_copy(update={"cell": made.cell(B=7)})
    assert Pairs(made.results([elsewhere, rows["fused"]])).ratio(elsewhere, rows["fused"]) is None


def test_rows_without_samples_have_no_paired_ratio(made: Any) -> None:
    eager, fused = made.sweep([made.cell()], ["eager", "fused"])
    assert Pairs(made.results([eager, fused])).ratio(eager, fused) is None


def test_a_comparison_shows_the_row_that_took_turns_with_the_peer(tmp_path: Path, made: Any) -> None:
    """Ours was measured again alone: its newest row and the peer's are of two sessions."""
    cell = made.cell()
    lik, fused = made.sweep([cell], ["lik", "fused"])
    again = fused.model_copy(update={"backend_version": "newer", "measured_at": "2099-01-01T00:00:00+00:00"})
    root = made.written(tmp_path, [lik, fused, again])
    together, alone = ["fused", "lik"], ["fused"]
    append_samples(
        root / "h200" / "forward.csv",
        {
            lik.key: {"ms": [2.0, 2.0, 2.0], "round": [0, 1, 2], "interleaved_with": together},
            fused.key: {"ms": [1.0, 1.0, 1.0], "round": [0, 1, 2], "interleaved_with": together},
            again.key: {"ms": [0.5, 0.5, 0.5], "round": [0, 1, 2], "interleaved_with": alone},
        },
    )
    results = load([root])
    newest = {row.backend: row.backend_version for row in results.rows}
    assert newest["fused"] == "newer"
    shown = timed_together(results, "fused", ("lik",))
    assert {row.backend: row.key for row in shown.rows} == {"lik": lik.key, "fused": fused.key}
    assert Pairs(shown).ratio(shown.rows[0], shown.rows[1]) is not None
    assert timed_together(results, "fused", ("flash_maxsim",)).rows == results.rows, "with nobody to take turns with"
