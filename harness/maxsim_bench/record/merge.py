"""Merging stores: results that another machine measured join ours; rows that contradict each other are refused.

Room: `record`. May import: declare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxsim_bench.record.contradictions import contradictions
from maxsim_bench.record.environments import add_environments, read_environments
from maxsim_bench.record.files import StoreError, replace_file
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples, misshapen, read_samples, samples_path
from maxsim_bench.record.store import Store


@dataclass(frozen=True)
class Merged:
    """What a merge did to one file: rows it added, and rows that were there already.

    `lost` says what its sources had lost before: a line that was cut off, raw samples of rows that it added;
    `contradicted` which of these rows do not follow from their samples, or have some that no timer gives.
    """

    path: Path
    added: int
    present: int
    lost: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()


def merge_rows(parts: Iterable[tuple[str, Iterable[Row]]]) -> list[Row]:
    """The union of named lists of rows, oldest measurement first, the same whatever the order of the parts.

    Equal rows collapse. Raises `StoreError` listing each key that two parts hold with different values.
    """
    found: dict[str, tuple[str, Row]] = {}
    conflicts = []
    for name, rows in parts:
        for row in rows:
            other, present = found.setdefault(row.key, (name, row))
            if not present.same_as(row):
                conflicts.append(_conflict(row.key, other, present, name, row))
    if conflicts:
        raise StoreError(
            "\n".join([*conflicts, "Nothing was merged. Delete the rows that are wrong, then merge again."])
        )
    return sorted((row for _, row in found.values()), key=lambda row: (row.measured_at or "", row.key))


def merge(sources: Iterable[Path], into: Path) -> list[Merged]:
    """Merge CSV files, or directories of them, into `into` (a CSV, or a directory); its samples and environments too.

    Directories are matched by the relative path of each CSV. Everything is checked before anything is written. Files
    in the folder of a CSV's name beside it (each query of a fidelity cell) go along where the target lacks them.
    """
    files: dict[Path, list[Path]] = {}
    for source in sources:
        for csv_path, target in _pairs(source, into):
            files.setdefault(target, []).append(csv_path)
    plan = []
    for target, origins in files.items():
        present = Store(target).rows()
        parts = [_Part(o, Store(o).rows(), read_samples(o), read_environments(o.parent)) for o in origins]
        merged = merge_rows([(str(target), present), *((str(part.path), part.rows) for part in parts)])
        read_samples(target), read_environments(target.parent)  # what cannot be added to is told before, too
        plan.append((target, parts, present, merged))
    return [_write(*entry) for entry in plan]


@dataclass(frozen=True)
class _Part:
    """What a source holds, read before anything is written."""

    path: Path
    rows: list[Row]
    samples: Mapping[str, Any]
    environments: Mapping[str, Any]

    def lost(self, added: Collection[str]) -> Iterator[str]:
        """What is missing of it, in words; of its samples those of timed rows that are added."""
        cut = Store(self.path).cut()
        if cut is not None:
            yield f"{self.path}: {cut}"
        bare = [
            row for row in self.rows if row.key in added and row.latency_ms is not None and row.key not in self.samples
        ]
        if bare and samples_path(self.path).exists():
            yield f"{samples_path(self.path)}: is cut: {len(bare)} of the rows that were added have no samples"

    def contradicted(self, added: Collection[str]) -> Iterator[str]:
        """Timed rows that are added and contradict their samples, in words."""
        contradicted = contradictions(self.rows, self.samples)
        for row in self.rows:
            if row.key in added and row.latency_ms is not None:
                told = misshapen(self.samples.get(row.key)) or contradicted.get(row.key)
                if told is not None:
                    yield f"{self.path}: {told} ({row.key}). Restore both files, or measure the row again with --force"


def _write(target: Path, parts: list[_Part], present: list[Row], merged: list[Row]) -> Merged:
    store = Store(target)
    added = {row.key for row in merged} - {row.key for row in present}
    with store.lock():
        if store.rows() != present:
            raise StoreError(f"{target}: changed while it was merged. Merge again.")
        for part in parts:
            add_environments(target.parent, part.environments)
            append_samples(target, {k: v for k, v in part.samples.items() if k in added})
            _add_details(part.path, target)
        store.append(row for row in merged if row.key in added)
    lost = tuple(told for part in parts for told in part.lost(added))
    return Merged(target, len(added), len(present), lost, tuple(t for part in parts for t in part.contradicted(added)))


def _pairs(source: Path, into: Path) -> list[tuple[Path, Path]]:
    if source.is_file():
        return [(source, into if into.suffix == ".csv" else into / source.name)]
    if not source.is_dir():
        raise StoreError(f"{source}: is not there. Name a CSV of results, or a directory that holds some.")
    found = [
        path for path in sorted(source.rglob("*.csv"))
        if not path.is_relative_to(into) and not path.parent.with_suffix(".csv").is_file()
    ]  # fmt: skip
    if not found:
        raise StoreError(f"{source}: holds no CSV of results.")
    if into.suffix == ".csv":
        raise StoreError(f"{into}: is one file, but {source} is a directory. Name a directory to merge into.")
    return [(path, into / path.relative_to(source)) for path in found]


def _add_details(origin: Path, target: Path) -> None:
    """Copy the files in the folder of `origin`'s name that `target`'s folder does not have."""
    for path in sorted(origin.with_suffix("").glob("*")):
        copy = target.with_suffix("") / path.name
        if not copy.exists():
            replace_file(copy, path.read_bytes())


def _conflict(key: str, one: str, first: Row, two: str, second: Row) -> str:
    a, b = first.to_record(), second.to_record()
    differing = [f"{name} {a[name]!r} and {b[name]!r}" for name in a if a[name] != b[name]]
    return f"{key}: {one} and {two} disagree: {', '.join(differing[:4])}{' …' if len(differing) > 4 else ''}"
