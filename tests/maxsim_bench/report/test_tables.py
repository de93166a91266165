"""Tables: frozen rows give frozen tables, in each spelling."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxsim_bench.record.row import Row
from maxsim_bench.report import names
from maxsim_bench.report.build import Places, compose
from maxsim_bench.report.elements import artefacts
from maxsim_bench.report.latex import COLUMN, TEXT, latex_escape, layout
from maxsim_bench.report.load import load
from maxsim_bench.report.tables import CELL, Column, Table

DATA = Path(__file__).parent / "data"


def table(**changes: Any) -> Table:
    frame = pd.DataFrame({"who": ["a|b", "c_d & 5%"], "ms": [1.23456, float("nan")]})
    fields: dict[str, Any] = {
        "name": "x/y", "title": "A title", "columns": [Column("who", "who", right=False), Column("ms", "time [ms]")],
        "frame": frame, "sources": ("h200/x.csv",), "caption": "A caption.",
    }  # fmt: skip
    return Table(**{**fields, **changes})


@pytest.mark.parametrize("name", ["forward/latency", "forward/memory", "forward/speedup", "summary/forward-h200"])
@pytest.mark.parametrize("suffix", ["md", "tex", "csv"])
def test_frozen_rows_give_frozen_tables(name: str, suffix: str) -> None:
    """The CSVs below data/ are made up; a change of a table's text is a change somebody must look at."""
    found = {a.name: a for a in artefacts(load([DATA / "results"])) if isinstance(a, Table)}
    expected = (DATA / "tables" / f"{name.replace('/', '-')}.{suffix}").read_text(encoding="utf-8")
    assert found[name].texts()[suffix] == expected


def test_markdown_keeps_a_bar_inside_its_cell() -> None:
    assert "| a\\|b | 1.23 |" in table().markdown()


def test_latex_has_booktabs_rules_and_escapes() -> None:
    text = table().latex()
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"c\_d \& 5\%" in text


def test_csv_holds_unrounded_values() -> None:
    lines = list(csv.reader(io.StringIO(table().csv())))
    assert lines == [["who", "ms"], ["a|b", "1.23456"], ["c_d & 5%", ""]]


def test_a_column_that_needs_room_stands_everywhere_but_in_latex() -> None:
    columns = [Column("who", "who", right=False), Column("ms", "time [ms]"), replace(CELL, roomy=True)]
    roomy = table(columns=columns, frame=table().frame.assign(cell_hash="0123456789abcdef"))
    assert "| time [ms] | cell |" in roomy.markdown()
    assert "| 1.23 | 01234567 |" in roomy.markdown()
    assert roomy.csv().splitlines()[1] == "a|b,1.23456,0123456789abcdef"
    assert roomy.latex() == table().latex()
    assert roomy.narrow().markdown() == table().markdown()


def axes(**changes: Any) -> Table:
    frame = pd.DataFrame({"device": ["h200", "h200"], "B": [1000, 2000], "ms": [1.0, 2.0], "cell_hash": ["ab" * 8] * 2})
    columns = [Column("device", "GPU", names.card, right=False), Column("B", "B"), Column("ms", "ms"), CELL]
    return table(columns=columns, frame=frame, **changes)


def test_a_paper_gets_no_hashes_and_no_column_that_says_the_same_in_every_line() -> None:
    assert [column.key for column in axes().for_paper().columns] == ["B", "ms"]
    assert axes().for_paper().caption == "A caption. GPU = H200."
    assert axes(caption="Measured on H200.").for_paper().caption == "Measured on H200."
    assert axes(title="Times on H200").for_paper().caption == "A caption."
    assert "| GPU | B | ms | cell |" in axes().markdown(), "readers of the repository have them"
    one = replace(axes(), frame=axes().frame[:1])
    assert [column.key for column in one.for_paper().columns] == ["device", "B", "ms"], "a line alone keeps its axes"


def test_a_caption_in_a_paper_explains_no_column_that_is_not_there() -> None:
    columns = [*table().columns, Column("peers", "peers when it was set", roomy=True)]
    told = table(columns=columns, frame=table().frame.assign(peers="x"), caption="A. Peers: what others had. B.")
    assert told.for_paper().caption == "A. B."
    assert "Peers: what others had." in told.markdown()


def of(texts: dict[str, str], lines: int = 2, **changes: Any) -> Table:
    """A table of equal lines; what is not called a number is a text."""
    columns = [Column(key, key, right=key.startswith("n")) for key in texts]
    return table(columns=columns, frame=pd.DataFrame([texts] * lines), **changes)


def test_a_narrow_table_stands_in_a_column_and_a_wide_one_across_the_page() -> None:
    assert r"\begin{table}[t]" in table().latex()
    assert r"\centering\footnotesize" in table().latex()
    wide = of({f"n{i}": "123.45" for i in range(10)})
    assert layout(wide).width > COLUMN
    assert r"\begin{table*}[t]" in wide.latex()
    assert r"\end{table*}" in wide.latex()


def test_a_head_that_is_wider_than_its_numbers_is_broken_at_its_words_and_hyphens() -> None:
    columns = [Column(f"n{i}", "flash-maxsim time [ms]") for i in range(4)]
    text = table(columns=columns, frame=pd.DataFrame([{f"n{i}": "1" for i in range(4)}])).latex()
    assert r"\begin{tabular}[b]{@{}r@{}}flash-\\maxsim\\time\\{[}ms]\end{tabular}" in text, "no \\\\[ms]: a distance"
    assert r"\begin{table}[t]" in text


def test_prose_is_wrapped_and_numbers_are_not() -> None:
    told = of({"what": "some words " * 30, "n": "0.123", "why": "other words of a reason " * 20})
    (panel,) = layout(told).panels
    assert panel.spec.count("p{") == 2
    assert "}r>" in panel.spec
    assert panel.width <= TEXT
    key = of({"what": "some words " * 60, "where": "tests/a_long_path_of_a_file/of_tests " * 3})
    assert r"tests/\allowbreak{}a\_\allowbreak{}long" in key.latex()


def test_columns_that_do_not_fit_stand_in_panels_with_their_axes_in_each() -> None:
    frame = pd.DataFrame([{"B": b, **{f"n{i}": 1234567.5 for i in range(20)}} for b in (1, 2)])
    many = table(columns=[Column("B", "B"), *(Column(f"n{i}", f"n{i}", str) for i in range(20))], frame=frame)
    panels = layout(many).panels
    assert [panel.heads[0] for panel in panels] == ["B"] * len(panels)
    assert len(panels) > 1
    assert [head for panel in panels for head in panel.heads[1:]] == [f"n{i}" for i in range(20)], "each once"
    assert layout(many).width <= TEXT
    assert many.latex().count(r"\begin{tabular}{") == len(panels)


def test_a_table_taller_than_a_page_goes_over_several_with_its_head_on_each() -> None:
    assert "longtable" not in of({"n": "1"}, 45).latex().replace("% needs", "")
    long = of({"n": "1"}, 46).latex()
    assert r"\begin{longtable}{r}" in long
    assert long.index(r"\midrule") < long.index(r"\endhead") < long.index(r"\endfoot")
    assert r"\begin{table" not in long
    assert r"\usepackage{array,booktabs,longtable}" in long
    assert "longtable" in of({"a": "words of a long story " * 40}, 12).latex(), "wrapped lines count"


def too_wide(tables: Any) -> set[str]:
    return {
        t.name for t in tables if isinstance(t, Table) and "tex" in t.spellings and layout(t.for_paper()).width > TEXT
    }


def test_made_up_tables_fit_a_page(made: Any, forward_rows: list[Row]) -> None:
    cells = [
        made.cell(experiment="int8", Nq=n, B=b, dtype=d)
        for n in (1, 64)
        for b in (1000, 20_000)
        for d in ("fp16", "bf16")
    ]
    assert too_wide(artefacts(made.results([*forward_rows, *made.sweep(cells)]))) == set()
    assert too_wide(artefacts(load([DATA / "results"]))) == set()


@pytest.mark.slow
def test_every_committed_table_fits_a_page() -> None:
    root = Path(__file__).parents[3]
    assert too_wide(compose([root / "results"], Places()).artefacts) == set()


def test_any_change_of_a_value_a_header_or_the_title_changes_the_hash() -> None:
    same = table().data_hash()
    assert table().data_hash() == same
    assert table(title="Another").data_hash() != same
    assert table(caption="Another.").data_hash() != same
    assert table(columns=[Column("who", "who"), Column("ms", "time [s]")]).data_hash() != same
    changed = table().frame.assign(ms=[1.23457, float("nan")])  # beyond what is shown
    assert table(frame=changed).data_hash() != same


@given(st.text(alphabet=st.characters(codec="ascii", categories=["P", "S", "L", "N"]), max_size=20))
def test_no_special_character_of_latex_survives_unescaped(text: str) -> None:
    escaped = latex_escape(text)
    stripped = escaped
    for command in (
        "{[}", "{*}", r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}",
        *("\\" + c for c in "&%$#_{}"),
    ):  # fmt: skip
        stripped = stripped.replace(command, "")
    assert not set(stripped) & set("&%$#_{}\\~^")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0123456, "0.0123"), (1.0, "1.00"), (999.9, "1000"), (12345.6, "12300"), (4.2e-7, "4.20e-07"),
     (0.0, "0"), (2.5e9, "2.50e+09"), (float("nan"), "")],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value: float, shown: str) -> None:
    assert names.number(value) == shown


@pytest.mark.parametrize(
    ("smallest", "largest", "unit"),
    [(2e6, 110e9, "GB"), (1e6, 2e9, "GB"), (4096, 8.4e9, "MB"), (4096, 110e9, "MB"), (0, 2e9, "GB"),
     (512, 8.4e9, "MB"), (512, 4e6, "kB"), (4096, 4e6, "MB"), (16, 4096, "kB"), (0, 0, "kB")],
)  # fmt: skip
def test_the_memory_of_a_table_has_one_unit_in_which_all_of_it_can_be_read(
    smallest: int, largest: int, unit: str
) -> None:
    memory = names.tabulated(names.METRICS["memory"], pd.DataFrame({"peak_extra_bytes": [smallest, largest, None]}))
    assert memory.unit == unit
    assert memory.factor == {"GB": 1e-9, "MB": 1e-6, "kB": 1e-3}[unit]
    assert all("e" not in names.number(bytes_ * memory.factor) for bytes_ in (smallest, largest))


def test_memory_beyond_any_machine_is_in_the_largest_unit() -> None:
    for bytes_ in (2e15, 1e300):
        memory = names.tabulated(names.METRICS["memory"], pd.DataFrame({"peak_extra_bytes": [4096, bytes_]}))
        assert memory.unit == "GB"


def test_what_is_no_memory_keeps_its_unit() -> None:
    latency = names.METRICS["latency"]
    assert names.tabulated(latency, pd.DataFrame({"latency_ms": [1e-3, 1e3]})) == latency


def test_a_table_of_memory_is_in_its_captions_unit_and_its_csv_in_bytes(made: Any, forward_rows: list[Row]) -> None:
    found = {a.name: a for a in artefacts(made.results(forward_rows))}["forward/memory"]
    assert isinstance(found, Table)
    ours = next(i for i, column in enumerate(found.columns) if column.key == "fused")
    kept = [row.peak_extra_bytes for row in forward_rows if row.backend == "fused" and row.peak_extra_bytes]
    assert "In MB (the CSV: in bytes)." in found.caption
    assert sorted(float(line[ours]) for line in found.cells()) == pytest.approx([b / 1e6 for b in sorted(kept)], 0.01)
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert sorted(float(line["fused"]) for line in lines) == sorted(kept)


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_a_shown_number_is_within_half_a_percent(value: float) -> None:
    assert abs(float(names.number(value)) / value - 1) < 0.0051
