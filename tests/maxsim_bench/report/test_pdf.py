"""The report as one PDF: every section in its place, nothing beyond the margins, the same bytes twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.report import pdf as document
from maxsim_bench.report.build import Places, Report, build_report, compose
from maxsim_bench.report.page import page_hash, shortened
from maxsim_bench.report.pdf import write_pdf
from maxsim_bench.report.sheets import _GAP, _TABLE, Sheets, _widths, sheets, width, wrapped

ROOT = Path(__file__).parents[3]
WORDS = "a word that-is-longer-than-any-column-of-a-table 1.25 ΔnDCG@10 ≥ 5e-4 $x$ and_so_on"


@pytest.mark.parametrize("room", [12.0, 40.0, 300.0])
def test_no_line_is_wider_than_its_room_and_no_letter_is_lost(room: float) -> None:
    lines = wrapped(WORDS, 7.0, room)
    assert all(width(line, 7.0) <= room for line in lines)
    assert "".join("".join(lines).split()) == "".join(WORDS.split())


def test_a_measured_width_is_the_one_that_is_drawn() -> None:
    """matplotlib's own renderer, at one pixel a point and without hinting to whole pixels, is the other opinion."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    drawn = TextPath((0, 0), "The worst of 16 rows", size=50, prop=FontProperties(family="DejaVu Sans"))
    assert width("The worst of 16 rows", 50) == pytest.approx(drawn.get_extents().x1, rel=0.03)


@pytest.mark.parametrize(
    "cells",
    [
        [["1", "2", "3"]],
        [["a long sentence " * 9, "another one " * 30, "1.25"]] * 3,
        [["x" * 400, "y" * 300, "z" * 500]],
    ],
)
def test_columns_fit_between_the_margins(cells: list[list[str]]) -> None:
    room = 500.0
    widths = _widths(["one", "two", "three"], cells, room)
    assert sum(widths) + _GAP * 2 <= room + 1e-6
    short = [i for i in range(3) if max(len(line[i]) for line in cells) < 6]
    assert all(widths[i] >= max(width(line[i], _TABLE) for line in cells) for i in short), "numbers never wrap"


def _broken(headers: list[str], cells: list[list[str]], room: float) -> list[str]:
    """Words of a table that do not stand whole on a line."""
    widths = _widths(headers, cells, room)
    assert sum(widths) + _GAP * (len(widths) - 1) <= room + 1e-6
    found = []
    for texts, bold in ((headers, True), *((line, False) for line in cells)):
        for text, across in zip(texts, widths, strict=True):
            whole = set(" ".join(wrapped(text, _TABLE, across, bold=bold)).split())
            found += [word for word in text.split() if word not in whole]
    return found


def test_words_and_numbers_are_whole_while_prose_has_room_to_give() -> None:
    headers = ["collection", "backend", "flash-maxsim", *(f"nDCG@{k}0" for k in range(1, 9)), "remark"]
    line = ["NanoBEIR of one", "all-gather, eager", "0.123", *["2.62e-04"] * 8, "words of a remark that goes on " * 20]
    assert _broken(headers, [line] * 30, 490.0) == []
    assert _broken(["a", "b", "c"], [["unbreakable" * 4, "short ones " * 40, "more words " * 50]], 300.0) == []


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("flash-maxsim/compiled;eager", ["flash-", "maxsim/", "compiled;", "eager"]),
        ("timing=cold,warm", ["timing=", "cold,", "warm"]),
        ("2.62e-04", ["2.62e-", "04"]),  # a number has no place to break, so it is cut where it must be
    ],
)
def test_a_word_that_must_be_broken_is_broken_at_its_punctuation(word: str, lines: list[str]) -> None:
    assert wrapped(word, 10.0, max(width(line, 10.0) for line in lines) + 0.01) == lines


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("It is short.", 20, "It is short."),
        ("One sentence. Another that is too long to be shown.", 30, "One sentence. …"),
        ("words that have no end of a sentence", 20, "words that have no …"),
        ("Including non-PyTorch memory", 24, "Including non-PyTorch …"),
        ("x" * 30, 20, "x" * 18 + " …"),
    ],
)
def test_a_long_text_is_cut_at_a_sentence_or_a_word(text: str, most: int, shown: str) -> None:
    assert shortened(text, most) == shown
    assert len(shown) <= most


def test_a_policy_is_told_in_words_where_it_is_an_axis() -> None:
    assert document._policies("int8: B = 10, timing_policy = cold_l2") == "int8: B = 10, cold L2"
    assert document._policies("timing_policy = another") == "timing_policy = another"


def _document(path: Path) -> Path:
    with sheets(path, title="t", keywords="k") as out:
        out.heading("A heading")
        out.paragraph(WORDS * 20)
        out.table(["n", "text"], [True, False], [[str(i), WORDS] for i in range(120)])
    return path


def test_a_long_table_goes_on_on_further_pages_and_the_bytes_are_the_same_twice(tmp_path: Path) -> None:
    one, two = _document(tmp_path / "one.pdf").read_bytes(), _document(tmp_path / "two.pdf").read_bytes()
    assert one == two
    pages = re.search(rb"/Count (\d+)", one)
    assert pages is not None
    assert int(pages[1]) >= 2


def test_a_failure_leaves_no_half_written_file(tmp_path: Path) -> None:
    def broken() -> None:
        with sheets(tmp_path / "x.pdf", title="t", keywords="k") as out:
            out.picture(tmp_path / "not-there.png")

    with pytest.raises(FileNotFoundError):
        broken()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def report(tmp_path: Path, forward_rows: Any, made: Any) -> Report:
    failed = Row(
        cell=made.cell(B=7), backend="lik", backend_version="1.0", gpu="NVIDIA H200", status="crash",
        error="illegal memory access",
    )  # fmt: skip
    made.written(tmp_path / "results", [*forward_rows, failed])
    return compose([tmp_path / "results"], Places(ROOT / "experiments"))


def test_it_reads_from_the_summary_to_what_was_not_measured(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    headings: list[str] = []
    rows: list[list[str]] = []
    heading, table = Sheets.heading, Sheets.table

    def note_heading(self: Sheets, text: str, *, level: int = 1, keep: float = 0.0) -> None:
        if level == 1:
            headings.append(text)
        heading(self, text, level=level, keep=keep)

    def note_table(self: Sheets, headers: Any, right: Any, cells: Any) -> None:
        assert {len(headers), len(right)} == {len(headers)} | {len(line) for line in cells}
        rows.extend(cells)
        table(self, headers, right, cells)

    monkeypatch.setattr(Sheets, "heading", note_heading)
    monkeypatch.setattr(Sheets, "table", note_table)
    monkeypatch.setattr(document, "PICTURES", ())
    dates = ("2026-03-01", "2026-01-01", "2026-02-01")
    sessions = [{"began": date, "rows": "1", "commit": "", "reached": "SESSION"} for date in dates]
    known = {"id": "e", "rows": 3, "facts": {"gpu": "x"}, "sessions": sessions}
    monkeypatch.setattr(document, "environments", lambda results: [known])
    path = write_pdf(report, tmp_path, tmp_path / "report.pdf")
    assert headings == [
        "Summary", "Environment", "Protocol", "Results", "Goals", "Claims of the paper", "What failed",
        "What was not measured", "Appendix: sessions of every environment",
    ]  # fmt: skip
    assert any("illegal memory access" in line and "LIK" in line for line in rows)
    began = [line[0] for line in rows if line[-1] == "SESSION"]
    assert began == sorted(dates)
    assert any("maxsim-bench run int8 --profile paper" in line for line in rows)
    content = path.read_bytes()
    assert content.startswith(b"%PDF-")
    assert f"data sha256:{page_hash(report.artefacts)}".encode() in content


def test_what_is_left_stands_there_with_its_title_its_counts_and_its_command(
    tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between cells and those with rows lie those that every backend refused, which nobody need ask again."""
    left = {"experiment": "a", "card": "h200", "cells": 5, "done": 3, "refused": 1, "left": True, "command": "do a"}
    of_a_command = left | {"experiment": "b", "cells": None, "done": 0, "refused": 0, "command": "do b"}
    lines = [left, left | {"experiment": "c", "done": 4, "left": False}, of_a_command]
    monkeypatch.setattr(document, "coverage", lambda *of: ({"a": "what a is", "b": "what b is"}, lines))
    monkeypatch.setattr(document, "PICTURES", ())
    tables: list[tuple[Any, Any]] = []
    monkeypatch.setattr(Sheets, "table", lambda self, headers, right, cells: tables.append((headers, cells)))
    write_pdf(report, tmp_path, tmp_path / "report.pdf")
    assert [cells for headers, cells in tables if "with rows" in headers] == [
        [["a", "what a is", "H200", "5", "3", "1", "do a"], ["b", "what b is", "H200", "", "0", "", "do b"]]
    ]


@pytest.mark.slow
def test_the_report_writes_it_where_it_is_asked_to_with_its_pictures(
    tmp_path: Path, forward_rows: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "PICTURES", ("forward/latency-over-B", "not/there"))
    made.written(tmp_path / "results", forward_rows)
    out = tmp_path / "figures"
    places = Places(ROOT / "experiments")
    paths = build_report([tmp_path / "results"], out, places=places, pdf=tmp_path / "deep" / "report.pdf")
    assert paths.pdf is not None
    assert b"/Subtype /Image" in paths.pdf.read_bytes()
    assert paths.pdf.stat().st_size < 2_000_000
