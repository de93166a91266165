"""Where every number comes from: a page for each CSV with its rows, cell by cell, and a link to the row of any cell.

Room: `report`. May import: record, declare. In: rows. Out: `rows/<card>-<experiment>.html` below the report's folder:
for each row the CSV line, command, environment and version of the code that made it, and the claims that it answers.
"""

from __future__ import annotations

import csv
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import AXES, VARIANT, ProfileName
from maxsim_bench.declare.select import Filters, where_text
from maxsim_bench.record.environments import session_of
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import samples_path
from maxsim_bench.report import names
from maxsim_bench.report.claims import Ledger
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import templates

FOLDER = "rows"


@dataclass(frozen=True)
class Origins:
    """Pages of rows, and the way to a cell on them.

    Attributes:
        pages: name below the report's folder → what it shows.
        places: first eight digits of a cell's hash, as tables show it → "rows/h200-forward.html#<hash>".
    """

    pages: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def link(self, shown: str) -> str:
        """The place of the cell with this hash, or with these first eight digits of it; empty where no row has it."""
        return self.places.get(shown[:8], "")

    def page_of(self, source: str) -> str:
        """The page of a CSV; empty for one that holds no rows."""
        name = page_name(source)
        return name if name in self.pages else ""

    def texts(self) -> Iterator[tuple[str, str]]:
        """Name below the report's folder → page."""
        template = templates().get_template("rows.html.j2")
        for name, page in self.pages.items():
            yield name, template.render(**page)


def page_name(source: str) -> str:
    """ "h200/forward.csv" → "rows/h200-forward.html"."""
    return f"{FOLDER}/{PurePosixPath(source).with_suffix('').as_posix().replace('/', '-')}.html"


def origins(results: Results, verdicts: Ledger, declared: Declared, out: Path) -> Origins:
    """The pages of all CSVs that the rows come from; links are relative to where `out` lies."""
    found = Origins()
    claims: dict[str, list[Any]] = {}
    for entry in verdicts.entries:
        if entry.verdict not in ("superseded", "not measured"):
            for digest in filter(None, entry.cell.split(", ")):
                claims.setdefault(digest, []).append(entry)
    by_source: dict[str, dict[str, list[Row]]] = {}
    for row, source in zip(results.rows, results.frame["source"], strict=True):
        by_source.setdefault(source, {}).setdefault(row.cell.hash(), []).append(row)
    for source, cells in sorted(by_source.items()):
        if source not in results.paths:  # made up in memory: there is no file to lead to
            continue
        path, name = results.paths[source], page_name(source)
        lines, beside = _lines(path), out / FOLDER
        found.pages[name] = {
            "title": source,
            "csv": os.path.relpath(path, beside),
            "samples": os.path.relpath(samples_path(path), beside) if samples_path(path).exists() else "",
            "environment": os.path.relpath(path.parent / "environment.json", beside),
            "experiment": next(iter(cells.values()))[0].cell.experiment,
            "cells": [_cell(rows, lines, claims.get(digest, []), declared, results) for digest, rows in cells.items()],
        }
        found.places.update((digest[:8], f"{name}#{digest}") for digest in cells)
    return found


def _lines(path: Path) -> dict[tuple[str, ...], int]:
    """(cell, backend, version) → line of the CSV, the last one where a row was measured again."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        return {
            (record["cell_hash"] or "", record["backend"] or "", record["backend_version"] or ""): reader.line_num
            for record in reader
        }


def _commit(row: Row, results: Results) -> str:
    """The commit of the session that measured the row, shortened; empty where none is recorded."""
    facts = results.environments.get(row.environment_id or "", {})
    return str(session_of(facts, row.measured_at).get("git_commit", ""))[:12]


def _cell(
    rows: list[Row], lines: dict[tuple[str, ...], int], claims: list[Any], declared: Declared, results: Results
) -> dict[str, Any]:
    cell = rows[0].cell
    digest = cell.hash()
    return {
        "hash": digest,
        "axes": names.described(_axes(cell)),
        "command": command(cell, declared),
        "claims": claims,
        "rows": [
            {
                "row": row,
                "line": lines.get((digest, row.backend, row.backend_version), ""),
                "commit": _commit(row, results),
                **_numbers(row),
            }
            for row in sorted(rows, key=lambda row: (row.latency_ms is None, row.latency_ms or 0.0, row.backend))
        ],
    }


def _axes(cell: Cell) -> dict[str, Any]:
    given = cell.model_dump(exclude={"experiment", "gpu", "op"}, exclude_none=True)
    return {axis: value for axis, value in given.items() if not (axis == "seed" and value == 0)}


def command(cell: Cell, declared: Declared) -> str:
    """The command that measures a cell again, on its card; empty for one that no file declares any more."""
    if cell.op == "fidelity":
        words = ["maxsim-bench", "fidelity", str(cell.dataset), "--encoder", str(cell.encoder)]
        words += ["--split", cell.split] if cell.split else []
        words += ["--dtype", cell.dtype] if cell.dtype else []
        return shlex.join([*words, "--force"])
    profiles: tuple[ProfileName, ...] = ("paper", "full", "smoke")
    profile = next(
        (p for p in profiles if any(planned.cell == cell for planned in declared.grid(cell.experiment, cell.gpu, p))),
        None,
    )
    if profile is None:
        return ""
    where: list[str] = []
    for axis, value in _axes(cell).items():
        if axis == "variant":
            where += [f"{VARIANT}{pair}" for pair in str(value).split(";")]
        elif axis in AXES and axis != "seed":
            where.append(where_text(axis, value))
    return Filters(tuple(where)).command([cell.experiment], profile, force=True)


def _numbers(row: Row) -> dict[str, str]:
    """Figures of a row as a reader sees them; what was not measured is empty."""
    spread = f"{names.number(row.latency_p20_ms)} to {names.number(row.latency_p80_ms)}" if row.latency_p20_ms else ""
    memory = None if row.peak_extra_bytes is None else row.peak_extra_bytes / 1e6
    return {
        "ms": names.number(row.latency_ms, 4), "spread": spread, "peak": names.number(memory),
        "speedup": names.number(row.speedup), "ceiling": names.number(row.percent_of_ceiling),
        "deviation": names.number(row.max_abs_err), "ndcg": "" if row.ndcg_at_10 is None else f"{row.ndcg_at_10:.4f}",
    }  # fmt: skip
