"""What does not flatter: cells where another implementation is faster than ours, wrong results, disturbed measurements.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from maxsim_bench.record.row import WIDE_PERCENT
from maxsim_bench.report import names
from maxsim_bench.report.elements import element
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import CELL, Column, Table

# Ours, and those that it is not compared with: other kernels of ours, which are variants and not rivals. Scores of
# codes are compared with ours of codes where those were measured: half the bytes are no better kernel.
OURS = {"forward": "fused", "training_step": "train_fused"}
OF_CODES = ("int8", "fp8")
VARIANTS = ("fused_", "search", "train_csr", "train_lean", "train_atomic", "train_recompute", "train_stage")
NOISE = 1.02  # a lead below this is within what two sessions differ by


@element
def slower_than_others(results: Results) -> Iterator[Table]:
    """Every cell of every experiment on which some other implementation beats ours by more than 2 %."""
    frame = results.frame[(results.frame["status"] == "ok") & results.frame["latency_ms"].notna()]
    floors = frame.loc[frame["backend"].isin(names.NO_SCORERS), "cell_hash"]
    frame = frame[~frame["cell_hash"].isin(floors)]  # a cell beside what scores nothing compares no implementations
    lines = []
    for (op, _), rows in frame.groupby(["op", "cell_hash"], sort=False):
        own = rows[rows["backend"] == OURS.get(str(op))]
        rivals = rows[~rows["backend"].str.startswith(VARIANTS) & (rows["backend"] != OURS.get(str(op)))]
        if own.empty:
            continue
        for of, others in rivals.groupby(rivals["backend"].map(_codes), sort=True):
            coded = rows[rows["backend"].str.startswith("fused_") & (rows["backend"].map(_codes) == of)]
            mine = (own if of == "" or coded.empty else coded).sort_values("latency_ms").iloc[0]
            best = others.sort_values("latency_ms").iloc[0]
            ratio = mine["latency_ms"] / best["latency_ms"]
            if ratio > NOISE:
                told = {"rival": best["backend"], "rival_ms": best["latency_ms"], "ratio": ratio}
                lines.append({**mine.to_dict(), **told})
    compared = int(frame[frame["backend"].isin(list(OURS.values()))]["cell_hash"].nunique())
    if compared:
        yield _table(lines, compared, results)


def _codes(backend: str) -> str:
    """Of which codes a backend makes scores; "" for operands as they are."""
    return next((codes for codes in OF_CODES if codes in backend), "")


def _table(lines: list[dict[Any, Any]], compared: int, results: Results) -> Table:
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("experiment", "experiment", right=False),
        Column("where", "cell", right=False),
        Column("backend", "ours", names.backend, right=False),
        Column("latency_ms", "ours [ms]"),
        Column("rival_ms", "faster one [ms]"),
        Column("rival", "faster one", names.backend, right=False),
        Column("ratio", "ours / faster one"),
        CELL,
    ]
    frame = pd.DataFrame(lines, columns=[*results.frame.columns, "rival", "rival_ms", "ratio"])
    frame = frame.sort_values("ratio", ascending=False, kind="stable")
    axes = [a for a in names.AXES if a not in ("pairing", "inputs", "precision")]
    frame["where"] = [
        names.described({a: v for a, v in zip(axes, line, strict=True) if pd.notna(v)})
        for line in frame[axes].itertuples(index=False, name=None)
    ]
    return Table(
        "losses/slower",
        "Cells where another implementation is faster than ours",
        columns,
        frame,
        tuple(sorted(set(results.frame["source"]))),
        f"{frame['cell_hash'].nunique()} of {compared} cells, by more than 2 %, largest first; against every backend "
        "not ours, scores of INT8 or FP8 codes against ours of the same codes where those were measured.",
    )  # fmt: skip


@element
def doubtful_rows(results: Results) -> Iterator[Table]:
    """Rows that are wrong, of a throttled card, or whose interval stayed wide: reported, never dropped."""
    frame = results.frame
    capped = frame["throttled"].notna() & (frame["throttled"] != "")
    wide = frame["ci_width_percent"] > WIDE_PERCENT
    chosen = frame[(frame["status"] == "incorrect") | capped | wide].copy()
    if chosen.empty:
        return
    throttled = "throttled: " + chosen["throttled"].fillna("")
    chosen["what"] = throttled.where(capped[chosen.index], "wide interval").mask(
        chosen["status"] == "incorrect", "wrong result"
    )
    refused = (chosen["status"] == "incorrect") & chosen["error"].fillna("").str.startswith("not synchronised")
    chosen["what"] = chosen["what"].mask(refused, "time refused: faster than the card can be")
    grouped = chosen.groupby(["device", "experiment", "backend", "what"], sort=True)
    counted = grouped.agg(
        rows=("cell_hash", "size"), widest=("ci_width_percent", "max"), example=("cell_hash", "first")
    )
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("experiment", "experiment", right=False),
        Column("backend", "backend", names.backend, right=False),
        Column("what", "what", right=False),
        Column("rows", "rows"),
        Column("widest", "widest interval [%]"),
        replace(CELL, key="example", header="for example"),
    ]
    yield Table(
        "losses/doubtful", "Rows to be read with care", columns, counted.reset_index(),
        tuple(sorted(set(chosen["source"]))),
        "A wide interval is one whose half width exceeds 10 % of the median.",
    )  # fmt: skip
