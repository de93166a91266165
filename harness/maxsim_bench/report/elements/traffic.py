"""Bytes between a card's memory and its caches in one call: what its counters saw beside what the paper computes.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pandas as pd

from maxsim_bench.record.row import Row
from maxsim_bench.report import counted, names
from maxsim_bench.report.elements import element
from maxsim_bench.report.goals import metric_of
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import CELL, Column, Table

_BASELINE = "eager_tf32"  # tab:traffic divides by it
_FIGURES = {"computed": "hbm_gb_computed", "read": "hbm_read_gb", "written": "hbm_written_gb"}  # GB, of a row's extra


@element
def traffic(results: Results) -> Iterator[Table]:
    """Every row of the experiment traffic with both readings, and how many times its bytes eager moves by either."""
    chosen = results.experiment("traffic")
    lines = [line for row in chosen.rows if row.status == "ok" and (line := _line(row))["computed"] is not None]
    if not lines:
        return
    frame = pd.DataFrame(lines)
    frame["written"] *= 1e3  # who materialises nothing writes a few MB at most
    eager = frame[frame["backend"] == _BASELINE].set_index("cell_hash")
    for reading in ("computed", "counted"):
        frame[f"{reading}_ratio"] = frame["cell_hash"].map(eager[reading]) / frame[reading]
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("B", "B", names.count),
        Column("Lq", "Lq"),
        Column("Ld", "Ld"),
        Column("backend", "backend", names.backend, right=False),
        Column("computed", "computed [GB]"),
        Column("counted", "counted [GB]"),
        Column("read", "read [GB]"),
        Column("written", "written [MB]"),
        Column("computed_ratio", "eager / it, computed"),
        Column("counted_ratio", "eager / it, counted"),
        Column("rate", "counted [GB/s]"),
        CELL,
    ]
    order = ["device", "B", "Lq", "Ld", "computed", "backend"]
    frame = frame.sort_values(order, ascending=[key != "computed" for key in order], kind="stable")
    yield Table(
        "traffic/bytes", "Memory traffic of one call", columns, frame.reset_index(drop=True),
        tuple(sorted(set(chosen.frame["source"]))),
        "Computed: as the paper prints it, 16-bit inputs and the scores once, and twice what is materialised of the "
        "similarities. Counted: by the counters of the card's memory (Nsight Compute), with caches emptied before "
        "every kernel of the call, so what one kernel leaves for the next counts again; an empty cell was not counted. "
        f"Eager: {names.backend(_BASELINE)}, whose inputs are twice the bytes that are computed. The rate is counted "
        "bytes over the median time of calls that were not counted.",
        "tab:traffic",
        tuple(_notes(chosen.rows)),
    )  # fmt: skip


def _line(row: Row) -> dict[str, object]:
    return {
        "device": row.cell.gpu, "B": row.cell.B, "Lq": row.cell.Lq, "Ld": row.cell.Ld, "backend": row.backend,
        **{column: metric_of(row, f"extra.{figure}") for column, figure in _FIGURES.items()},
        "counted": counted.traffic_gb(row), "rate": counted.traffic_gbs(row), "cell_hash": row.cell.hash(),
    }  # fmt: skip


def _notes(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        told = counted.refuted(row) if row.status == "ok" else None
        if told is not None:
            yield f"{names.backend(row.backend)} at Lq = {row.cell.Lq}: {told}; no claim is judged by it."
