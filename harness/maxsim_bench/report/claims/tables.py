"""The ledger as tables: counts by element, what differs, why something was not measured, and every claim.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from maxsim_bench.report.claims.ledger import VERDICTS, Entry, Ledger
from maxsim_bench.report.claims.unmeasured import covering
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import Column, Table


def ledger_tables(verdicts: Ledger, results: Results) -> Iterator[Table]:
    """Four tables; all follow from every CSV, since any row may answer a claim."""
    sources = tuple(sorted(set(results.frame["source"])))
    frame = verdicts.frame()
    summary = verdicts.summary()
    total = {"element": "all", "title": "", **summary.drop(columns=["element", "title"]).sum().to_dict()}
    yield Table(
        "claims/summary", "Verdicts on the paper's claims, by element",
        [Column("element", "element", right=False), Column("title", "what it shows", right=False),
         *(Column(v, v, _count) for v in VERDICTS), Column("claims", "claims", _count)],
        pd.concat([summary, pd.DataFrame([total])], ignore_index=True), sources,
        "Other hardware: a time or a ratio of times, measured on another card than the published one, shown beside it "
        "in the ledger. Superseded: replaced by the authors themselves.",
    )  # fmt: skip
    differing = frame[frame["verdict"] == "differs"]
    shown = (
        "element",
        "metric",
        "unit",
        "published",
        "published_on",
        "measured",
        "measured_by",
        "measured_on",
        "ours",
        "why",
    )
    yield Table(
        "claims/differs", "Claims that differ", [_column(name) for name in shown], differing, sources,
        "Beyond the tolerance on the worse side, or outside the stated bound.",
    )  # fmt: skip
    missing = frame[frame["verdict"] == "not measured"]
    grouped = missing.groupby(["element", "why"], sort=False)["command"]
    reasons = grouped.agg(claims="size", command=covering).reset_index()
    yield Table(
        "claims/not-measured", "Claims that are not measured, and why",
        [_column("element"), _column("why"), Column("claims", "claims", _count),
         Column("command", "command", str, right=False)],
        reasons, sources,
        "A command has the options that the claims of its line share, so it may measure more. Where the reason names "
        "what is not to be had here, it measures what comes nearest; without one there is none.",
    )  # fmt: skip
    yield Table(
        "claims/ledger", "Every claim", [_column(name) for name in Entry.__dataclass_fields__], frame, sources,
        spellings=("csv",),
    )  # fmt: skip


def _count(value: object) -> str:
    return "" if value == 0 else str(value)


def _column(name: str) -> Column:
    return Column(name, name.replace("_", " "), str, right=False)
