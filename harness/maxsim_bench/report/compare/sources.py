"""Runs to compare, from CSV stores, folders of them, revisions of results/ in git, or pytest-benchmark's JSON.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import io
import math
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maxsim_bench.declare.experiment import matches
from maxsim_bench.record.contradictions import contradictions
from maxsim_bench.record.files import StoreError
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import common_rounds, misshapen, read_samples, samples_path
from maxsim_bench.record.store import Store
from maxsim_bench.report import names
from maxsim_bench.report.load import ReportError, csv_files, newest


class CompareError(ReportError):
    """Two runs that cannot be compared; the message says why and what to do."""


@dataclass(frozen=True)
class Measured:
    """One backend on one cell of one run.

    Attributes:
        subject: cell hash and backend (or a benchmark's full name): what the same thing is called in both runs.
        label: for a reader.
        fingerprint: environment id; only equal ones have comparable absolute times. None where none was recorded.
        values: metric → value, of what was measured.
        samples: raw times in ms, None where none were kept.
        ratios: baseline time / this time of each round that both were timed in, None likewise.
        clock: mean SM clock in MHz while it was timed, None where unknown.
        host_baseline_ms: median time of the baseline in the rounds of `ratios`, where both are calls on a card as the
            host's clock sees them; None elsewhere.
        version: of the backend, or the hash of its source.
        measured_at: date and time in UTC, ISO 8601.
    """

    subject: str
    label: str
    experiment: str
    backend: str
    device: str
    status: str
    fingerprint: str | None
    values: Mapping[str, float]
    error: str = ""
    samples: tuple[float, ...] | None = None
    ratios: tuple[float, ...] | None = None
    clock: float | None = None
    host_baseline_ms: float | None = None
    version: str = ""
    measured_at: str | None = None


@dataclass(frozen=True)
class Run:
    """Everything measured in one run, by subject.

    Attributes:
        contradicted: subject → the row, its file and what is wrong, in words, of rows that their own raw samples
            contradict. None of them is among the measured.
    """

    name: str
    measured: Mapping[str, Measured] = field(default_factory=dict)
    contradicted: Mapping[str, str] = field(default_factory=dict)

    @property
    def subjects(self) -> Set[str]:
        """Of every row that the run holds."""
        return self.measured.keys() | self.contradicted.keys()

    def without(self, subjects: Collection[str]) -> Run:
        """The run as if these had not been measured."""
        return replace(self, measured={s: one for s, one in self.measured.items() if s not in subjects})


@dataclass(frozen=True)
class Selection:
    """Which rows of both runs to compare: all that fit every part; an empty part fits all.

    Attributes:
        experiments, backends: names.
        conditions: on the axes of a cell, as `declare.select.parse_where` reads them.
    """

    experiments: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    conditions: tuple[Mapping[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.experiments or self.backends or self.conditions)

    def has(self, row: Row) -> bool:
        """Whether a row fits."""
        return (
            (not self.experiments or row.cell.experiment in self.experiments)
            and (not self.backends or row.backend in self.backends)
            and all(matches(condition, row.cell) for condition in self.conditions)
        )


_EVERY = Selection()


def read_run(source: str, *, repository: Path = Path("."), only: Selection = _EVERY, leave_out: bool = False) -> Run:
    """A run by the name that the user gave it: a file, a folder, or `REVISION[:PATH]` of the repository.

    A revision reads its `results` folder unless a path is given after the colon. Of stores, the rows that fit `only`.

    Args:
        leave_out: keep rows that their own samples contradict apart, for whoever tells of them, instead of refusing.

    Raises:
        CompareError: for what is not there, empty, cut off, at odds with its own samples, or a mixture of machines.
        StoreError: for a results file that cannot be read.
    """
    if not source:
        raise CompareError("a run without a name. Name a file, a folder or a revision.")  # Path("") is this folder
    path = Path(source)
    if path.suffix == ".json" and path.is_file():
        if only:
            raise CompareError(f"{source}: rows can be chosen of stores, not of JSON of pytest-benchmark.")
        return Run(source, _from_benchmarks(path))
    if path.exists():
        return _checked(source, _from_stores(source, path, only), only, leave_out)
    revision, _, inside = source.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        _extract(repository, revision, inside or "results", Path(folder), source)
        return _checked(source, _from_stores(source, Path(folder) / (inside or "results"), only), only, leave_out)


def _extract(repository: Path, revision: str, inside: str, into: Path, source: str) -> None:
    done = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", revision, "--", inside],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        told = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["git says nothing"])[-1]
        raise CompareError(f"{source}: neither a file nor a folder, and as a revision with {inside!r}: {told}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")


def _from_stores(source: str, root: Path, only: Selection) -> Run:
    found: dict[str, Measured] = {}
    contradicted: dict[str, str] = {}
    for path in csv_files(root):
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            raise CompareError(
                f"{path}: its last line is cut off, so rows may be missing. Resume the run that wrote it, or drop the "
                "line."
            )
        every = Store(path).rows()
        rows = [row for row, _ in newest((row, path.name) for row in every)]
        samples = _samples_of(path, rows)
        wrong = contradictions(every, samples)
        by_cell = {(row.cell.hash(), row.backend): row for row in rows}
        for row in filter(only.has, rows):
            base = by_cell.get((row.cell.hash(), row.speedup_baseline or ""))
            one = _measured(row, samples.get(row.key), samples.get(base.key) if base is not None else None)
            if row.key in wrong:
                # By the name that the user gave: `path` of a revision lies in a folder that is gone by then.
                file = source if path == root else f"{source}: {path.relative_to(root).as_posix()}"
                contradicted[one.subject] = f"{file}: {wrong[row.key]}: {row.backend} on {one.label}"
            else:
                found[one.subject] = one
    return Run(source, found, contradicted)


def _samples_of(path: Path, rows: Iterable[Row]) -> dict[str, Any]:
    """Raw samples. Refused: a file that lacks those of a timed row, and samples that no timer gives."""
    if not samples_path(path).exists():
        return {}
    samples = read_samples(path)
    lost = [row for row in rows if row.latency_ms is not None and row.key not in samples]
    if lost:
        raise CompareError(
            f"{samples_path(path)}: has no samples of {len(lost)} timed rows (first: {lost[0].key}): it was cut off. "
            "Restore it, or measure these rows again with --force."
        )
    for row in rows:
        told = _unusable(samples.get(row.key))
        if told is not None:
            raise CompareError(
                f"{samples_path(path)}: {told} of {row.backend} on {_label(row)}, so nothing can be compared with it. "
                "Measure it again with --force."
            )
    return samples


def _unusable(record: Any) -> str | None:
    """What is wrong with the raw times of a record, None where nothing is or it holds none."""
    told = misshapen(record)
    if told is not None or not isinstance(record, dict):
        return told
    bad = [ms for ms in record.get("ms", []) if not 0 < ms < math.inf]
    return f"a sample is {bad[0]}, not positive and finite," if bad else None


def _label(row: Row) -> str:
    axes = {a: getattr(row.cell, a) for a in names.AXES if getattr(row.cell, a) is not None}
    return f"{row.cell.experiment} on {names.card(row.cell.gpu)}: {names.described(axes)}"


def _measured(row: Row, record: Any, base: Any) -> Measured:
    timed = record if isinstance(record, dict) and "ms" in record else None
    mine, theirs = common_rounds(record, base)
    own_baseline = row.backend == row.speedup_baseline  # its ratio to itself is 1 and compares nothing
    ratios = None
    if row.speedup is not None and not own_baseline and mine and min(mine) > 0:
        ratios = tuple(b / m for b, m in zip(theirs, mine, strict=True))
    # On a processor the host's clock times the work itself, so a slower host is slower for every backend alike.
    dispatched = row.cell.timing_policy == "host" and row.cell.gpu != "cpu"
    flat = row.to_record()
    values = {k: float(v) for k, v in flat.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    if own_baseline:
        values.pop("speedup", None)
    return Measured(
        subject=f"{row.cell.hash()}/{row.backend}",
        label=_label(row),
        experiment=row.cell.experiment, backend=row.backend, device=row.cell.gpu, status=row.status,
        fingerprint=row.environment_id, values=values, error=row.error or "",
        samples=tuple(timed["ms"]) if timed else None, ratios=ratios,
        clock=(timed or {}).get("conditions", {}).get("sm_clock_mhz"),
        host_baseline_ms=statistics.median(theirs) if ratios and dispatched else None,
        version=row.backend_version, measured_at=row.measured_at,
    )  # fmt: skip


class _Stats(BaseModel):
    median: float
    data: list[float] | None = None


class _Extra(BaseModel):
    model_config = ConfigDict(extra="allow")

    backend: str = ""
    gpu: str | None = None
    environment_id: str | None = None
    ratios: list[float] | None = None


class _Benchmark(BaseModel):
    fullname: str
    name: str
    group: str | None = None
    stats: _Stats
    extra_info: _Extra = _Extra()


class _Processor(BaseModel):
    brand_raw: str = "unknown"


class _MachineInfo(BaseModel):
    node: str = "cpu"
    cpu: _Processor = _Processor()


class _Benchmarks(BaseModel):
    """What is read of a file of pytest-benchmark; it holds more."""

    machine_info: _MachineInfo
    benchmarks: list[_Benchmark] = Field(min_length=1)


def _from_benchmarks(path: Path) -> dict[str, Measured]:
    """pytest-benchmark's JSON; raw times are there if it was written with --benchmark-save-data."""
    try:
        told = _Benchmarks.model_validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CompareError(
            f"{path}: not whole, or no JSON of pytest-benchmark: {place}{': ' * bool(place)}{first['msg']}. "
            "Write it again."
        ) from None
    found: dict[str, Measured] = {}
    for one in told.benchmarks:
        if one.fullname in found:
            raise CompareError(f"{path}: {one.fullname} is there twice. Write it again.")
        stats, extra = one.stats, one.extra_info
        numbers = {k: v for k, v in (extra.model_extra or {}).items() if type(v) in (int, float)}
        values = {"latency_ms": 1e3 * stats.median, **{k: _number(v) for k, v in numbers.items()}}
        data = stats.data or []
        found[one.fullname] = Measured(
            subject=one.fullname, label=one.name, experiment=one.group or "benchmarks",
            backend=extra.backend, status="ok",
            device=extra.gpu or told.machine_info.node,
            fingerprint=extra.environment_id or told.machine_info.cpu.brand_raw,
            values=values,
            samples=tuple(1e3 * s for s in data) if len(data) > 1 else None,
            ratios=tuple(extra.ratios) if extra.ratios else None,
        )  # fmt: skip
    return found


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf


def _checked(source: str, run: Run, only: Selection, leave_out: bool) -> Run:
    """Refuse an empty run, and unless they are to be left out, rows that their samples contradict."""
    if not run.subjects and only:
        raise CompareError(f"{source}: holds no row that was asked for. Loosen --experiment, --backend or --where.")
    if not run.subjects:
        raise CompareError(
            f"{source}: holds no rows. Is this the right folder? `maxsim-bench run` writes below results/."
        )
    if run.contradicted and not leave_out:
        first = next(iter(run.contradicted.values()))
        raise CompareError(
            f"{first}. One of the files was changed, so nothing can be compared with it. Restore both, or measure it "
            "again with --force."
        )
    return run


__all__ = ["CompareError", "Measured", "Run", "Selection", "StoreError", "read_run"]
