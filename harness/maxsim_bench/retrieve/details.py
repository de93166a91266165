"""What a fidelity row leaves out: the manifest, the queries that moved and why, and every query's nDCG@10.

Room: `retrieve`. May import: declare, record, backends. Two small files a cell beside the store:
`fidelity/<cell>.json`, and
`fidelity/<cell>.csv` with a line a query: the reference's nDCG@10 and, where a backend differs, its difference.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.files import replace_file

if TYPE_CHECKING:
    from maxsim_bench.retrieve.findings import Finding

REFERENCE = "reference"  # what the others are compared with; also the name of a backend, whose difference is none
MOVED = 100  # queries told for each backend; the number of all is in the row


def stem(cell: Cell) -> str:
    """Name of a cell's files: what can be read, and the cell's hash."""
    parts = [str(p) for p in (cell.dataset, cell.split, cell.encoder, cell.dtype) if p]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)) + f"-{cell.hash()}"


def write(store: Path, cell: Cell, findings: Sequence[Finding]) -> None:
    """Write or complete the two files of a cell; what other backends left there stays."""
    folder = store.parent / "fidelity"
    usable = [f for f in findings if f.facts]
    if not usable:
        return
    path = folder / f"{stem(cell)}.json"
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"backends": {}}
    told.update(cell=cell.model_dump(exclude_none=True), dataset_hash=usable[0].dataset_hash)
    told.update({k: v for k, v in usable[0].facts.items() if k != "row"})
    for finding in usable:
        told["backends"][finding.backend] = _told(finding)
    replace_file(path, (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode())
    _write_queries(folder / f"{stem(cell)}.csv", usable)


def read_queries(path: Path) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """(query → reference nDCG@10, backend → query → difference), as `write` left them; no difference is 0."""
    with path.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    backends = [name for name in (lines[0] if lines else {}) if name not in ("query", REFERENCE)]
    reference = {line["query"]: float(line[REFERENCE]) for line in lines}
    return reference, {b: {line["query"]: float(line[b] or 0.0) for line in lines} for b in backends}


def _told(finding: Finding) -> dict[str, Any]:
    entry: dict[str, Any] = {"version": finding.version, "exact": finding.exact, "tolerance": finding.tolerance}
    if finding.failure is not None:
        return {**entry, "status": finding.failure[0], "error": finding.failure[1]}
    made = finding.audit
    assert made is not None
    causes = [m.cause for m in made.moved]
    return {
        **entry,
        "means": made.evaluation.means,
        "delta": made.delta,
        "interval": made.interval,
        "diagnosis": list(finding.diagnosis),
        "suspicious": made.suspicious,
        "without_result": list(made.evaluation.missing),
        "without_relevant": list(made.evaluation.without_relevant),
        "causes": {cause: causes.count(cause) for cause in sorted(set(causes))},
        # those that changed the measure first, then the largest exchanges
        "moved": [asdict(m) for m in sorted(made.moved, key=lambda m: (-abs(m.ndcg - m.reference), -m.size))[:MOVED]],
    }


def _write_queries(path: Path, findings: Sequence[Finding]) -> None:
    audits = {f.backend: f.audit for f in findings if f.audit is not None and f.backend != REFERENCE}
    if not audits:
        return
    known: dict[str, dict[str, float]] = read_queries(path)[1] if path.exists() else {}
    reference = {q: v["ndcg_at_10"] for q, v in next(iter(audits.values())).reference.per_query.items()}
    for name, made in audits.items():
        known[name] = {q: v["ndcg_at_10"] - reference[q] for q, v in made.evaluation.per_query.items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["query", REFERENCE, *known])
    for query, value in reference.items():
        writer.writerow([query, value, *(known[b].get(query, 0.0) or "" for b in known)])
    replace_file(path, out.getvalue().encode())
