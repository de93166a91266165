"""What counts as a difference, read from TOML.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from maxsim_bench.record.row import Row
from maxsim_bench.report.load import ReportError

_SAMPLED = {"samples": "latency_ms", "ratios": "speedup"}  # test → what its raw numbers are of


class Threshold(BaseModel):
    """One metric's; see experiments/compare/thresholds.toml for the meaning of the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    metric: str
    better: Literal["lower", "higher", "nearer_zero"]
    test: Literal["samples", "ratios", "exact"]
    portable: bool
    percent: float | None = Field(default=None, gt=0)
    absolute: float | None = Field(default=None, gt=0)
    experiments: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Threshold:
        field = Row.model_fields.get(self.metric)
        if field is None or not {int, float} & {field.annotation, *get_args(field.annotation)}:
            raise ValueError(f"{self.metric!r} is no column of numbers")
        only = _SAMPLED.get(self.test, self.metric)
        if self.metric != only:
            raise ValueError(f"test {self.test!r} compares {only} alone; {self.metric} needs test 'exact'")
        if self.test != "exact" and self.better == "nearer_zero":
            raise ValueError(f"test {self.test!r} compares ratios, and none is nearer to zero")
        if self.percent is None and self.absolute is None:
            raise ValueError("give percent, absolute, or both (then a difference has to exceed both)")
        if self.test != "exact" and self.percent is None:
            raise ValueError(f"test {self.test!r} compares ratios and needs a percent")
        return self

    @property
    def margin(self) -> float:
        """How far the ratio may lie from 1; 0 where only the difference counts."""
        return (self.percent or 0.0) / 100


class Thresholds(BaseModel):
    """All of a file. Without `host_moved_percent` no ratio is left undecided for what the host did."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    false_discovery_rate: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0.5, lt=1)
    interleaved_percent: float = Field(gt=0)
    host_moved_percent: float | None = Field(default=None, gt=0)
    thresholds: tuple[Threshold, ...]

    @field_validator("thresholds")
    @classmethod
    def _some(cls, value: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
        if not value:
            raise ValueError("holds none, so nothing would be compared")
        return value

    def of(self, experiment: str) -> list[Threshold]:
        """The threshold of each metric for one experiment: the last entry that fits."""
        fitting = [t for t in self.thresholds if not t.experiments or experiment in t.experiments]
        return list({t.metric: t for t in fitting}.values())


def read_thresholds(path: Path) -> Thresholds:
    """Read and check the file.

    Raises:
        ReportError: naming file, place and mistake.
    """
    if not path.is_file():
        raise ReportError(f"{path}: no thresholds there. Run in the checkout, or name the file.")
    try:
        return Thresholds.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{path}: {error}") from None
    except ValidationError as error:
        told = [f"{path}: {'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()]
        raise ReportError("\n".join(told)) from None
