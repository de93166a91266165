"""One table, three spellings: Markdown for readers of the repository, LaTeX (booktabs) for a paper, CSV for a program.

Room: `report`. Imports nothing else of ours but `names` and `latex`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jinja2
import pandas as pd

from maxsim_bench.report import names
from maxsim_bench.report.latex import KEYS, latex_escape, layout

Format = Callable[[Any], str]


def shown(value: Any) -> str:
    """A cell's text: three significant digits for a float, nothing for what is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return names.number(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column:
    """A column: key in the frame, header with its unit, how a value is spelled, whether it is a number.

    Attributes:
        roomy: it stands where there is room for it (files of the repository, page, CSV), not in the column of a paper
            nor in the README.
    """

    key: str
    header: str
    format: Format = shown
    right: bool = True
    roomy: bool = False


# What leads from a number to its row: `maxsim-bench show CELL`, and the link on the page.
CELL = Column("cell_hash", "cell", lambda digest: str(digest)[:8], right=False)


@dataclass(frozen=True)
class Table:
    """A table of an element: what a reader sees, and the CSVs it follows from.

    Attributes:
        name: path below the output folder, without suffix ("forward/latency").
        title, caption: plain text.
        columns, frame: what stands in it; the frame holds unrounded values.
        sources: CSVs (as `Results.paths` names them) that it follows from.
        element: label of the paper's element that it answers, if one.
        notes: sentences below the caption.
        spellings: suffixes of the files it is written to; a table too long to be read is a CSV only.
    """

    name: str
    title: str
    columns: Sequence[Column]
    frame: pd.DataFrame
    sources: tuple[str, ...]
    caption: str = ""
    element: str | None = None
    notes: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ("md", "tex", "csv")

    def texts(self) -> dict[str, str]:
        """Suffix → content of each of its files."""
        spell = {"md": self.markdown, "tex": self.latex, "csv": self.csv}
        return {suffix: spell[suffix]() for suffix in self.spellings}

    def cells(self) -> list[list[str]]:
        """The body as text."""
        return [
            [column.format(value) for column, value in zip(self.columns, line, strict=True)]
            for line in self.frame[[c.key for c in self.columns]].itertuples(index=False, name=None)
        ]

    def markdown(self) -> str:
        """A GitHub table with its caption below."""
        return _render("table.md.j2", self)

    def latex(self) -> str:
        """A `table` with booktabs rules, as wide as `layout` says; its first line names the packages that it needs."""
        shown = self.for_paper()
        return templates().get_template("table.tex.j2").render(table=shown, layout=layout(shown))

    def narrow(self) -> Table:
        """Without the columns that need room."""
        return replace(self, columns=[column for column in self.columns if not column.roomy])

    def for_paper(self) -> Table:
        """Without what needs room, hashes of cells, and axes with one value in all lines, which the caption tells."""
        table, caption = self.narrow(), self.caption
        for column in self.columns:
            if column.roomy:  # nor does the caption explain it
                caption = re.sub(rf"\s*\b{re.escape(column.key.capitalize())}: [^.]*\.", "", caption).strip()
        columns: list[Column] = []
        told: list[str] = []
        for column in table.columns:
            values = {column.format(value) for value in table.frame[column.key]}
            if column.format is CELL.format:
                continue
            if column.key not in KEYS or len(values) != 1 or len(table.frame) < 2:
                columns.append(column)
                continue
            (value,) = values
            said = value if column.key in ("device", "gpu") else f"{column.key} = {value}"
            known = re.search(rf"(?<!\w){re.escape(said)}(?!\w)", f"{self.title} {caption}")
            if value not in ("", "–") and not known:
                told.append(f"{column.header} = {value}")
        if not columns:
            return table
        caption = " ".join(text for text in (caption, ", ".join(told) + "." * bool(told)) if text)
        return replace(table, columns=columns, caption=caption)

    def csv(self) -> str:
        """Unrounded values under the keys of the columns."""
        return str(self.frame[[c.key for c in self.columns]].to_csv(index=False, lineterminator="\n"))

    def data_hash(self) -> str:
        """SHA-256 of what the table says, independent of its spellings' layout."""
        told = "\x1f".join([self.title, self.caption, *(c.header for c in self.columns), *self.notes])
        body = "\x1e".join("\x1f".join(line) for line in self.cells())
        return hashlib.sha256(f"{told}\x1e{body}\x1e{self.csv()}".encode()).hexdigest()


def markdown_escape(text: str) -> str:
    """Text that a table of Markdown keeps in its cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


@cache
def templates() -> jinja2.Environment:
    """The templates of this room; an undefined name is an error, HTML is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("maxsim_bench.report", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"tex": latex_escape, "md": markdown_escape}
    return environment


def _render(template: str, table: Table) -> str:
    return templates().get_template(template).render(table=table, cells=table.cells())
