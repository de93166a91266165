"""The row: what measuring one cell with one backend gave, or why it gave nothing.

Room: `record`. May import: declare. What a status may hold is enforced when a row is built.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from maxsim_bench.declare.cell import Cell, row_key
from maxsim_bench.declare.experiment import Status

SCHEMA_VERSION = 1
WIDE_PERCENT = 10  # half the interval of a median, in percent, beyond which a time is shown as doubtful

# What only a successful measurement may hold.
MEASURED = (
    "latency_ms", "latency_p20_ms", "latency_p80_ms", "samples", "ci_width_percent", "flops", "bytes_min", "tflops",
    "achieved_gbs", "percent_of_ceiling", "ceiling", "joules_per_mpair", "peak_extra_bytes", "peak_reserved_bytes",
    "prepare_bytes", "speedup", "speedup_low", "speedup_high", "ndcg_at_10", "ndcg_at_10_reference", "delta",
    "delta_low", "delta_high", "ndcg_at_5", "recall_at_10", "recall_at_100", "mrr_at_10", "queries", "ties",
    "ties_across_cut", "queries_moved", "topk_overlap", "topk_overlap_20", "topk_overlap_100", "spearman", "kendall",
)  # fmt: skip

# What cannot be zero, and what cannot be negative; no measurement of either kind is infinite or NaN.
_POSITIVE = (
    "latency_ms", "latency_p20_ms", "latency_p80_ms", "samples", "speedup", "speedup_low", "speedup_high",
)  # fmt: skip
_NOT_NEGATIVE = (
    "ci_width_percent", "flops", "bytes_min", "tflops", "achieved_gbs", "percent_of_ceiling", "joules_per_mpair",
    "peak_extra_bytes", "peak_reserved_bytes", "input_bytes", "prepare_bytes",
)  # fmt: skip


class Row(BaseModel):
    """One row of `results/<gpu>/<experiment>.csv`. A number that was not measured is None (an empty field), never 0.

    Units are in the names; `latency_ms` is the median, `speedup` the median of paired ratios over `speedup_baseline`
    (baseline time / this time) with its 95 % bootstrap interval, `ceiling` which of compute, memory, copy (from host
    memory) and launch binds.
    `max_abs_err` and `max_rel_err` are against the FP32 reference and may also stand in an `incorrect` row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: Cell
    backend: str
    backend_version: str
    gpu: str  # name the driver gives the device that measured it, or the processor's
    status: Status
    error: str | None = None

    latency_ms: float | None = None
    latency_p20_ms: float | None = None
    latency_p80_ms: float | None = None
    samples: int | None = None
    ci_width_percent: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_baseline: str | None = None
    flops: float | None = None
    bytes_min: float | None = None
    tflops: float | None = None
    achieved_gbs: float | None = None
    percent_of_ceiling: float | None = None
    ceiling: Literal["compute", "memory", "copy", "launch"] | None = None
    joules_per_mpair: float | None = None

    peak_extra_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    input_bytes: int | None = None
    prepare_bytes: int | None = None

    max_abs_err: float | None = None
    mean_abs_err: float | None = None
    max_rel_err: float | None = None

    ndcg_at_10: float | None = None
    ndcg_at_10_reference: float | None = None
    delta: float | None = None
    delta_low: float | None = None
    delta_high: float | None = None
    ndcg_at_5: float | None = None
    recall_at_10: float | None = None
    recall_at_100: float | None = None
    mrr_at_10: float | None = None
    queries: int | None = None
    queries_moved: int | None = None
    ties: int | None = None
    ties_across_cut: int | None = None
    topk_overlap: float | None = None
    topk_overlap_20: float | None = None
    topk_overlap_100: float | None = None
    spearman: float | None = None
    kendall: float | None = None
    dataset_hash: str | None = None

    kernel_config: str | None = None
    order: int | None = None
    throttled: str | None = None
    extra: str | None = None  # JSON of figures that one experiment alone reports (nDCG after training, launches ...)
    environment_id: str | None = None
    schema_version: int = SCHEMA_VERSION
    measured_at: str | None = None

    @model_validator(mode="after")
    def _status_decides(self) -> Row:
        if self.status != "ok":
            filled = [name for name in MEASURED if getattr(self, name) is not None]
            if filled:
                raise ValueError(f"status {self.status!r} holds no measurement, but {', '.join(filled)} is filled")
            if not self.error:
                raise ValueError(f"status {self.status!r} needs an `error` that says why")
        elif self.latency_ms is None and self.cell.timing_policy is not None:
            raise ValueError("status 'ok' of a cell that is timed needs latency_ms, but that is empty")
        return self

    @model_validator(mode="after")
    def _measurable(self) -> Row:
        for name in (*_POSITIVE, *_NOT_NEGATIVE):
            value, positive = getattr(self, name), name in _POSITIVE
            if value is not None and (not math.isfinite(value) or value < 0 or (positive and value == 0)):
                least = "positive" if positive else "not negative"
                raise ValueError(f"{name} is {value}, but what was measured is finite and {least}")
        if self.extra is not None and not _is_object(self.extra):
            raise ValueError(f"extra is {self.extra[:40]!r}, which is no object of JSON that floats can hold")
        if self.measured_at is not None and not _is_time(self.measured_at):
            raise ValueError(f"measured_at is {self.measured_at!r}, which is no time of ISO 8601 in UTC")
        return self

    @property
    def key(self) -> str:
        """Identity for resume, merge and comparison."""
        return row_key(self.cell.hash(), self.backend, self.backend_version)

    def to_record(self) -> dict[str, Any]:
        """Flat mapping: cell_hash, the cell's axes, then the row's fields (device name as `gpu_name`)."""
        own = self.model_dump(exclude={"cell"})
        own["gpu_name"] = own.pop("gpu")
        return {"cell_hash": self.cell.hash(), **self.cell.model_dump(), **own}

    def same_as(self, other: Row) -> bool:
        """Whether both would be written alike (two NaN are)."""
        return repr(self.to_record()) == repr(other.to_record())

    @classmethod
    def columns(cls) -> list[str]:
        """Every CSV column, in order."""
        own = [name for name in cls.model_fields if name not in ("cell", "gpu")]
        return ["cell_hash", *Cell.model_fields, *own, "gpu_name"]

    @classmethod
    def from_record(cls, record: Mapping[str, str]) -> Row:
        """The row that wrote this record; an empty field is None, a column that is not there too.

        Raises ValueError for a number that is not written as Python writes one ("2." is a torn 2.5, not two), for a
        status that holds what it must not, and where `cell_hash` is not that of the axes beside it.
        """
        given = {k: v for k, v in record.items() if v != ""}
        stored_hash = given.pop("cell_hash", None)
        axes = {k: _typed(Cell, k, given.pop(k)) for k in list(given) if k in Cell.model_fields}
        own = {("gpu" if k == "gpu_name" else k): v for k, v in given.items()}
        row = cls(cell=Cell.model_validate(axes), **{k: _typed(cls, k, v) for k, v in own.items()})
        if stored_hash != row.cell.hash():
            raise ValueError(
                f"cell_hash is {stored_hash}, but these axes hash to {row.cell.hash()}: a field was changed"
            )
        return row


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_int=_counted), dict)
    except (ValueError, RecursionError):  # the second for a thousand brackets one in another
        return False


def _counted(digits: str) -> int:
    if len(digits) > _LONGEST:
        raise ValueError(f"a number of {len(digits)} digits, which nothing counts")
    return int(digits)


def _is_time(text: str) -> bool:
    """In UTC, said or not: which of two rows is the newer is decided by their texts, where an offset would mislead."""
    try:
        return not datetime.fromisoformat(text).utcoffset()
    except ValueError:
        return False


_LONGEST = 300  # digits of a whole number that a float still holds, which tables are made of
_WRITTEN = {
    int: re.compile(r"-?\d+"),
    float: re.compile(r"-?(\d+(\.\d+)?(e[+-]?\d+)?|inf|nan)"),
}


def _typed(model: type[BaseModel], name: str, text: str) -> Any:
    """`text` as the field's type; only the spelling that writing the type gives is accepted."""
    field = model.model_fields.get(name)
    for kind in (int, float):
        if field is not None and kind in (field.annotation, *get_args(field.annotation)):
            if not _WRITTEN[kind].fullmatch(text):
                raise ValueError(f"{name} is {text!r}, which is no {kind.__name__}")
            if kind is int and len(text) > _LONGEST:
                raise ValueError(f"{name} is {text[:20]}…, a number of {len(text)} digits, which nothing counts")
            return kind(text)
    return text
