"""How a table is set in LaTeX: in a column of a paper, over its text width, in panels, or over several pages.

Room: `report`. Imports nothing else of ours but `names`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from maxsim_bench.report import names

if TYPE_CHECKING:
    from maxsim_bench.report.tables import Column, Table

# Points: a column of two, and the text, of the usual styles of a conference.
COLUMN, TEXT = 219.0, 455.0
_SLACK = 5.0  # points by which an estimate may be short, where prose fills the room
TALL = 45  # lines, with those of wrapped texts, beyond which a table goes over pages
# Columns that say what a line is of.
KEYS = ("device", "gpus", "gpu", "experiment", "collection", "encoder", "shape", "backend", "policy", *names.AXES)
_SHORT = 14  # characters of a text that is never wrapped in its column
_LEAST = 40.0  # points of a column of prose, if its text is as wide
# Room, size, gap between columns, and whether heads are broken at their words: the first that fits is taken.
_SETTINGS = (
    (COLUMN, "footnotesize", 6.0, False), (COLUMN, "footnotesize", 3.0, True), (TEXT, "footnotesize", 6.0, False),
    (TEXT, "footnotesize", 3.0, True), (TEXT, "scriptsize", 3.0, True), (TEXT, "scriptsize", 2.0, True),
)  # fmt: skip
# Points that a digit takes in Computer Modern.
_DIGIT = {"footnotesize": 4.25, "scriptsize": 3.99}
# Advance over that of a digit, where it is another one.
_ADVANCE = {
    **dict.fromkeys("ijl.,;:'|!", 0.56), **dict.fromkeys("()[]", 0.78), **dict.fromkeys("rst", 0.78),
    **dict.fromkeys("fI", 0.64), **dict.fromkeys(" /-", 0.68), **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 1.46),
    **dict.fromkeys("mw", 1.7), **dict.fromkeys("MW", 1.95), **dict.fromkeys("=+<>≥≤−×Δ%±→…", 1.65),
    **dict.fromkeys("bdhknpquvxy", 1.1), **dict.fromkeys("cez", 0.89),
}  # fmt: skip
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$",
    "−": r"$-$", "–": "--", "Δ": r"$\Delta$", "µ": r"$\mu$", "±": r"$\pm$", "·": r"$\cdot$",
    "⌈": r"$\lceil$", "⌉": r"$\rceil$",
    "→": r"$\rightarrow$", "²": r"\textsuperscript{2}", "³": r"\textsuperscript{3}", "…": r"\ldots{}",
}  # fmt: skip


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    # after the end of a line of a table, either would be an argument of that
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped


@dataclass(frozen=True)
class Panel:
    """Columns that stand beside each other: `tabular`'s argument, heads and body as LaTeX, estimated width."""

    spec: str
    heads: list[str]
    lines: list[list[str]]
    width: float


@dataclass(frozen=True)
class Layout:
    """How a table is set.

    Attributes:
        size: command of its font; gap: \\tabcolsep in points.
        wide: over both columns of a paper; long: over pages, which needs a paper, or an appendix, of one column.
    """

    size: str
    gap: float
    wide: bool
    long: bool
    panels: list[Panel]

    @property
    def width(self) -> float:
        """Points across, by the characters."""
        return max(panel.width for panel in self.panels)


@dataclass(frozen=True)
class _Set:
    """A size and a gap, with heads on one line or broken at their words."""

    size: str
    gap: float
    broken: bool
    columns: Sequence[Column] = field(repr=False)
    cells: Sequence[Sequence[str]] = field(repr=False)

    def text(self, text: str) -> float:
        return _DIGIT[self.size] * sum(_ADVANCE.get(character, 1.0) for character in text)

    def body(self, i: int) -> float:
        return max((self.text(line[i]) for line in self.cells), default=0.0)

    def natural(self, i: int) -> float:
        head = self.columns[i].header
        return max(self.body(i), *(self.text(part) for part in ([*_parts(head), ""] if self.broken else [head])))

    def least(self, i: int) -> float:
        """What a column takes at least: its widest word where its text is prose, as in a head that is broken."""
        if max((len(line[i]) for line in self.cells), default=0) <= _SHORT:
            return self.natural(i)
        texts = (self.columns[i].header, *(line[i] for line in self.cells))
        parts = {part for text in texts for part in _parts(text, keys=True)}
        return min(max(map(self.text, parts), default=0.0) + 1.0, self.natural(i))

    def total(self, widths: Sequence[float]) -> float:
        return sum(widths) + 2 * self.gap * len(widths)


def _parts(text: str, *, keys: bool = False) -> list[str]:
    """The pieces between which a line may break: words, halves of words with a hyphen, and of keys and paths."""
    inside = r"(?<=\w\w-)(?=\w\w)" + "|(?<=[_/])" * keys
    return [part for part in re.split(rf"\s+|{inside}", text) if part]


def _breakable(text: str) -> str:
    """LaTeX that may break where `_parts` breaks keys and paths."""
    return text.replace(r"\_", r"\_\allowbreak{}").replace("/", r"/\allowbreak{}")


def layout(table: Table) -> Layout:
    """The largest setting that fits a column, else the text width; then prose is wrapped, then columns in panels."""
    columns, cells = table.columns, table.cells()
    among = range(len(columns))
    for room, size, gap, broken in _SETTINGS:
        one = _Set(size, gap, broken, columns, cells)
        if one.total([one.natural(i) for i in among]) <= room:
            return _made(one, [list(among)], room)
    return _made(one, _split(one, list(among)), TEXT - _SLACK)


def _split(one: _Set, among: list[int]) -> list[list[int]]:
    """The columns in as few panels as fit the text, each with the first ones, which say what a line is."""
    if one.total([one.least(i) for i in among]) <= TEXT - _SLACK:
        return [among]
    first = next((i for i in among if i and one.columns[i].key not in KEYS), 1)
    keys, rest = among[:first], among[first:]
    for count in range(2, len(rest) + 1):
        each = math.ceil(len(rest) / count)
        panels = [keys + rest[i : i + each] for i in range(0, len(rest), each)]
        if all(one.total([one.least(i) for i in panel]) <= TEXT - _SLACK for panel in panels):
            return panels
    return [among]


def _made(one: _Set, panels: list[list[int]], room: float) -> Layout:
    """Panels of a setting; texts that do not fit beside each other wrap in theirs."""
    made, tall = [], 0
    for panel in panels:
        natural = [one.natural(i) for i in panel]
        widths = _shared(natural, [one.least(i) for i in panel], room - one.total([0.0] * len(panel)))
        wraps = [width < wanted for width, wanted in zip(widths, natural, strict=True)]
        spec = "".join(_spec(one.columns[i], w if p else None) for i, w, p in zip(panel, widths, wraps, strict=True))
        heads = [_head(one, i, w, p) for i, w, p in zip(panel, widths, wraps, strict=True)]
        spell = [(lambda text: _breakable(latex_escape(text))) if p else latex_escape for p in wraps]
        lines = [[say(line[i]) for say, i in zip(spell, panel, strict=True)] for line in one.cells]
        # a ragged line is filled to four fifths or so
        tall += sum(
            max(
                (math.ceil(one.text(line[i]) / (0.8 * w)) for i, w, p in zip(panel, widths, wraps, strict=True) if p),
                default=1,
            )
            or 1
            for line in one.cells
        )
        made.append(Panel(spec, heads, lines, one.total(widths)))
    return Layout(one.size, one.gap, room > COLUMN, tall > TALL, made)


def _shared(natural: Sequence[float], least: Sequence[float], room: float) -> list[float]:
    """Widths of columns: what they take, and where that is too much the wrapped ones share the room that is left."""
    if sum(natural) <= room:
        return list(natural)
    floor = [min(n, max(one, _LEAST)) if one < n else n for n, one in zip(natural, least, strict=True)]
    if sum(floor) > room:
        floor = list(least)
    spare = max(room - sum(floor), 0.0)
    wants = [(n - f) ** 0.5 for n, f in zip(natural, floor, strict=True)]  # twice the text: less than twice the width
    widths = list(floor)
    while spare > 0.5 and any(wants):
        given = [spare * want / sum(wants) for want in wants]
        wider = [min(n, w + more) for n, w, more in zip(natural, widths, given, strict=True)]
        spare -= sum(wider) - sum(widths)
        widths = wider
        wants = [want if w < n else 0.0 for want, w, n in zip(wants, widths, natural, strict=True)]
    return [math.floor(w) if one < n and w < n else w for one, n, w in zip(least, natural, widths, strict=True)]


def _spec(column: Column, width: float | None) -> str:
    if width is None:
        return "r" if column.right else "l"
    return rf">{{\ragged{'left' if column.right else 'right'}\arraybackslash}}p{{{width:.0f}pt}}"


def _head(one: _Set, i: int, width: float, wrapped: bool) -> str:
    """A head, on several lines where it is wider than its column."""
    text = one.columns[i].header
    if wrapped or not one.broken or one.text(text) <= one.body(i):
        return latex_escape(text)
    lines: list[str] = []
    for part in _parts(text):
        glue = "" if lines and lines[-1].endswith("-") else " "
        longer = f"{lines[-1]}{glue}{part}" if lines else part
        if lines and one.text(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    if len(lines) == 1:
        return latex_escape(text)
    side = "r" if one.columns[i].right else "l"
    stacked = r"\\".join(map(latex_escape, lines))
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{stacked}\end{{tabular}}"
