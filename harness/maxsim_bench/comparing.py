"""Comparing runs and keeping their history from the command line.

Orchestration beside `cli.py`. May import: declare, measure, report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maxsim_bench.reporting import Places

if TYPE_CHECKING:
    from maxsim_bench.report.compare import Comparison, Decision

Format = Literal["markdown", "json", "html"]
_SUFFIXES: Mapping[Format, str] = {"markdown": "md", "json": "json", "html": "html"}
# Value of --fail-on → decisions that make a comparison fail.
FAIL_ON: Mapping[str, tuple[Decision, ...]] = {
    "slower": ("SLOWER",), "undecided": ("SLOWER", "UNDECIDED"), "nothing": (),
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What to compare; the fields are the arguments and options of `compare`."""

    base: str
    new: str
    places: Places = field(default_factory=Places)
    experiment: str | None = None
    backends: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    thresholds: Path | None = None

    @classmethod
    def of(
        cls, base: str, new: str, *, experiment: str | None, backends: tuple[str, ...], where: tuple[str, ...],
        thresholds: Path | None, **folders: Any,
    ) -> Request:  # fmt: skip
        """From the options of the command, which name the folders of a checkout one by one."""
        return cls(base, new, Places(**folders), experiment, backends, where, thresholds)

    @property
    def thresholds_path(self) -> Path:
        """Where what counts as a difference is declared."""
        return self.thresholds or thresholds_path(self.places)


def thresholds_path(places: Places) -> Path:
    """Where a checkout declares what counts as a difference."""
    return places.experiments / "compare" / "thresholds.toml"


def compared(request: Request, *, measure: bool) -> Comparison:
    """Two runs decided; with `measure` the kernels of two revisions, timed now.

    Raises:
        DeclarationError: for a filter that cannot be meant.
        CompareError, RevisionError: for what cannot be compared, or measured.
    """
    from maxsim_bench.declare.select import parse_where
    from maxsim_bench.report.compare import Selection, compare_results

    r = request
    if measure:
        from maxsim_bench.revisions import measured_revisions

        return measured_revisions(r.base, r.new, r.places, r.thresholds_path, r.experiment, r.where)
    experiments = () if r.experiment is None else (r.experiment,)
    only = Selection(experiments, r.backends, tuple(parse_where(r.where)))
    return compare_results(r.base, r.new, thresholds=r.thresholds_path, only=only)


def comparison_text(found: Comparison, form: Format) -> str:
    """The comparison for a pull request, a program, or a browser."""
    texts = {"markdown": found.markdown, "json": found.json, "html": found.html}
    return texts[form]()


def write_comparison(found: Comparison, folder: Path) -> list[Path]:
    """Every format as `comparison.md`, `.json` and `.html` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for form, suffix in _SUFFIXES.items():
        path = folder / f"comparison.{suffix}"
        path.write_text(comparison_text(found, form), encoding="utf-8")
        written.append(path)
    return written


def track(places: Places, folder: Path | None = None) -> tuple[Path, Path]:
    """Keep a small record of a run in `results/history` and redraw the trend; both paths.

    Args:
        folder: of the run's CSVs; default: this machine's rows. The record is of the time of its last row and of the
            commit of the session that measured it, so a run that was measured elsewhere is dated as it was.
    """
    from maxsim_bench.measure import clock
    from maxsim_bench.record.environments import read_environments, session_of
    from maxsim_bench.record.store import Store
    from maxsim_bench.report.compare import read_run
    from maxsim_bench.report.history import tracked, write_tracked, write_trend

    folder = folder or places.local
    run = read_run(str(folder))
    rows = [row for path in sorted(folder.glob("*.csv")) for row in Store(path).rows()]
    last = max(rows, key=lambda row: row.measured_at or "")
    facts = read_environments(folder).get(last.environment_id or "", {})
    commit = session_of(facts, last.measured_at).get("git_commit", "unknown")
    record = tracked(run, measured_at=last.measured_at or clock.utc_now(), revision=str(commit))
    history = places.results / "history"
    kept = write_tracked(record, history)
    return kept, write_trend(history, places.figures / "trend.html")
