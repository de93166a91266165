"""What a scorer costs in retrieval quality, a line a collection, and what INT8 gains: short enough for the README.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from maxsim_bench.declare.datasets import DATASETS
from maxsim_bench.record.row import Row
from maxsim_bench.report import names
from maxsim_bench.report.elements import element
from maxsim_bench.report.elements.fidelity import INT8_LIMIT, LIMIT, fidelity_rows
from maxsim_bench.report.load import Results
from maxsim_bench.report.paired import Pairs
from maxsim_bench.report.tables import CELL, Column, Table

EXACT, INT8 = ("ours", "peers"), ("token", "document", "peers_int8")
# Column → header and the backends of which the largest |Δ| is shown; a backend in none is only counted.
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ours": ("exact, ours", ("fused", "fused_portable", "search", "search_int8_rescored")),
    "peers": ("exact, peers", ("flash_maxsim", "lik", "maxsim_cpu")),
    "eager": ("eager, chunked", ("eager", "eager_fp32", "eager_tf32", "chunked", "compiled", "compiled_graphs")),
    "token": ("INT8, scale per token, ours", ("fused_int8", "fused_int8_mixed", "search_int8")),
    "document": ("INT8, scale per document, ours", ("fused_int8_doc",)),
    "peers_int8": ("INT8, peers", ("flash_maxsim_int8", "flash_maxsim_int8_mixed")),
    "fp8": ("FP8, ours and LIK's", ("fused_fp8", "fused_fp8_doc", "lik_fp8")),
}
_PLACE = ["dataset", "split", "encoder", "device", "dtype"]


@element
def quality(results: Results) -> Iterator[Table]:
    """A line a data set, encoder, card and precision: the reference's nDCG@10, each kind of scorer's largest |Δ|."""
    frame = fidelity_rows(results)
    if frame.empty:
        return
    lines = [_line(rows) for _, rows in frame.groupby(_PLACE, dropna=False, sort=True)]
    table = pd.DataFrame(lines)
    columns = [
        Column("collection", "data set", right=False),
        Column("encoder", "encoder", right=False),
        Column("device", "GPU", names.card, right=False),
        Column("dtype", "embeddings", right=False),
        Column("reference", "reference nDCG@10", lambda v: "" if pd.isna(v) else f"{v:.4f}"),
        *(Column(key, header, _largest) for key, (header, _) in GROUPS.items() if table[key].notna().any()),
        Column("backends", "backends"),
        Column("verdict", "against the limits", right=False),
        Column("cell_hash", "cell", _short, right=False, roomy=True),
    ]
    sources = set(frame["source"]) | set(results.experiment("int8").frame["source"])
    yield Table(
        "summary/quality", "Retrieval quality: the largest |ΔnDCG@10| of each kind of scorer on the same embeddings",
        columns, table, tuple(sorted(sources)),
        f"Against the FP32 reference over the same embeddings. Limits: {LIMIT:g} for exact scorers, which the paper "
        f"claims for its own, and {INT8_LIMIT:g} for INT8, which this project sets; eager in 16 bits and FP8 are shown "
        "and not judged.",
        notes=(*int8_sentences(results), *_what_they_are(frame["dataset"])),
    )  # fmt: skip


def _what_they_are(datasets: pd.Series) -> Iterator[str]:
    """One note on the data sets of the table, as far as they are known."""
    told = [f"{name}: {DATASETS[name]}." for name in sorted(set(datasets)) if name in DATASETS]
    if told:
        yield " ".join(["What the data sets are.", *told])


def _largest(value: Any) -> str:
    if pd.isna(value):
        return ""
    return "0" if value == 0 else f"{value:.1e}"


def _line(rows: pd.DataFrame) -> dict[str, Any]:
    first = rows.iloc[0]
    size = rows.set_index("backend")["delta"].abs()
    largest = {key: size.reindex(list(backends)).max() for key, (_, backends) in GROUPS.items()}
    scorers = rows[rows["backend"] != "reference"]
    return {
        "collection": str(first["collection"]).removesuffix(" bf16"),
        "encoder": first["encoder"],
        "device": first["device"],
        "dtype": first["dtype"],
        "reference": rows["ndcg_at_10_reference"].max(),
        **largest,
        "backends": int((scorers["status"] == "ok").sum()),
        "verdict": _verdict(scorers, largest),
        "cell_hash": " ".join(sorted(set(rows["cell_hash"]))),  # several where one was ranked to several depths
    }


def _short(digests: str) -> str:
    """The cells of a line, each as `CELL` shows it."""
    return " ".join(CELL.format(digest) for digest in digests.split())


def _verdict(scorers: pd.DataFrame, largest: dict[str, float]) -> str:
    """ "exact: holds, INT8: holds", or by how much not; a scorer that failed is named first."""
    failed = scorers[~scorers["status"].isin(("ok", "unsupported"))]["backend"]
    told = [f"{names.backend(str(b))} failed" for b in failed]
    for what, keys, limit in (("exact", EXACT, LIMIT), ("INT8", INT8, INT8_LIMIT)):
        most = pd.Series([largest[key] for key in keys], dtype=float).max()
        if pd.notna(most):
            told.append(f"{what}: " + ("holds" if most <= limit else f"{most:.1e} exceeds {limit:g}"))
    return ", ".join(told)


def int8_sentences(results: Results) -> Iterator[str]:
    """What INT8 gains in time and bytes and costs in nDCG@10, a sentence for each card that measured it."""
    pairs = Pairs(results)
    for device in sorted(set(results.experiment("int8").frame["device"])):
        rows = [
            row
            for row in results.rows
            if row.cell.experiment == "int8" and row.cell.gpu == device and row.status == "ok"
        ]
        told = [t for kind in ("document", "token") if (t := _gain(kind, rows, pairs, results, device)) is not None]
        if told:
            yield f"What INT8 gains and costs on {names.card(device)}: {'; '.join(told)}."


def _gain(kind: str, rows: Sequence[Row], pairs: Pairs, results: Results, device: str) -> str | None:
    """ "one scale a document is 1.9× as fast as our fp16 ..."; None where no cell has both."""
    backend = {"document": "fused_int8_doc", "token": "fused_int8"}[kind]
    ours = {row.cell.hash(): row for row in rows if row.backend == backend}
    both = [
        (row, ours[row.cell.hash()])
        for row in rows
        if row.backend == "fused" and row.cell.hash() in ours and row.cell.timing_policy == "cold_l2"
        if row.cell.layout == "dense" and row.cell.Nq == 1 and row.flops is not None and row.bytes_min is not None
    ]
    parts = []
    for bound, what, size in (("compute", "products bind", "flops"), ("memory", "reading binds", "bytes_min")):
        # the largest cell of its kind: least of it is the fixed cost of a call
        found = max((b for b in both if b[0].ceiling == bound), key=lambda b: getattr(b[0], size), default=None)
        if found is not None:
            effect, cell = pairs.ratio(*found), found[0].cell
            ratio = effect.ratio if effect is not None else (found[0].latency_ms or 0) / (found[1].latency_ms or 1)
            place = names.described({axis: getattr(cell, axis) for axis in ("Lq", "Ld", "B")})
            parts.append(f"{ratio:.2f}× as fast as our fp16 where {what} ({place})")
            last = found
    if not parts:
        return None
    documents, codes = last[0].input_bytes, last[1].prepare_bytes
    size_told = f", in {100 * codes / documents:.0f} % of its bytes" if documents and codes else ""
    frame = fidelity_rows(results)
    mine = frame[(frame["backend"] == backend) & (frame["device"] == device) & frame["delta"].notna()]
    moved = (
        f", with a |ΔnDCG@10| of at most {mine['delta'].abs().max():.1e} in {len(mine)} audits of "
        f"{mine['dataset'].nunique()} data sets"
        if len(mine)
        else ""
    )
    return f"one scale a {kind} is {' and '.join(parts)}{size_told}{moved}"
