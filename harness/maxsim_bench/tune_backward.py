"""Write the table of backward paths from measured rows of `backward_paths`.

    python -m maxsim_bench.tune_backward                # prints the table that results/ gives
    python -m maxsim_bench.tune_backward --write        # replaces maxsim/training/paths.json

Orchestration beside `cli.py`. In: rows of whole training steps that differ in the path of dD only. Out: the rules of
`maxsim/training/paths.json`, each with what it was seen to gain. Of the deterministic paths; one threshold on one fact
of the shape at most, and only where it pays: a table that follows every row follows noise. May import every room.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any

from maxsim_bench.modules import command_parser
from maxsim_bench.record.row import Row

# Backends of the experiment and the path each pins; atomics are left out, their gradients change from run to run.
PATHS = {"train_csr": "csr", "train_csr_sort": "csr_sort", "train_lean": "onehot"}
FACTS = ("entries_per_document", "Ld", "documents")
WORTH = 1.02  # a rule must make the steps it decides this much faster in the mean, more than sessions differ by
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Point:
    """One measured shape: its facts as `choose_backward` sees them, and milliseconds by path."""

    facts: dict[str, int]
    ms: dict[str, float]


def points(rows: Sequence[Row]) -> list[Point]:
    """A point for each cell that more than one path was measured on (cold L2, all queries with all documents)."""
    from maxsim.training.csr import log_tokens_of
    from maxsim.training.geometry import Geometry

    found: dict[str, Point] = {}
    for row in rows:
        cell, path = row.cell, PATHS.get(row.backend)
        sizes = (cell.Nq, cell.B, cell.Lq, cell.Ld)
        if path is None or row.latency_ms is None or cell.timing_policy != "cold_l2" or None in sizes:
            continue
        Nq, B, Lq, Ld = (int(n or 0) for n in sizes)
        geo = Geometry(True, Nq, B, Lq, Ld)
        facts = {"entries_per_document": Nq << log_tokens_of(geo), "Ld": Ld, "documents": B}
        found.setdefault(cell.hash(), Point(facts, {})).ms[path] = row.latency_ms
    return [point for point in found.values() if len(point.ms) > 1]


def table(measured: Sequence[Point], card: str) -> list[dict[str, Any]]:
    """The rules, first match wins; the first keeps documents with more entries than 31 bits number off `csr`.

    Raises:
        ValueError: if there is nothing to choose by.
    """
    from maxsim.training.csr import MAX_ENTRY

    if not measured:
        raise ValueError("no cell has rows of two paths; run `maxsim-bench run backward_paths` first")
    limit = {
        "path": "onehot", "when": {"entries_per_document": [MAX_ENTRY + 1, LARGEST]},
        "why": "csr numbers the entries of a document with 31 bits",
    }  # fmt: skip
    paths = sorted({path for point in measured for path in point.ms})
    usual = min(paths, key=lambda path: _cost(measured, path))
    rest = {"path": usual, "when": {}, "why": _told(measured, usual, card)}
    best = max(_splits(measured, paths, usual), key=lambda split: split[0], default=(0.0, rest))
    return [limit, best[1], rest] if best[0] > log(WORTH) else [limit, rest]


def _cost(measured: Sequence[Point], path: str) -> float:
    """Sum over shapes of the logarithm of this path's time over the fastest; one that was not measured costs most."""
    return sum(log(point.ms.get(path, 10 * max(point.ms.values())) / min(point.ms.values())) for point in measured)


def _splits(
    measured: Sequence[Point], paths: Sequence[str], usual: str
) -> Iterator[tuple[float, dict[str, Any]]]:  # fmt: skip
    """(mean logarithm of the gain on its shapes, rule) for every other path below or above every threshold."""
    for fact in FACTS:
        values = sorted({point.facts[fact] for point in measured})
        for low, high in pairwise(values):
            middle = (low + high) // 2
            for bounds in ([0, middle], [middle + 1, LARGEST]):
                inside = [p for p in measured if bounds[0] <= p.facts[fact] <= bounds[1]]
                for path in paths:
                    gain = (_cost(inside, usual) - _cost(inside, path)) / len(inside)
                    why = f"{exp(gain):.2f} times as fast as {usual} in the mean of {len(inside)} measured shapes"
                    yield gain, {"path": path, "when": {fact: bounds}, "why": why}


def _told(measured: Sequence[Point], path: str, card: str) -> str:
    """What the usual path was measured against, as a sentence."""
    others = [min(v for k, v in p.ms.items() if k != path) / p.ms[path] for p in measured if path in p.ms]
    return (
        f"{card}: the next deterministic path takes {min(others):.2f} to {max(others):.2f} times as long, "
        f"{len(others)} measured shapes"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the rows, print the table, write it if told so."""
    from maxsim_bench.record.store import Store

    parser = command_parser("tune_backward", __doc__ or "")
    parser.add_argument("--rows", type=Path, default=Path("results/h200/backward_paths.csv"))
    parser.add_argument("--write", action="store_true", help="replace maxsim/training/paths.json")
    told = parser.parse_args(arguments)
    rows = [row for row in Store(told.rows).rows() if row.status == "ok"]
    try:
        rules = table(points(rows), rows[0].gpu if rows else "")
    except ValueError as error:
        parser.error(f"{told.rows}: {error}")
    about = "Backward path by shape, first match wins. Bounds are inclusive; 'why' names what was measured where."
    lines = ",\n".join(f"    {json.dumps(rule)}" for rule in rules)
    text = f'{{\n  "about": {json.dumps(about)},\n  "rules": [\n{lines}\n  ]\n}}\n'
    print(text, end="")
    if told.write:
        Path(str(files("maxsim.training").joinpath("paths.json"))).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
