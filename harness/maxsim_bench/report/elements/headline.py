"""The short tables that the README shows.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from maxsim_bench.record.row import Row
from maxsim_bench.report import names
from maxsim_bench.report.elements import element
from maxsim_bench.report.load import Results
from maxsim_bench.report.paired import Pairs, timed_together
from maxsim_bench.report.tables import CELL, Column, Table

SHAPES = {
    (32, 300): "textual", (32, 1024): "long documents", (128, 1024): "medium", (512, 1024): "visual",
    (1024, 1024): "ColPali",
}  # fmt: skip
SIZES = (1000.0, 10000.0)
SHOWN = ("eager", "chunked", "compiled", "flash_maxsim", "lik", "fused")
OURS, PEERS = "fused", ("flash_maxsim", "lik")
RATIOS = (
    "Ours is its newest row that took turns with a peer's; the goals have newer ones, measured without the peers. "
    "Ratios are medians over the rounds of one interleaved run that both were in, with a 95 % bootstrap interval, and "
    "so not the quotient of the two times beside them, in which rounds count that one ran on alone; without an "
    "interval, where the two took no turns, the quotient of two medians. An empty cell: not declared there, or a call "
    "that the backend does not support."
)


@element
def headline(results: Results) -> Iterator[Table]:
    """One query against 1 000 and 10 000 documents at the five canonical shapes, fp16, cold L2, for each card."""
    results = timed_together(results.experiment("forward"), OURS, PEERS)
    frame = results.frame
    chosen = (
        (frame["dtype"] == "fp16") & (frame["timing_policy"] == "cold_l2") & frame["B"].isin(SIZES) & (frame["Nq"] == 1)
    )
    ratios = _Ratios(results)
    for device, rows in frame[chosen].groupby("device", sort=True):
        yield _table(str(device), rows, ratios)


class _Ratios:
    """How many times longer the better peer takes than ours, cell by cell."""

    def __init__(self, results: Results) -> None:
        self._pairs = Pairs(results)
        self._rows: dict[tuple[str, str], Row] = {(row.cell.hash(), row.backend): row for row in results.rows}

    def of(self, cell: pd.DataFrame) -> dict[str, Any]:
        """Ratio and interval of the rows of one cell, indexed by backend; NaN and empty without a peer or ours."""
        times = cell["latency_ms"].reindex([OURS, *PEERS])
        peers = times[list(PEERS)].dropna()
        if peers.empty or pd.isna(times[OURS]):
            return {"ratio": float("nan"), "interval": ""}
        better = str(peers.idxmin())
        at = str(cell.at[OURS, "cell_hash"])
        effect = self._pairs.ratio(self._rows[at, better], self._rows[at, OURS])
        if effect is None:
            return {"ratio": peers[better] / times[OURS], "interval": ""}
        return {"ratio": effect.ratio, "interval": f"{effect.low:.2f} to {effect.high:.2f}" if effect.trusted else ""}


def _ratio_columns(header: str) -> tuple[Column, Column]:
    return (
        Column("ratio", header, lambda v: f"{v:.2f}×" if pd.notna(v) else ""),
        Column("interval", "95 % interval", right=False),
    )


def _table(device: str, rows: pd.DataFrame, ratios: _Ratios) -> Table:
    lines = [_line(shape, size, rows, ratios) for shape in SHAPES for size in SIZES]
    table = pd.DataFrame([line for line in lines if line is not None])
    kept = [b for b in SHOWN if b in table.columns]
    columns = [
        Column("shape", "shape", right=False),
        Column("Lq", "Lq"),
        Column("Ld", "Ld"),
        Column("B", "B", names.count),
        *(Column(b, names.backend(b) + " [ms]") for b in kept),
        *_ratio_columns("best peer / ours"),
        Column("ceiling", "ours, of ceiling", lambda v: f"{v:.0f} %" if pd.notna(v) else ""),
        Column("memory", "ours, extra memory [MB]"),
        Column("eager_memory", "eager's [MB]"),
        replace(CELL, roomy=True),
    ]
    return Table(
        f"summary/forward-{device}", f"One query against a corpus on {names.card(device)}", columns, table,
        tuple(sorted(set(rows["source"]))),
        "fp16, d = 128, cold L2, median of one call. The ceiling is what this card reached "
        "in the same session, in matrix products or streaming reads, or an empty launch, whichever binds. "
        f"{RATIOS} OOM: ran out of memory.",
        "tab:fwd",
    )  # fmt: skip


def _line(shape: tuple[int, int], size: float, rows: pd.DataFrame, ratios: _Ratios) -> dict[str, Any] | None:
    here = rows[(rows["Lq"] == shape[0]) & (rows["Ld"] == shape[1]) & (rows["B"] == size)].set_index("backend")
    if here.empty:
        return None
    shown = {
        name: here.at[name, "latency_ms"]
        if here.at[name, "status"] == "ok"
        else names.STATUS_WORDS[str(here.at[name, "status"])]
        for name in SHOWN
        if name in here.index
    }
    own = here.loc[OURS] if OURS in here.index else pd.Series(dtype=float)
    return {
        "shape": SHAPES[shape], "Lq": shape[0], "Ld": shape[1], "B": size, **shown,
        **ratios.of(here),
        "ceiling": own.get("percent_of_ceiling", float("nan")),
        "memory": own.get("peak_extra_bytes", float("nan")) / 1e6,
        "eager_memory": here["peak_extra_bytes"].get("eager", float("nan")) / 1e6,
        "cell_hash": here["cell_hash"].iloc[0],
    }  # fmt: skip


@element
def limits(results: Results) -> Iterator[Table]:
    """Ours beside the better peer where the choice matters: long queries, many queries, ragged and wide documents."""
    results = timed_together(results.experiment("forward_limits"), OURS, PEERS)
    frame = results.frame
    chosen = (frame["dtype"] == "fp16") & (frame["timing_policy"] == "cold_l2")
    ratios = _Ratios(results)
    for device, rows in frame[chosen].groupby("device", sort=True):
        lines = [_limit(cell, ratios) for _, cell in rows.groupby("cell_hash", sort=False)]
        table = pd.DataFrame([line for line in lines if line is not None])
        if table.empty:
            continue
        columns = [
            Column("Nq", "Nq", "{:.0f}".format),
            Column("B", "B", names.count),
            Column("documents", "documents", right=False),
            Column("Lq", "Lq", "{:.0f}".format),
            Column("Ld", "Ld", right=False),
            Column("d", "d", "{:.0f}".format),
            Column("eager", "eager [ms]"),
            Column("peer", "better peer [ms]"),
            Column("ours", "fused (ours) [ms]"),
            *_ratio_columns("better peer / ours"),
            Column("ceiling", "ours, of ceiling", lambda v: f"{v:.0f} %" if pd.notna(v) else ""),
            replace(CELL, roomy=True),
        ]
        yield Table(
            f"summary/limits-{device}", f"Where the choice of implementation matters, on {names.card(str(device))}",
            columns, table, tuple(sorted(set(rows["source"]))),
            "fp16, cold L2, median of one call. The better peer is the faster of flash-maxsim"
            f" and late-interaction-kernels. {RATIOS} The ceiling is the best that the card reached in the session, in"
            " products (the library's or those of a loop that only multiplies), in streaming reads, or an empty launch,"
            " whichever binds. Documents of their own: every query has other ones, as many as column B says.",
        )  # fmt: skip


def _limit(cell: pd.DataFrame, ratios: _Ratios) -> dict[str, Any] | None:
    here = cell.set_index("backend")
    if OURS not in here.index or here.at[OURS, "status"] != "ok":
        return None
    own, times = here.loc[OURS], here["latency_ms"]
    peer = times.reindex(list(PEERS)).min()
    ragged = pd.notna(own["length_distribution"])
    return {
        "Nq": own["Nq"], "B": own["B"], "Lq": own["Lq"], "d": own["d"],
        "documents": "their own" if own["pairing"] == "candidates" else "shared",
        "Ld": f"{own['length_distribution']} ({own['layout']})" if ragged else f"{own['Ld']:.0f}",
        "eager": times.get("eager", float("nan")), "peer": peer, "ours": own["latency_ms"],
        **ratios.of(here), "ceiling": own["percent_of_ceiling"], "cell_hash": own["cell_hash"],
    }  # fmt: skip
