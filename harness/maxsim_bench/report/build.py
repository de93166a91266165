"""Everything that follows from rows, written below one folder: tables, figures, ledger, page, the README's block.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from maxsim_bench.record.children import end_with, held_back
from maxsim_bench.report import style
from maxsim_bench.report.claims import Ledger, ledger, read_paper
from maxsim_bench.report.claims.tables import ledger_tables
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.elements import Artefact, artefacts
from maxsim_bench.report.elements.audits import audit_tables
from maxsim_bench.report.elements.goals import goal_tables
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.goals import read_goals
from maxsim_bench.report.load import ReportError, Results, load
from maxsim_bench.report.origins import FOLDER, Origins, origins
from maxsim_bench.report.page import Page, write_page
from maxsim_bench.report.pdf import write_pdf
from maxsim_bench.report.readme import readme_block, replace_block
from maxsim_bench.report.sidecar import Sidecar, read_sidecar, sidecar_of
from maxsim_bench.report.tables import Table

PAGE = "report.html"
COMMAND = ("maxsim-bench", "report")
_MOST_WORKERS = 8
_STOPS = {signal.SIGINT, signal.SIGTERM}
_FIGURES_A_WORKER = 6  # fewer are drawn sooner than another process has imported matplotlib


@dataclass(frozen=True)
class Places:
    """Folders of a checkout that the report reads beside the results."""

    experiments: Path = Path("experiments")

    @property
    def paper(self) -> Path:
        """Claims and what is known of them."""
        return self.experiments / "paper"

    @property
    def thresholds(self) -> Path:
        """What counts as a difference between two runs."""
        return self.experiments / "compare" / "thresholds.toml"

    @property
    def goals(self) -> Path:
        """Files of goals."""
        return self.experiments / "goals"


@dataclass(frozen=True)
class ReportPaths:
    """What was written.

    Attributes:
        out: the folder; tables and figures: sidecars below it; page: the HTML page; readme: the file whose block was
            replaced, if one was given; pdf: the document, if one was asked for.
        drawn: figures that were drawn anew; the others were up to date.
        removed: artefacts of earlier reports that no longer follow from the rows, now deleted.
        verdicts: verdict → how many claims.
    """

    out: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    page: Path
    readme: Path | None
    drawn: int
    pdf: Path | None = None
    removed: tuple[str, ...] = ()
    verdicts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A report before it is written: the rows, everything made of them, and every claim's verdict."""

    results: Results
    artefacts: tuple[Artefact, ...]
    ledger: Ledger
    declared: Declared


def compose(roots: Sequence[Path], places: Places) -> Report:
    """Load and compute everything; nothing is drawn or written."""
    declared = Declared.below(places.experiments)
    goals = read_goals(places.goals, declared.experiments)
    results = load(roots)
    verdicts = ledger(read_paper(places.paper), results, declared)
    made = [
        *artefacts(results),
        *audit_tables(results, places.thresholds),
        *goal_tables(results, goals, declared.experiments),
        *ledger_tables(verdicts, results),
    ]
    return Report(results, tuple(made), verdicts, declared)


def build_report(
    roots: Sequence[Path],
    out: Path,
    *,
    places: Places | None = None,
    readme: Path | None = None,
    command: Sequence[str] = COMMAND,
    pdf: Path | None = None,
    like: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> ReportPaths:
    """Write the report of some results folders.

    Args:
        roots: results folders or CSVs; `results` is what is committed, `results/local` this machine's own.
        out: where tables, figures and the page go; artefacts there that no longer follow from the rows are removed.
        readme: a file whose block between the markers is replaced.
        pdf: where the report goes as one document to be read, if anywhere.
        command: what the sidecars name as the command that made them.
        like: folder of another report, whose figures of the same data are copied: drawing all takes minutes.
        say: told about progress, a line at a time.

    Raises:
        ReportError, StoreError: for data that cannot be read; nothing is half written then. ReportError too where a
            process that draws figures is killed; the next report writes what this one did not.
    """
    places = places or Places()
    report = compose(roots, places)
    sidecars = [sidecar_of(artefact, report.results.paths, command) for artefact in report.artefacts]
    changed = [a for a, s in zip(report.artefacts, sidecars, strict=True) if not _up_to_date(out, s)]
    for table in changed:
        if not isinstance(table, Figure):
            _write_table(out, table)
    figures = [a for a in changed if isinstance(a, Figure)]
    if like is not None:
        wanted = {figure.name for figure in figures}
        there = {s.name for s in sidecars if s.name in wanted and _copied(like, out, s)}
        figures = [figure for figure in figures if figure.name not in there]
    drawn = _draw(out, figures, say)
    for sidecar in sidecars:
        sidecar.write(out)
    removed = _remove_orphans(out, {sidecar.name for sidecar in sidecars})
    rows = origins(report.results, report.ledger, report.declared, out)
    removed += _write_rows(out, rows)
    page = write_page(
        Page(report.results, report.artefacts, sidecars, report.ledger, report.declared, rows), out / PAGE
    )
    if readme is not None:
        replace_block(readme, readme_block(report.results, report.artefacts, report.ledger, out.name))
    if pdf is not None:
        write_pdf(report, out, pdf)
    return ReportPaths(
        out=out,
        tables=tuple(out / f"{s.name}.json" for s in sidecars if s.kind == "table"),
        figures=tuple(out / f"{s.name}.json" for s in sidecars if s.kind == "figure"),
        page=page, readme=readme, pdf=pdf, drawn=drawn, removed=tuple(removed), verdicts=report.ledger.counts(),
    )  # fmt: skip


def _up_to_date(out: Path, sidecar: Sidecar) -> bool:
    """Whether the files there show this data and were made by these sources."""
    present = read_sidecar(out, sidecar.name)
    if present is None or (present.data_sha256, present.drawn_by) != (sidecar.data_sha256, sidecar.drawn_by):
        return False
    folder = (out / sidecar.name).parent
    return all((folder / name).is_file() for name in sidecar.files)


def _copied(like: Path, out: Path, sidecar: Sidecar) -> bool:
    """Copy the files of a figure from another report, if they are up to date there; whether they were."""
    if not _up_to_date(like, sidecar):
        return False
    source, target = (like / sidecar.name).parent, (out / sidecar.name).parent
    target.mkdir(parents=True, exist_ok=True)
    for name in sidecar.files:
        shutil.copyfile(source / name, target / name)
    return True


def _write_table(out: Path, table: Table) -> None:
    path = out / table.name
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in table.texts().items():
        path.with_name(f"{path.name}.{suffix}").write_text(text, encoding="utf-8")


def _draw(out: Path, figures: Sequence[Figure], say: Callable[[str], None] | None) -> int:
    """Draw figures, many of them in several processes: a figure takes most of a second, half of it for its fonts."""
    workers = min(_MOST_WORKERS, os.cpu_count() or 1, len(figures) // _FIGURES_A_WORKER)
    told = (lambda name: None) if say is None else (lambda name: say(f"drew {out / name}.pdf"))
    if workers < 2 or sys.platform != "linux":
        for figure in figures:
            told(_write_figure(out, figure))
        return len(figures)
    # forked: a spawned process runs the caller's main module again, which a notebook or a piped script does not have
    with ProcessPoolExecutor(
        workers, mp_context=get_context("fork"), initializer=_begin, initargs=(os.getpid(),)
    ) as pool:
        try:
            with held_back(_STOPS):  # until `_begin` a worker has our handlers, which would print a traceback each
                names = pool.map(partial(_write_figure, out), figures, chunksize=2)  # starts them
            for name in names:
                told(name)
        except BrokenProcessPool:
            raise ReportError(
                "a process that draws figures was killed (by the system, if it ran out of main memory). "
                "Run the same command again."
            ) from None
    return len(figures)


def _begin(parent: int) -> None:
    """What a worker does first. It holds the other end of its own queue, so it would wait for work for ever after its
    parent; Ctrl-C is the parent's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    end_with(parent)


def _write_figure(out: Path, figure: Figure) -> str:
    path = out / figure.name
    style.save(figure.draw(figure.data), path, title=figure.title, data_hash=figure.data_hash())
    path.with_name(f"{path.name}.csv").write_text(figure.csv(), encoding="utf-8")
    return figure.name


def _write_rows(out: Path, rows: Origins) -> list[str]:
    """Write the pages of rows; those of CSVs that are gone are removed, and named."""
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in rows.texts():
        (out / name).write_text(text, encoding="utf-8")
    stale = [path for path in sorted((out / FOLDER).glob("*.html")) if f"{FOLDER}/{path.name}" not in rows.pages]
    for path in stale:
        path.unlink()
    return [f"{FOLDER}/{path.name}" for path in stale]


def sidecars_below(out: Path) -> dict[str, Path]:
    """Name → sidecar of every artefact below a folder, but for this machine's own (`local`)."""
    found = sorted(out.rglob("*.json")) if out.is_dir() else []
    kept = [path for path in found if path.relative_to(out).parts[0] != "local"]
    return {path.relative_to(out).with_suffix("").as_posix(): path for path in kept}


def _remove_orphans(out: Path, expected: set[str]) -> list[str]:
    removed = []
    for name, path in sidecars_below(out).items():
        if name in expected:
            continue
        sidecar = read_sidecar(out, name)
        for file in sidecar.files if sidecar is not None else ():
            (path.parent / file).unlink(missing_ok=True)
        path.unlink()
        removed.append(name)
    return removed
