"""Sheets of A4 with headings, paragraphs, booktabs tables and pictures, set by matplotlib into one PDF.

Room: `report`. Imports `style` alone of ours. matplotlib is imported in the functions that draw. It has no page
layout, so this is the little that a report needs: words measured by their advance widths, lines broken, tables over
several pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.backends.backend_pdf import PdfPages

# Points (1/72 inch).
WIDTH, HEIGHT = 595.3, 841.9
MARGIN = 48.0
_BODY, _SMALL, _TABLE = 8.5, 7.0, 6.0
_LEAD = 1.38  # line distance over font size
_GAP = 7.0  # between columns
_LEAST = 50.0  # width of a column of prose while others have room to give
# After what a word may be broken: no number (2.6e-04, 1,024) is.
_BREAK = re.compile(r"[;=/]|,(?!\d)|(?<=\w)(?<!\d[eE])-")


@lru_cache(maxsize=4096)
def _advance(character: str, bold: bool) -> float:
    """Advance width of a character at a size of one point."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))
    font.set_size(100, 72)
    return float(font.load_char(ord(character)).linearHoriAdvance) / 65536 / 100


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Points that a line takes."""
    return size * sum(_advance(character, bold) for character in text)


def wrapped(text: str, size: float, room: float, *, bold: bool = False) -> list[str]:
    """Lines no wider than `room` points; a word that is wider is cut."""
    lines, line = [], ""
    for word in text.split():
        for part in _cut(word, size, room, bold):
            longer = f"{line} {part}" if line else part
            if line and width(longer, size, bold=bold) > room:
                lines.append(line)
                line = part
            else:
                line = longer
    return [*lines, line] if line else lines or [""]


def _cut(word: str, size: float, room: float, bold: bool) -> Iterator[str]:
    """Parts of a word that fit, which end at punctuation where one does."""
    while word:
        end = len(word)
        while end > 1 and width(word[:end], size, bold=bold) > room:
            end -= 1
        if end < len(word):
            end = max((found.end() for found in _BREAK.finditer(word) if found.end() <= end), default=end)
        yield word[:end]
        word = word[end:]


class Sheets:
    """Pages in the order in which things are put on them; see `sheets`."""

    def __init__(self, pages: PdfPages, foot: str) -> None:
        self._pages = pages
        self._foot = foot
        self._number = 0
        self._page: Any = None
        self._y = 0.0
        self._turn()

    @property
    def room(self) -> float:
        """Points across between the margins."""
        return WIDTH - 2 * MARGIN

    def title(self, text: str) -> None:
        """The title of the document."""
        self._block([text], 17.0, bold=True, before=0, after=8)

    def heading(self, text: str, *, level: int = 1, keep: float = 0.0) -> None:
        """A heading, on one page with the beginning of what follows: at least `keep` points of it."""
        size, least = {1: (13.0, 110.0), 2: (9.5, 60.0)}[level]
        self._need(size * _LEAD + max(keep, least))
        self._block(wrapped(text, size, self.room, bold=True), size, bold=True, before=12 if level == 1 else 7, after=4)

    def paragraph(self, text: str, *, small: bool = False) -> None:
        """Text over the whole width; a line a time, so that it breaks over pages."""
        size = _SMALL if small else _BODY
        grey = "#555555" if small else "black"
        self._block(wrapped(text, size, self.room), size, before=0, after=5, colour=grey)

    def table(self, headers: Sequence[str], right: Sequence[bool], cells: Sequence[Sequence[str]]) -> None:
        """A table with rules above, below its head and at its end; its head is repeated on every page."""
        widths = _widths(headers, cells, self.room)
        heads = [wrapped(text, _TABLE, w, bold=True) for text, w in zip(headers, widths, strict=True)]
        self._need(_tall(heads) + 3 * _TABLE * _LEAD)
        self._head(heads, right, widths)
        for line in cells:
            texts = [wrapped(text, _TABLE, w) for text, w in zip(line, widths, strict=True)]
            if self._y - _tall(texts) < MARGIN + 14:
                self._rule(0.8, widths)
                self._turn()
                self._head(heads, right, widths)
            self._line(texts, right, widths)
        self._rule(0.8, widths)
        self._y -= 8

    def picture(self, path: Path, *, across: float = 1.0) -> None:
        """A PNG, `across` of the width between the margins."""
        import matplotlib.image

        pixels = matplotlib.image.imread(path)
        wide = across * self.room
        tall = wide * pixels.shape[0] / pixels.shape[1]
        most = HEIGHT - 2 * MARGIN - 60
        if tall > most:
            wide, tall = wide * most / tall, most
        self._need(tall + 30)
        left = (WIDTH - wide) / 2
        ax = self._page.add_axes((left / WIDTH, (self._y - tall) / HEIGHT, wide / WIDTH, tall / HEIGHT))
        ax.imshow(pixels[..., :3], interpolation="none", aspect="auto")
        ax.set_axis_off()
        self._y -= tall + 4

    def close(self) -> None:
        """Write the last page."""
        self._finish()

    def _head(self, heads: Sequence[Sequence[str]], right: Sequence[bool], widths: Sequence[float]) -> None:
        self._rule(0.8, widths)
        self._line(heads, right, widths, bold=True)
        self._rule(0.4, widths)

    def _line(
        self, texts: Sequence[Sequence[str]], right: Sequence[bool], widths: Sequence[float], *, bold: bool = False
    ) -> None:
        x = MARGIN
        for lines, is_right, w in zip(texts, right, widths, strict=True):
            for i, text in enumerate(lines):
                at = x + w if is_right else x
                self._text(at, self._y - _TABLE * (1.05 + _LEAD * i), text, _TABLE, bold=bold, right=is_right)
            x += w + _GAP
        self._y -= _tall(texts)

    def _block(
        self, lines: Sequence[str], size: float, *, before: float, after: float, bold: bool = False,
        colour: str = "black",
    ) -> None:  # fmt: skip
        self._y -= before
        for line in lines:
            self._need(size * _LEAD)
            self._y -= size * _LEAD
            self._text(MARGIN, self._y + 0.3 * size, line, size, bold=bold, colour=colour)
        self._y -= after

    def _text(
        self, x: float, y: float, text: str, size: float, *, bold: bool = False, right: bool = False,
        colour: str = "black",
    ) -> None:  # fmt: skip
        if text:
            self._page.text(
                x / WIDTH, y / HEIGHT, text, fontsize=size, fontweight="bold" if bold else "normal",
                ha="right" if right else "left", va="baseline", color=colour, parse_math=False,
            )  # fmt: skip

    def _rule(self, weight: float, widths: Sequence[float]) -> None:
        from matplotlib.lines import Line2D

        y = (self._y - 1) / HEIGHT
        ends = [MARGIN / WIDTH, (MARGIN + sum(widths) + _GAP * (len(widths) - 1)) / WIDTH]
        self._page.add_artist(Line2D(ends, [y, y], color="black", linewidth=weight))
        self._y -= 2

    def _need(self, tall: float) -> None:
        if self._y - tall < MARGIN + 14:
            self._turn()

    def _turn(self) -> None:
        from matplotlib.figure import Figure as Page

        self._finish()
        self._page = Page(figsize=(WIDTH / 72, HEIGHT / 72))
        self._number += 1
        self._y = HEIGHT - MARGIN

    def _finish(self) -> None:
        if self._page is not None:
            self._text(MARGIN, MARGIN - 14, self._foot, _TABLE, colour="#555555")
            self._text(WIDTH - MARGIN, MARGIN - 14, str(self._number), _TABLE, right=True, colour="#555555")
            self._pages.savefig(self._page)
            self._page = None


def _tall(texts: Sequence[Sequence[str]]) -> float:
    return max(len(lines) for lines in texts) * _TABLE * _LEAD + 1.2


def _widths(headers: Sequence[str], cells: Sequence[Sequence[str]], room: float) -> list[float]:
    """Points for each column: what its widest text takes; where that is too much, wide columns share what is left.

    None becomes narrower than its widest word while others have room to give.
    """
    room -= _GAP * (len(headers) - 1)
    among = range(len(headers))
    body = [max((width(line[i], _TABLE) for line in cells), default=0.0) for i in among]
    # a head wraps at its words; what stands below it asks for the width
    words = [max((width(word, _TABLE, bold=True) for word in head.split()), default=0.0) for head in headers]
    wanted = [max(below, head) + 0.5 for below, head in zip(body, words, strict=True)]
    if sum(wanted) <= room:
        return wanted
    least = _least(headers, cells, wanted, room)
    widths: dict[int, float] = {}
    left = room
    for place, i in enumerate(sorted(among, key=wanted.__getitem__)):
        if wanted[i] > left / (len(wanted) - place):
            break
        widths[i], left = wanted[i], left - wanted[i]  # what takes less than an equal share keeps what it wants
    if sum(widths.values()) + sum(least[i] for i in among if i not in widths) > room + 1e-6:
        widths = {}
    # the others share by the text that they hold in all, and twice the text gets less than twice the width
    held = [max(sum(width(line[i], _TABLE) for line in cells), wanted[i]) ** 0.5 for i in among]
    while free := [i for i in among if i not in widths]:
        left = room - sum(widths.values())
        given = {i: left * held[i] / sum(held[j] for j in free) for i in free}
        short = {i: least[i] for i in free if given[i] < least[i]}
        over = {i: wanted[i] for i in free if given[i] > wanted[i]}
        lacking = sum(least[i] - given[i] for i in short)
        spare = sum(given[i] - wanted[i] for i in over)
        widths |= (short if lacking > spare else over) or short or given
    return [widths[i] for i in among]


def _least(headers: Sequence[str], cells: Sequence[Sequence[str]], wanted: Sequence[float], room: float) -> list[float]:
    """Points below which no column goes, together at most `room`: the widest word, else the widest part of one."""
    whole, parts = [], []
    for i, head in enumerate(headers):
        texts = [(word, True) for word in head.split()]
        texts += [(word, False) for word in {word for line in cells for word in line[i].split()}]
        whole.append(max((width(word, _TABLE, bold=bold) for word, bold in texts), default=0.0) + 0.5)
        pieces = [(part, bold) for word, bold in texts for part in _parts(word)]
        parts.append(max((width(part, _TABLE, bold=bold) for part, bold in pieces), default=0.0) + 0.5)
    least = [max(word, min(want, _LEAST)) for word, want in zip(whole, wanted, strict=True)]
    for lower in (whole, parts):  # the widest first
        for i in sorted(range(len(least)), key=lambda i: -least[i]):
            if sum(least) > room:
                least[i] = lower[i]
    if sum(least) <= room:
        return least
    left, most = room, 0.0  # no word that is wider than the page can be kept whole
    for place, one in enumerate(sorted(least)):
        most = left / (len(least) - place)
        if one > most:
            break
        left -= one
    return [min(one, most) for one in least]


def _parts(word: str) -> Iterator[str]:
    start = 0
    for found in _BREAK.finditer(word):
        yield word[start : found.end()]
        start = found.end()
    if start < len(word):
        yield word[start:]


@contextmanager
def sheets(path: Path, *, title: str, keywords: str) -> Iterator[Sheets]:
    """A PDF to put things into; written when the block ends without an error, and without a date in it."""
    from matplotlib.backends.backend_pdf import PdfPages

    from maxsim_bench.report import style

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    try:
        with (
            style.rc(),
            PdfPages(draft, metadata={"Title": title, "Keywords": keywords, "CreationDate": None}) as pages,
        ):
            made = Sheets(pages, title)
            yield made
            made.close()
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
