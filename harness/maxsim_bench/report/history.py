"""One small record for each tracked run, and a page that shows where a series stepped to another level.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from maxsim_bench.record.files import replace_file
from maxsim_bench.report import names, style
from maxsim_bench.report.compare.sources import Run
from maxsim_bench.report.compare.statistics import steps
from maxsim_bench.report.load import ReportError
from maxsim_bench.report.tables import templates

# What is tracked: ratios to the baseline of the same run (comparable across machines), memory, and quality.
TRACKED = ("speedup", "peak_extra_bytes", "delta", "latency_ms")
PORTABLE = ("speedup", "peak_extra_bytes", "delta")


class Tracked(BaseModel):
    """One run: when, of which revision, under which fingerprints, and the tracked numbers by subject."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured_at: str
    revision: str
    fingerprints: tuple[str, ...]
    labels: dict[str, str]
    values: dict[str, dict[str, FiniteFloat]]

    @model_validator(mode="after")
    def _labelled(self) -> Tracked:
        if self.values.keys() - self.labels.keys():
            raise ValueError(f"{min(self.values.keys() - self.labels.keys())} has no label")
        return self

    @property
    def file_name(self) -> str:
        """Sorts by time; holds the revision."""
        return re.sub(r"[^A-Za-z0-9]+", "-", f"{self.measured_at}-{self.revision[:12]}").strip("-") + ".json"


def tracked(run: Run, *, measured_at: str, revision: str) -> Tracked:
    """The record of a run. Absolute times are kept with their fingerprint, and compared only under the same."""
    values, labels, fingerprints = {}, {}, set()
    for subject, one in run.measured.items():
        kept = {m: one.values[m] for m in TRACKED if m in one.values} if one.status == "ok" else {}
        if kept:
            values[subject], labels[subject] = kept, f"{names.backend(one.backend)}, {one.label}"
            fingerprints.add(one.fingerprint or "unknown")
    return Tracked(
        measured_at=measured_at,
        revision=revision,
        fingerprints=tuple(sorted(fingerprints)),
        labels=labels,
        values=values,
    )


def write_tracked(record: Tracked, folder: Path) -> Path:
    """Keep a record; one that is there already is left as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.file_name
    if not path.exists():
        replace_file(path, (record.model_dump_json(indent=1) + "\n").encode())
    return path


def read_history(folder: Path) -> list[Tracked]:
    """Every record, oldest first.

    Raises:
        ReportError: for a record that cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            found.append(Tracked.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise ReportError(
                f"{path}: no record of a run: {error.errors()[0]['msg']}. Restore or delete it."
            ) from None
    return sorted(found, key=lambda record: record.measured_at)


@dataclass(frozen=True)
class Step:
    """A change of level: at which record, from and to which median."""

    subject: str
    label: str
    metric: str
    at: int
    revision: str
    measured_at: str
    before: float
    after: float

    @property
    def percent(self) -> float:
        """Change in percent of the level before."""
        return 100 * (self.after / self.before - 1)


def series(history: Sequence[Tracked], metric: str) -> pd.DataFrame:
    """Subjects × records of one metric; an absolute time only where the fingerprints are those of the last record."""
    last = history[-1].fingerprints if history else ()
    kept = [r for r in history if metric in PORTABLE or r.fingerprints == last]
    columns = [history.index(record) for record in kept]
    data = {c: {s: v[metric] for s, v in r.values.items() if metric in v} for c, r in zip(columns, kept, strict=True)}
    return pd.DataFrame(data)


def find_steps(history: Sequence[Tracked], metric: str, *, least_percent: float = 1.0) -> Iterator[Step]:
    """Steps of every subject by at least `least_percent`; a series with values that are not positive has none."""
    for subject, line in series(history, metric).iterrows():
        present = line.dropna()
        if len(present) < 3 or not (present > 0).all():
            continue
        bounds = [0, *steps(present.to_list()), len(present)]
        levels = [float(np.median(present.iloc[a:b])) for a, b in itertools.pairwise(bounds)]
        for place, (before, after) in zip(bounds[1:], itertools.pairwise(levels), strict=False):
            at = int(present.index[place])
            record = history[at]
            step = Step(
                str(subject),
                record.labels[str(subject)],
                metric,
                at,
                record.revision,
                record.measured_at,
                before,
                after,
            )
            if abs(step.percent) >= least_percent:
                yield step


def write_trend(folder: Path, out: Path) -> Path:
    """The page: every step found, and the series of each tracked metric; a slow drift of small losses is a step too."""
    history = read_history(folder)
    found = [step for metric in ("speedup", "latency_ms", "peak_extra_bytes") for step in find_steps(history, metric)]
    pictures = {m: _picture(history, m) for m in ("speedup", "latency_ms") if not series(history, m).empty}
    html = (
        templates()
        .get_template("trend.html.j2")
        .render(history=history, steps=found, pictures=pictures, number=names.number)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")
    return out


def relative(table: pd.DataFrame) -> pd.DataFrame:
    """Each series over its own first value, so that all fit one axis."""
    return table.div(table.bfill(axis=1).iloc[:, 0], axis=0)


def _picture(history: Sequence[Tracked], metric: str) -> str:
    """All series relative to their beginning with their median, as base64 PNG."""
    table = relative(series(history, metric))
    drawing, (ax,) = style.grid(1)
    with style.rc():
        for _, line in table.iterrows():
            ax.plot(table.columns, line, color="#BBBBBB", linewidth=0.6)
        ax.plot(table.columns, table.median(), color=style.BLUE, marker="o", label="median of all series")
        ax.axhline(1, color="black", linewidth=0.6, linestyle=(0, (4, 3)))
        ax.set_xticks(list(table.columns), [history[int(str(c))].revision[:7] for c in table.columns], rotation=90)
        ax.set_ylabel(f"{metric}, relative to the first run")
        ax.legend()
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="png", dpi=160)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
