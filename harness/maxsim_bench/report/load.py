"""Results folders → one table of rows, with where each row came from.

Room: `report`. May import: record, declare. Reading goes through the store, so what the report sees is validated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.contradictions import contradictions
from maxsim_bench.record.environments import read_environments
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import misshapen, read_samples, samples_path
from maxsim_bench.record.store import Store

# Folders below results/ that hold no committed rows of a card: this machine's own, and the small records of past runs.
NOT_COMMITTED = frozenset({"local", "history"})
# Folder beside the CSVs that holds every query's nDCG@10 of a fidelity cell: no rows, but what a figure follows from.
PER_QUERY = "fidelity"
# Beside the CSVs of a card: the same sweeps over again (`repeat/1`, `repeat/2`, ...), to see how well they repeat; and
# the record of a self-test.
REPEAT, SELFTEST = "repeat", "selftest.json"

_LOG = logging.getLogger(__name__)


class ReportError(ValueError):
    """Something the report was given cannot be used; the message says what, where and what to do."""


@dataclass(frozen=True)
class Results:
    """Rows of one or more results folders.

    Attributes:
        frame: one line a row: the columns of `Row.columns()`, `device` (key of the card it was measured for), `gpus`
            (how many of them; NaN on a processor) and `source` (CSV, relative to its root). Numbers are float64, what
            was not measured is NaN.
        rows: the same rows as objects, in the order of the frame.
        paths: source → file.
        environments: environment id → what was captured.
        earlier: rows that a newer one of their cell and backend replaced, with their sources; nothing shows them, but
            what was timed in turn with one of them can be compared with it.
        warnings: what was lost of a file (a cut line, a header, samples), and the contradictions, one sentence each.
        contradictions: rows whose times or speed-up do not follow from the samples beside them, one sentence each. They
            are shown as their CSV has them, and nothing that is committed may hold one.
    """

    frame: pd.DataFrame
    rows: tuple[Row, ...]
    paths: Mapping[str, Path]
    environments: Mapping[str, Any] = field(default_factory=dict)
    earlier: tuple[tuple[Row, str], ...] = ()
    warnings: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def measured(self) -> pd.DataFrame:
        """The lines of the frame that are no refusal, failure or gap."""
        return self.frame[self.frame["status"] == "ok"]

    def samples(self, source: str) -> dict[str, Any]:
        """Row key → raw samples of one CSV; empty where none were kept. ReportError for some that no timer gives."""
        found = read_samples(self.paths[source])
        for key, record in found.items():
            told = misshapen(record)
            if told is not None:
                raise ReportError(
                    f"{samples_path(self.paths[source])}: {told} of {key}. Restore the file, or measure the row again "
                    "with --force."
                )
        return found

    def per_query(self, row: Row) -> tuple[str, pd.DataFrame] | None:
        """Name and content of a fidelity cell's file of queries: query, reference, then each backend's difference."""
        for name, path in self.paths.items():
            if f"/{PER_QUERY}/" in f"/{name}" and name.endswith(f"-{row.cell.hash()}.csv"):
                return name, _queries(path)
        return None

    def before(self) -> Results:
        """The measurement before the newest of each cell and backend; nothing of what was measured once."""
        return results_of(newest(self.earlier), self.paths, self.environments)

    def only(self, mask: pd.Series) -> Results:
        """The rows where `mask` (aligned with the frame) holds."""
        kept = [row for row, wanted in zip(self.rows, mask, strict=True) if wanted]
        return replace(self, frame=self.frame[mask].reset_index(drop=True), rows=tuple(kept))

    def experiment(self, *names: str) -> Results:
        """The rows of the named experiments."""
        return self.only(self.frame["experiment"].isin(names))


def _queries(path: Path) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, dtype={"query": str})
        if list(found.columns[:2]) != ["query", "reference"]:
            raise ValueError("its first columns are not query and reference")
        return found.astype(dict.fromkeys(found.columns[1:], "float64"))
    except ValueError as error:  # those of pandas and of UTF-8 are among them
        raise ReportError(
            f"{path}: no table of queries: {error}. Restore the file, or rank again with --force."
        ) from None


def csv_files(root: Path) -> list[Path]:
    """The CSVs of a results folder: its own and those of its cards' folders, but not `local`, `history` and `repeat`.

    `results` gives what is committed; `results/local` gives this machine's own. A CSV gives itself.

    Raises:
        ReportError: if there is no such file or folder.
    """
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ReportError(f"{root}: no such results. Measure with `maxsim-bench run`, or name another --results.")
    aside = NOT_COMMITTED | {PER_QUERY, REPEAT}
    return sorted(p for p in root.rglob("*.csv") if not aside & set(p.relative_to(root).parts[:-1]))


def load(roots: Sequence[Path]) -> Results:
    """Every finished row below `roots`, the newest measurement of each cell and backend.

    An older version of a backend leaves rows that a newer one replaces; they stay in the CSV, and comparing two runs
    is how to see them. Where two roots hold the same row, the first root's is taken. What was lost of a file, and what
    contradicts its samples, is logged, which by default is a line on stderr, and stands in the `warnings`.
    """
    warnings: list[str] = []
    contradicted: list[str] = []
    rows: list[tuple[Row, str]] = []
    paths: dict[str, Path] = {}
    environments: dict[str, Any] = {}
    for root in roots:
        for path in csv_files(root):
            source = source_name(path, root)
            if source not in paths:
                paths[source] = path
                environments |= read_environments(path.parent)
                store = Store(path)
                rows += [(row, source) for row in store.rows()]
                samples = read_samples(path)
                warnings += lost(store, source, samples)
                contradicted += contradicting(store, source, samples)
                for side in (f"{PER_QUERY}/*.csv", f"{REPEAT}/*/*.csv", SELFTEST):
                    for found in sorted(path.parent.glob(side)):
                        paths.setdefault(source_name(found, root), found)
    warnings += contradicted
    for warning in warnings:
        _LOG.warning("%s", warning)
    kept = newest(rows)
    keys = {row.key for row, _ in kept}
    earlier = tuple((row, source) for row, source in rows if row.key not in keys)
    return replace(
        results_of(kept, paths, environments),
        earlier=earlier,
        warnings=tuple(warnings),
        contradictions=tuple(contradicted),
    )


def lost(store: Store, source: str, samples: Mapping[str, Any]) -> list[str]:
    """What is missing of a CSV and of the samples beside it, one sentence each; nothing for whole files."""
    cut = store.cut()
    told = [] if cut is None else [f"{source}: {cut}"]
    timed = [row for row, _ in newest((row, source) for row in store.rows()) if row.latency_ms is not None]
    if timed and not samples_path(store.path).exists():
        return [*told, f"samples of {source} are missing: no paired ratios"]
    without = len({row.key for row in timed} - samples.keys())
    if without:
        told.append(f"samples of {source} are cut: {without} of {len(timed)} timed rows have no paired ratios")
    return told


def contradicting(store: Store, source: str, samples: Mapping[str, Any]) -> list[str]:
    """Rows of a CSV whose times or speed-up are not what the samples beside it give, one sentence each."""
    return [
        f"{source}: {told} ({key}). Restore both files, or measure the row again with --force"
        for key, told in contradictions(store.rows(), samples).items()
    ]


def source_name(path: Path, root: Path) -> str:
    """How sidecars and pages name a CSV: its path from the results folder on, `local/` kept as such."""
    base = root if root.is_dir() else root.parent
    relative = path.relative_to(base).as_posix()
    return f"{base.name}/{relative}" if base.name in NOT_COMMITTED else relative


def newest(rows: Iterable[tuple[Row, str]]) -> list[tuple[Row, str]]:
    """Of several rows of one cell and backend the one measured last; the order of first appearance is kept."""
    latest: dict[tuple[str, str], tuple[Row, str]] = {}
    for row, source in rows:
        subject = (row.cell.hash(), row.backend)
        present = latest.get(subject)
        if present is None or (row.measured_at or "") > (present[0].measured_at or ""):
            latest[subject] = (row, source)
    return list(latest.values())


def results_of(
    rows: Iterable[tuple[Row, str]], paths: Mapping[str, Path], environments: Mapping[str, Any] | None = None
) -> Results:
    """`Results` of rows with their sources."""
    pairs = list(rows)
    records = [{**row.to_record(), "device": row.cell.gpu, "source": source} for row, source in pairs]
    columns = [*Row.columns(), "device", "source"]
    frame = pd.DataFrame(records, columns=columns)
    numeric = [name for name in columns if _numeric(name)]
    frame[numeric] = frame[numeric].astype("float64")
    frame["scores_bytes"] = 4.0 * pair_count(frame)
    frame["gpus"] = [float("nan") if row.cell.gpu == "cpu" else float(row.cell.ranks) for row, _ in pairs]
    return Results(frame, tuple(row for row, _ in pairs), paths, environments or {})


def pair_count(frame: pd.DataFrame) -> pd.Series:
    """Scores a cell has: Nq·B, or B where query n meets document n only; NaN for cells without sizes."""
    every = frame["Nq"].fillna(1.0) * frame["B"]
    return every.where(frame["pairing"] != "pairs", frame["B"])


def _numeric(name: str) -> bool:
    for model in (Cell, Row):
        field_ = model.model_fields.get(name)
        if field_ is not None:
            return any(kind in str(field_.annotation) for kind in ("int", "float"))
    return False
