"""The ledger as tables: counts by element, what differs, why something was not measured, and every claim.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from maxsim_bench.report.claims.ledger import KINDS, VERDICTS, Entry, Ledger
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
         *(Column(v, v, _count) for v in VERDICTS), Column("claims", "claims", _count),
         Column("by ours", "by ours", _count)],
        pd.concat([summary, pd.DataFrame([total])], ignore_index=True), sources,
        "Other hardware: what depends on the card, measured on another one than the published and shown beside it in "
        f"the ledger ({', '.join(several for _, several in KINDS.values())}). "
        "Superseded: replaced by the authors themselves. By ours: how many that hold, are better or differ our own "
        "implementation answers, because the published one has nothing that can.",
    )  # fmt: skip
    differing = frame.assign(remarks=[_remarks(e) for e in verdicts.entries])[frame["verdict"] == "differs"]
    shown = (
        "element",
        "metric",
        "unit",
        "relation",
        "published",
        "published_on",
        "measured",
        "measured_by",
        "measured_on",
        "ours",
        "why",
        "remarks",
    )
    yield Table(
        "claims/differs", "Claims that differ",
        [_column(name, roomy=name in ("published_on", "ours", "remarks")) for name in shown],
        differing, sources,
        "Beyond the tolerance on the worse side, or outside a bound (<=, >=). An end of a published range is held to "
        "the tolerance. Remarks: why the two compare in part only, and other readings of the claim.",
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


def _remarks(entry: Entry) -> str:
    """Why the two compare in part only, where they do, and the other readings that this does not say already."""
    part = entry.comparable if entry.comparable.startswith("in part") else ""
    return "; ".join(told for told in (part, entry.reading if entry.reading not in part else "") if told)


def _count(value: object) -> str:
    return "" if value == 0 else str(value)


def _column(name: str, *, roomy: bool = False) -> Column:
    return Column(name, name.replace("_", " "), str, right=False, roomy=roomy)
