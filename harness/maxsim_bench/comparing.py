"""Comparing runs and keeping their history from the command line.

Orchestration beside `cli.py`. May import: measure, report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from maxsim_bench.reporting import Places

if TYPE_CHECKING:
    from maxsim_bench.report.compare import Comparison

Format = Literal["markdown", "json", "html"]


def thresholds_path(places: Places) -> Path:
    """Where what counts as a difference is declared."""
    return places.experiments / "compare" / "thresholds.toml"


def comparison_text(found: Comparison, form: Format) -> str:
    """The comparison for a pull request, a program, or a browser."""
    texts = {"markdown": found.markdown, "json": found.json, "html": found.html}
    return texts[form]()


def track(places: Places) -> tuple[Path, Path]:
    """Keep a small record of this machine's rows in `results/history` and redraw the trend; both paths."""
    from maxsim_bench.measure import clock
    from maxsim_bench.measure.environment import capture
    from maxsim_bench.report.compare import read_run
    from maxsim_bench.report.history import tracked, write_tracked, write_trend

    run = read_run(str(places.local))
    record = tracked(run, measured_at=clock.utc_now(), revision=str(capture("cpu")["git_commit"]))
    history = places.results / "history"
    kept = write_tracked(record, history)
    return kept, write_trend(history, places.figures / "trend.html")
