"""The report and the ledger of claims from the command line: which folders are read, what is printed.

Orchestration beside `cli.py`. May import: declare, report. Committed results give figures/; with this machine's rows
the report goes to figures/local, which is not committed, so that measuring something never makes the tree stale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maxsim_bench.declare.experiment import DeclarationError
from maxsim_bench.declare.load import suggest

if TYPE_CHECKING:
    from maxsim_bench.report.build import ReportPaths
    from maxsim_bench.report.claims.ledger import Entry, Ledger


SHORT = 8  # digits of a cell's hash, as in the last column of the report's tables


@dataclass(frozen=True)
class Places:
    """Folders of a checkout, and its README."""

    experiments: Path = Path("experiments")
    results: Path = Path("results")
    figures: Path = Path("figures")
    readme: Path = Path("README.md")

    @property
    def local(self) -> Path:
        """This machine's rows."""
        return self.results / "local"

    def roots(self, *, local: bool) -> list[Path]:
        """What to read: what is committed, and this machine's rows where asked for and there."""
        return [self.results, *([self.local] if local and any(self.local.glob("*.csv")) else [])]


def write(places: Places, *, local: bool, say: Callable[[str], None], pdf: Path | None = None) -> list[ReportPaths]:
    """The report of the committed results, and where asked for and there one with this machine's rows.

    `pdf`: where the first of them goes as one document.
    """
    from maxsim_bench.report.build import Places as Beside
    from maxsim_bench.report.build import build_report

    beside = Beside(places.experiments)
    made = [build_report([places.results], places.figures, places=beside, readme=places.readme, pdf=pdf, say=say)]
    if local and len(places.roots(local=True)) > 1:
        command = ("maxsim-bench", "report", "--local")
        roots, out = places.roots(local=True), places.figures / "local"
        made.append(build_report(roots, out, places=beside, command=command, like=places.figures, say=say))
    return made


def stale(places: Places) -> list[str]:
    """What is committed and no longer follows from the committed results, and what to do; empty if everything does."""
    from maxsim_bench.report.build import Places as Beside
    from maxsim_bench.report.check import REMEDY, check

    found = check([places.results], places.figures, places=Beside(places.experiments), readme=places.readme)
    return [*found, REMEDY] if found else []


def report_lines(made: Sequence[ReportPaths]) -> list[str]:
    """Where everything is, and how many claims have which verdict."""
    lines = []
    for paths in made:
        lines.append(
            f"{paths.page}: {len(paths.tables)} tables, {len(paths.figures)} figures ({paths.drawn} drawn now)"
        )
        lines += [f"{paths.pdf}: the report as one document"] if paths.pdf is not None else []
        lines += [f"removed {name}: no row makes it any more" for name in paths.removed]
        lines.append("claims: " + ", ".join(f"{count} {verdict}" for verdict, count in paths.verdicts.items() if count))
    return lines


def claims(places: Places, *, local: bool, element: str | None, verdict: str | None) -> tuple[Ledger, list[Entry]]:
    """The ledger, and its entries of one element or verdict. Raises `DeclarationError` for one that no claim has."""
    from maxsim_bench.report.claims import ledger, read_paper
    from maxsim_bench.report.claims.ledger import VERDICTS
    from maxsim_bench.report.declared import Declared
    from maxsim_bench.report.load import load

    declared = Declared.below(places.experiments)
    found = ledger(read_paper(places.experiments / "paper"), load(places.roots(local=local)), declared)
    for option, given, known in (
        ("--element", element, {e.element for e in found.entries}),
        ("--verdict", verdict, set(VERDICTS)),
    ):
        if given is not None and given not in known:
            raise DeclarationError([f"{option} {given}: no claim has it. {suggest(given, known)}"])
    kept = [e for e in found.entries if element in (None, e.element) and verdict in (None, e.verdict)]
    return found, kept


def claims_lines(
    found: Ledger, kept: Sequence[Entry], *, every: bool, element: str | None = None, verdict: str | None = None
) -> list[str]:
    """Counts by element and overall; with `every` or a filter a few lines for each entry that was kept.

    If none was, a line that says so.
    """
    if kept and (every or element is not None or verdict is not None):
        return [line for entry in kept for line in _entry_lines(entry)]
    if verdict is not None:
        among = Counter(entry.verdict for entry in found.entries if element in (None, entry.element))
        there = ", ".join(f"{count} {name}" for name, count in among.most_common())
        return [f"no claim{f' of {element}' if element else ''} has the verdict {verdict!r}; there are: {there}"]
    lines = []
    for record in found.summary().to_dict("records"):
        told = [f"{record[v]} {v}" for v in found.counts() if record[v]]
        ours = f" ({record['by ours']} by ours)" if record["by ours"] else ""
        lines.append(f"{record['element']:<28}{record['claims']:>5}  {', '.join(told)}{ours}")
    total = ", ".join(f"{count} {verdict}" for verdict, count in found.counts().items() if count)
    if found.stood_in():
        lines.append("by ours: those that hold, are better or differ, where nothing published can answer")
        total += f" ({found.stood_in()} by ours)"
    return [*lines, f"{'all':<28}{len(found.entries):>5}  {total}"]


def _entry_lines(entry: Entry) -> list[str]:
    """The verdict; what was published and measured; whether the two compare and where the rows are; what else is known.

    Every line but the first is indented; one that would be empty is left out.
    """
    relation = "" if entry.relation == "=" else f" ({entry.relation})"
    numbers = [f"published {entry.published} {entry.unit}".rstrip() + f"{relation} on {entry.published_on}"]
    if entry.measured_by == "arithmetic":
        numbers.append(f"computed {entry.measured} from sizes, not measured")
    elif entry.measured:
        numbers.append(f"measured {entry.measured} by {entry.measured_by} on {entry.measured_on}")
    if entry.ours:
        numbers.append(f"beside it {entry.ours} by {entry.ours_by}")
    origin = [f"comparable: {entry.comparable}"] if entry.comparable else []
    if entry.cell:
        first, *more = (digest[:SHORT] for digest in entry.cell.split(", "))
        told = ", ".join([f"`maxsim-bench show {first}`", *more])
        origin.append(f"{'rows' if entry.measured else 'rows of ours'}: {told} ({entry.source})")
    if entry.command:
        origin.append(f"command: `{entry.command}`")
    beside = [part for part in (entry.stands_in, entry.reading) if part not in entry.comparable]
    reading = f"reading: {'; '.join(beside)}" if beside else ""
    head = f"{entry.claim_id}: {entry.verdict}: {entry.why}"
    return [head, *(f"  {line}" for line in ("; ".join(numbers), "; ".join(origin), reading) if line)]
