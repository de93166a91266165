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
from maxsim_bench.report.elements import artefacts
from maxsim_bench.report.load import load
from maxsim_bench.report.tables import CELL, Column, Table, latex_escape

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
    for command in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", *("\\" + c for c in "&%$#_{}")):
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
