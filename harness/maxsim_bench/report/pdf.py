"""The report as one PDF to be read and handed on: what the page shows, without what only a click can open.

Room: `report`. May import: record, declare. In: the tables, pictures, ledger and environments of a report that was
written; out: summary, environment, protocol, results, goals, verdicts, what failed, what was not measured, sessions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.report import names
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.page import PROTOCOL, coverage, environments, failures, page_hash, shortened
from maxsim_bench.report.sheets import Sheets, sheets
from maxsim_bench.report.tables import Table

if TYPE_CHECKING:
    from maxsim_bench.report.build import Report

TITLE = "MaxSim benchmark: reproduction report"
# Pictures that are shown where they exist, in this order; the page has all.
PICTURES = (
    "forward/latency-over-Lq", "forward/ceiling-over-Lq", "lengths/square-ahead-h200", "multiquery/latency-over-Nq",
    "memory_scaling/footprint", "frontier_chunked/frontier", "training_step/latency-over-Ld", "training_parity/losses",
    "training_parity/differences",
    "fidelity/difference",
)  # fmt: skip
# Tables of results beside those of the summary.
TABLES = ("training_parity/parity", "training_capacity/largest", "memory_scaling/largest", "traffic/bytes")
# Columns of the widest tables, by the beginning of their names; the files have all.
COLUMNS = {
    "goals/": ("goal", "bound", "worst", "rows", "verdict", "before", "missed", "binds"),
    "claims/differs": ("element", "metric", "published", "published_on", "measured", "measured_by", "ours", "why"),
}
_LONGEST = 600  # characters of a table's cell


def write_pdf(report: Report, figures: Path, path: Path) -> Path:
    """Write the PDF of a report whose figures lie below `figures`.

    Raises:
        OSError: if a picture cannot be read or the file not be written; no half-written file is left.
    """
    tables = {a.name: a for a in report.artefacts if isinstance(a, Table)}
    drawn = {a.name: a for a in report.artefacts if isinstance(a, Figure)}
    with sheets(path, title=TITLE, keywords=f"data sha256:{page_hash(report.artefacts)}") as out:
        out.title(TITLE)
        _summary(out, report)
        for name, table in tables.items():
            if name.startswith("summary/"):
                _table(out, table)
        _environment(out, report)
        out.heading("Protocol")
        out.paragraph(PROTOCOL)
        out.heading("Results", keep=250)
        for name in PICTURES:
            if name in drawn:
                _picture(out, drawn[name], figures)
        for name in TABLES:
            if name in tables:
                _table(out, tables[name])
        out.heading("Goals")
        for name, table in tables.items():
            if name.startswith("goals/"):
                _table(out, table)
        out.heading("Claims of the paper")
        for name in ("claims/summary", "claims/differs"):
            _table(out, tables[name])
        _failed(out, report, tables)
        _missing(out, report, tables)
        _sessions(out, report)
    return path


def _summary(out: Sheets, report: Report) -> None:
    counts, frame = report.ledger.counts(), report.results.frame
    measured = len(report.results.measured)
    out.heading("Summary")
    out.paragraph(
        f"{len(frame)} rows, {measured} of them measured. Of the published numbers {counts['holds']} hold, "
        f"{counts['better']} are better here, {counts['differs']} differ, {counts['other hardware']} stand beside a "
        f"measurement on other hardware, {counts['not measured']} are not measured; {counts['superseded']} were "
        f"superseded by their authors. {report.ledger.basis()}"
    )
    statuses = frame.groupby(["device", "status"]).size().unstack(fill_value=0)
    cells = [[names.card(str(device)), *(str(n) for n in line)] for device, line in statuses.iterrows()]
    out.table(["device", *(str(s) for s in statuses.columns)], [False] + [True] * len(statuses.columns), cells)


def _environment(out: Sheets, report: Report) -> None:
    """The environment of most rows in full, and of every other one what is different in it."""
    known = sorted(environments(report.results), key=lambda e: -e["rows"])
    out.heading("Environment")
    if not known:
        out.paragraph("No environment is recorded.")
        return
    first: dict[str, Any] = known[0]["facts"]
    out.paragraph(f"{known[0]['id']}: {known[0]['rows']} rows.")
    out.table(["what", "value"], [False, False], [[str(k), str(v)] for k, v in first.items()])
    others = []
    for one in known[1:]:
        apart = {k: one["facts"].get(k, "not recorded") for k in first if one["facts"].get(k) != first[k]}
        others.append([one["id"], str(one["rows"]), "; ".join(f"{k}: {v}" for k, v in apart.items()) or "nothing"])
    if others:
        out.paragraph("Other environments, and what differs from the one above:")
        out.table(["environment", "rows", "differs in"], [False, True, False], others)


def _sessions(out: Sheets, report: Report) -> None:
    """Last: pages of it say under what the numbers came about, and nobody reads it before them."""
    told = [
        [s["began"], s["rows"], s["commit"], s["reached"]] for e in environments(report.results) for s in e["sessions"]
    ]
    if told:
        out.heading("Appendix: sessions of every environment")
        lines = sorted(told, key=lambda line: (not line[0][:1].isdigit(), line[0]))  # what has no date is last
        out.table(["session began", "rows", "commit", "ceilings reached in it"], [False, True, False, False], lines)


def _table(out: Sheets, table: Table) -> None:
    out.heading(table.title + (f" ({table.element})" if table.element else ""), level=2)
    cells = [[_policies(_short(text)) for text in line] for line in table.cells()]
    wanted = next((keys for start, keys in COLUMNS.items() if table.name.startswith(start)), None)
    kept = [
        i
        for i, column in enumerate(table.columns)
        if any(line[i] for line in cells) and (wanted is None or column.key in wanted)
    ]
    columns = [table.columns[i] for i in kept]
    if columns:
        out.table([c.header for c in columns], [c.right for c in columns], [[line[i] for i in kept] for line in cells])
    else:
        out.paragraph("None.")
    for text in (table.caption, *table.notes):
        if text:
            out.paragraph(text, small=True)


def _short(text: str) -> str:
    """A long number to four digits, a long message by its beginning: the CSV has them whole."""
    if len(text) > _LONGEST:
        return shortened(text, _LONGEST)
    if len(text) > 9:
        try:
            return names.number(float(text), 4)
        except ValueError:
            return text
    return text


def _policies(text: str) -> str:
    """A timing policy as `names` words it, where a place is told by its axes."""
    return re.sub(r"\btiming_policy = (\w+)", lambda found: names.POLICIES.get(found[1], found[0]), text)


def _picture(out: Sheets, figure: Figure, folder: Path) -> None:
    out.picture(folder / f"{figure.name}.png", across=0.6)
    out.paragraph(f"{figure.title}. {figure.caption}", small=True)


def _failed(out: Sheets, report: Report, tables: dict[str, Table]) -> None:
    out.heading("What failed")
    found = failures(report.results.frame)
    if found:
        _rows(
            out, ["device", "experiment", "backend", "status", "cells", "why"], "nnnnrn",
            [
                [names.card(f["device"]), f["experiment"], f["backend"], f["status"], f["cells"], f["reason"]]
                for f in found
            ],
        )  # fmt: skip
    else:
        out.paragraph("No row failed.")
    for name in ("losses/slower", "losses/doubtful"):
        if name in tables:
            _table(out, tables[name])


def _missing(out: Sheets, report: Report, tables: dict[str, Table]) -> None:
    out.heading("What was not measured")
    out.paragraph(
        "Experiments of which declared cells of the profile paper have no row, by card, with the command that measures "
        "them there; and what commands of their own measure, whose cells no file declares, where it has no row at all. "
        "With rows: measured, or saying why there is no number. Refused: every row of the cell says that the backend "
        "does not take it."
    )
    titles, covered = coverage(report.results, report.declared)
    _rows(
        out, ["experiment", "what it measures", "card", "cells", "with rows", "refused", "command, on that card"],
        "nnnrrrn",
        [
            [c["experiment"], titles[c["experiment"]], names.card(c["card"]), c["cells"] or "", c["done"],
             c["refused"] or "", c["command"]]
            for c in covered
            if c["left"]
        ],
    )  # fmt: skip
    _table(out, tables["claims/not-measured"])


def _rows(out: Sheets, headers: Sequence[str], sides: str, lines: Sequence[Sequence[Any]]) -> None:
    out.table(headers, [side == "r" for side in sides], [[str(value) for value in line] for line in lines])
