"""Goals declared in TOML beside what was measured: met, missed (and what binds), or not measured.

Room: `report`. May import: record, declare. One file of `experiments/goals/` holds a `title` and `[[goals]]`, each with

    id      = "one-colpali"                 # unique in the file
    text    = "one query, Lq=Ld=1024"       # what a reader sees
    rows    = { experiment = "forward_limits", backend = "fused", gpu = "h200" }
    when    = { Lq = 1024, B = [1000, 10000] }   # conditions on the cell, as in [[leave_out]] of an experiment
    only    = { ideal_ms = ">= 0.020" }     # optional: conditions on what a row says (a column, or one of DERIVED);
                                            # a row that does not meet them is not spoken of
    metric  = "percent_of_ceiling"          # a column of the rows, or one of DERIVED
    bound   = ">= 95"                       # met only if every row that matches meets it
    against = { backends = ["lik", "eager"] }    # optional: the ratio to the best of these on the same cell, or
              { when = { layout = "dense" } }    # to its own best row where these conditions hold instead, or
              { same = { dtype = "fp16" } }      # to its row of the cell that differs in these axes alone
    peers   = "59-61 %"                     # optional: what was known of others when the goal was set
    binds   = "..."                         # optional: what binds a row that misses, from counters or an ablation

A ratio is "how many times better": other / own for times, bytes and errors, own / other for rates. Times of one cell
are compared round by round, where their rounds were kept; everything else is a quotient of two numbers.

A row without a number is a miss, and NaN the worst of all numbers. Two kinds of rows are none: one whose backend does
not support the cell, and one whose inputs alone exceed the memory of the card or the cell's cap, where its experiment
allows that status. The latter are counted. A row that succeeded but lacks the metric is not spoken of: its session did
not measure that. Where nothing is left the goal is not measured, and `measuring` has the command.
"""

from __future__ import annotations

import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from maxsim_bench.declare.estimate import capacity, input_bytes, pairs
from maxsim_bench.declare.experiment import Experiment, ProfileName, matches
from maxsim_bench.declare.load import condition_mistakes, suggest
from maxsim_bench.record.row import Row
from maxsim_bench.report import declared, names
from maxsim_bench.report.compare.statistics import Effect
from maxsim_bench.report.load import ReportError, Results
from maxsim_bench.report.paired import Pairs

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_BOUND = re.compile(r"(>=|<=|>|<)\s*(-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)")
_LESS_IS_BETTER = ("latency", "bytes", "err", "joules")


def _beyond_scores(row: Row) -> float | None:
    """Peak extra bytes beyond the scores and, where a query has several tiles of 128 tokens, a partial sum for each."""
    if row.peak_extra_bytes is None:
        return None
    tiles = math.ceil((row.cell.Lq or 1) / 128)
    return row.peak_extra_bytes - 4.0 * pairs(row.cell) * (1 + tiles if tiles > 1 else 1)


def _per_token_pair(row: Row) -> float | None:
    """Peak extra bytes of a training step beyond both gradients, for each query token and document (Nq·Lq·B)."""
    cell = row.cell
    if row.peak_extra_bytes is None or row.input_bytes is None or not (cell.Nq and cell.Lq and cell.B):
        return None
    return (row.peak_extra_bytes - row.input_bytes) / (cell.Nq * cell.Lq * cell.B)  # gradients are as large as Q and D


def _ideal_ms(row: Row) -> float | None:
    """The least time that the binding ceiling allows for the row's work, in ms."""
    if row.latency_ms is None or row.percent_of_ceiling is None:
        return None
    return row.latency_ms * row.percent_of_ceiling / 100


def _where_copy_binds(row: Row) -> float | None:
    """Percent of the rate of copies from host memory; None where that does not bind, or was not measured beside it."""
    return row.percent_of_ceiling if row.ceiling == "copy" else None


def _extra(key: str) -> Callable[[Row], float | None]:
    """A number that one experiment alone reports, from the row's `extra`."""
    import json

    def read(row: Row) -> float | None:
        value = json.loads(row.extra or "{}").get(key)
        return float(value) if isinstance(value, (int, float)) else None

    return read


# Figures that follow from a row without being a column of it.
DERIVED: dict[str, Callable[[Row], float | None]] = {
    "bytes_beyond_scores": _beyond_scores,
    "bytes_per_token_pair": _per_token_pair,
    "ideal_ms": _ideal_ms,
    "percent_where_copy_binds": _where_copy_binds,
}


def _as_bound(value: str) -> str:
    if not _BOUND.fullmatch(value.strip()):
        raise ValueError(f"{value!r} is no bound. Write an operator and a number: '>= 95'")
    return value.strip()


def _is_number(column: str) -> bool:
    field = Row.model_fields[column]
    return bool({int, float} & {field.annotation, *get_args(field.annotation)})


_METRICS = (*(column for column in Row.model_fields if _is_number(column)), *DERIVED)


def _as_metric(value: str) -> str:
    if value not in _METRICS and not re.fullmatch(r"extra\..+", value):
        raise ValueError(
            f"{value!r} is neither a column of numbers nor one of {', '.join(DERIVED)} nor extra.<key>. "
            f"{suggest(value, _METRICS)}"
        )
    return value


def _as_conditions(value: dict[str, Any]) -> dict[str, Any]:
    mistakes = [f"{axis}: {told}" for axis, told in condition_mistakes(value)]
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return value


def _within(value: float, bound: str) -> bool:
    found = _BOUND.fullmatch(bound)
    assert found is not None, "validated when the goal was built"
    return _OPERATORS[found[1]](value, float(found[2]))


Listed = Annotated[tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)]


Some = Annotated[Listed, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rows(_Strict):
    """Whose rows: each may be one name or several."""

    experiment: Some
    backend: Some
    gpu: Some


class Against(_Strict):
    """What a ratio is taken to: one of three."""

    backends: Listed = ()
    when: dict[str, Any] = {}
    same: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one(self) -> Against:
        if sum(map(bool, (self.backends, self.when, self.same))) != 1:
            raise ValueError("names backends, conditions (when) or other values of axes (same), one of the three")
        return self

    @field_validator("when", "same")
    @classmethod
    def _conditions(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _as_conditions(value)


class Goal(_Strict):
    """One goal; see the module."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    text: str
    rows: Rows
    when: dict[str, Any] = {}
    only: dict[str, str] = {}
    metric: str
    bound: str
    against: Against | None = None
    peers: str = ""
    binds: str = ""

    @field_validator("bound")
    @classmethod
    def _bound(cls, value: str) -> str:
        return _as_bound(value)

    @field_validator("metric")
    @classmethod
    def _metric(cls, value: str) -> str:
        return _as_metric(value)

    @field_validator("only")
    @classmethod
    def _only(cls, value: dict[str, str]) -> dict[str, str]:
        return {_as_metric(metric): _as_bound(bound) for metric, bound in value.items()}

    @field_validator("when")
    @classmethod
    def _conditions(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _as_conditions(value)

    def meets(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return _within(value, self.bound)

    def speaks_of(self, row: Row) -> bool:
        """Whether the row meets the conditions on its numbers; a row without a number is spoken of, as a failure."""
        if row.status != "ok":
            return True
        values = [(metric_of(row, metric), bound) for metric, bound in self.only.items()]
        return all(value is not None and _within(value, bound) for value, bound in values)

    @property
    def wants_more(self) -> bool:
        """Whether larger values are better under this bound."""
        return self.bound.startswith(">")


class Goals(_Strict):
    """One file of goals."""

    title: str
    goals: tuple[Goal, ...]
    name: str = ""


@dataclass(frozen=True)
class Assessed:
    """A goal with what was measured for it.

    Attributes:
        worst, best: over the rows that match; None where nothing was measured.
        rows, met: how many rows match with a number, and how many of them meet the bound.
        failed: rows that match but hold no number.
        at: the row that is worst.
        missed: the rows that miss the bound, the worst first.
        unfit: rows left out because their inputs alone do not fit, as their experiment allows.
        unspoken: rows that succeeded but lack the metric, as those measured before it was.
        low, high: 95 % interval of `worst`, where that is a ratio of paired rounds; else None.
    """

    goal: Goal
    worst: float | None
    best: float | None
    rows: int
    met: int
    failed: int
    at: Row | None
    low: float | None = None
    high: float | None = None
    missed: tuple[Row, ...] = ()
    unfit: int = 0
    unspoken: int = 0

    @property
    def verdict(self) -> str:
        """ "met" (by every row), "missed" or "not measured"."""
        if not self.rows:
            return "missed" if self.failed else "not measured"
        return "met" if self.met == self.rows and not self.failed else "missed"

    @property
    def open(self) -> bool:
        """Whether the interval of the worst row has numbers on either side of the bound."""
        ends = [_within(end, self.goal.bound) for end in (self.low, self.high) if end is not None]
        return len(set(ends)) > 1


def read_goals(folder: Path, experiments: Mapping[str, Experiment] | None = None) -> list[Goals]:
    """Every file of a folder, in the order of names; none if there is no such folder.

    With `experiments` (by name), a goal may name only these, those of commands, backends that one of them measures, and
    free axes that its own experiments have.

    Raises:
        ReportError: naming file, goal and key of every mistake.
    """
    found, mistakes = [], []
    for path in sorted(folder.glob("*.toml")) if folder.is_dir() else []:
        given: dict[str, Any] = {}
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
            found.append(Goals.model_validate({**given, "name": path.stem}))
        except UnicodeDecodeError as error:
            mistakes.append(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.")
        except tomllib.TOMLDecodeError as error:
            mistakes.append(f"{path}: {error}")
        except ValidationError as error:
            for told in error.errors():
                mistakes.append(f"{path}: {_place(told['loc'], given)}: {told['msg'].removeprefix('Value error, ')}")
        else:
            mistakes += [f"{path}: {told}" for told in _unknown(found[-1].goals, experiments)]
    if mistakes:
        raise ReportError("\n".join(mistakes))
    return found


def _place(loc: Sequence[int | str], given: Mapping[str, Any]) -> str:
    """Where a mistake is: the id of the goal, where it has one, and the key."""
    keys = ".".join(str(key) for key in loc)
    if len(loc) > 2 and loc[0] == "goals" and isinstance(loc[1], int):
        goal = given["goals"][loc[1]]
        if isinstance(goal, dict) and isinstance(goal.get("id"), str):
            return f"{goal['id']}: {'.'.join(str(key) for key in loc[2:])}"
    return keys


def _unknown(goals: Sequence[Goal], experiments: Mapping[str, Experiment] | None) -> Iterator[str]:
    """Ids that stand twice; experiments, backends and free axes that nobody measures."""
    for at, goal in enumerate(goals):
        if goal.id in {earlier.id for earlier in goals[:at]}:
            yield f"{goal.id}: id: stands twice in the file. Give every goal its own."
    if not experiments:
        return
    known = {*experiments, *names.COMMANDS}
    backends = {*names.BACKENDS, *(b for e in experiments.values() for b in e.backends)}
    for goal in goals:
        for name in goal.rows.experiment:
            if name not in known:
                yield f"{goal.id}: rows.experiment: {name!r} is no experiment. {suggest(name, known)}"
        against = () if goal.against is None else goal.against.backends
        for key, listed in (("rows.backend", goal.rows.backend), ("against.backends", against)):
            for name in listed:
                if name not in backends:
                    yield f"{goal.id}: {key}: {name!r} is no backend. {suggest(name, backends)}"
        if not set(goal.rows.experiment) <= experiments.keys():
            continue  # what a command measures is declared nowhere
        free = {axis for name in goal.rows.experiment for axis in experiments[name].free_axes()}
        asked = {"when": goal.when}
        if goal.against is not None:
            asked |= {"against.when": goal.against.when, "against.same": goal.against.same}
        for key, when in asked.items():
            for axis, told in condition_mistakes(when, free):
                yield f"{goal.id}: {key}: {axis}: {told}"


@dataclass(frozen=True)
class _Value:
    """What a row says for a goal; `effect` where that is a ratio of paired rounds."""

    number: float
    row: Row
    effect: Effect | None = None


def assess(
    goals: Sequence[Goal], results: Results, experiments: Mapping[str, Experiment] | None = None
) -> list[Assessed]:
    """Each goal beside what the rows say; `experiments` (by name) say which failures are allowed, without them none."""
    pairs = Pairs(results)
    return [_assess(goal, results.rows, pairs, experiments or {}) for goal in goals]


def _assess(goal: Goal, rows: Sequence[Row], pairs: Pairs, experiments: Mapping[str, Experiment]) -> Assessed:
    mine = [row for row in rows if _belongs(goal, row, goal.rows.backend) and matches(goal.when, row.cell)]
    asked = [row for row in mine if row.status != "unsupported" and goal.speaks_of(row)]
    valued = [value for row in asked if (value := _value(goal, row, rows, pairs)) is not None]
    unfit = sum(_does_not_fit(row, experiments) for row in asked)
    failed = sum(row.status not in ("ok", "skipped") and not _does_not_fit(row, experiments) for row in asked)
    unspoken = sum(row.status == "ok" and metric_of(row, goal.metric) is None for row in mine)
    if not valued:
        return Assessed(goal, None, None, 0, 0, failed, None, unfit=unfit, unspoken=unspoken)
    sign = -1.0 if goal.wants_more else 1.0
    valued.sort(key=lambda value: (math.isnan(value.number), sign * value.number))
    missed = tuple(value.row for value in reversed(valued) if not goal.meets(value.number))
    best, worst = valued[0], valued[-1]
    told = worst.effect is not None and worst.effect.trusted
    low, high = (worst.effect.low, worst.effect.high) if told and worst.effect is not None else (None, None)
    return Assessed(
        goal, worst.number, best.number, len(valued), len(valued) - len(missed), failed, worst.row,
        low=low, high=high, missed=missed, unfit=unfit, unspoken=unspoken,
    )  # fmt: skip


def measuring(one: Assessed, experiments: Mapping[str, Experiment]) -> str:
    """The commands that would measure what a goal speaks of, on its card; empty where no grid declares it.

    Cells whose rows are there without the metric are measured again, with all of their backends: times of one cell are
    taken in turn. The smallest profile that has such a cell is named.
    """
    found = []
    for name in one.goal.rows.experiment:
        again = " --force" if one.unspoken else ""
        if name in names.COMMANDS:
            found.append(names.COMMANDS[name].line)
        elif name in experiments and experiments[name].op == "fidelity":
            found.append(f"{declared.measuring(experiments[name], 'full')}{again}")
        elif name in experiments:
            profiles: tuple[ProfileName, ...] = ("paper", "full")
            smallest = next((p for p in profiles if _declares(experiments[name], p, one.goal)), None)
            found += [f"{declared.measuring(experiments[name], smallest)}{again}"] if smallest else []
    return "; ".join(found)


def _declares(experiment: Experiment, profile: ProfileName, goal: Goal) -> bool:
    """Whether a grid has a cell that the goal speaks of, with one of its backends."""
    return any(
        matches(goal.when, planned.cell) and not set(planned.backends).isdisjoint(goal.rows.backend)
        for card in goal.rows.gpu
        for planned in experiment.plan(card, profile).planned
    )


def _does_not_fit(row: Row, experiments: Mapping[str, Experiment]) -> bool:
    """Whether the row ran out of memory, as its experiment allows, on a cell whose inputs alone exceed what it may use.

    Such a cell says nothing about the backend; one whose inputs fit does, whatever its experiment allows.
    """
    room, experiment = capacity(row.cell), experiments.get(row.cell.experiment)
    if row.status != "oom" or room is None or experiment is None:
        return False
    return input_bytes(row.cell) > room and not experiment.failed(row)


def _belongs(goal: Goal, row: Row, backends: Sequence[str]) -> bool:
    return row.cell.experiment in goal.rows.experiment and row.cell.gpu in goal.rows.gpu and row.backend in backends


def _value(goal: Goal, row: Row, rows: Sequence[Row], pairs: Pairs) -> _Value | None:
    own = metric_of(row, goal.metric)
    if own is None:
        return None
    if goal.against is None:
        return _Value(own, row)
    others = [(v, other) for other in _others(goal, row, rows) if (v := metric_of(other, goal.metric)) is not None]
    others = [(v, other) for v, other in others if not math.isnan(v)]
    if not others:
        return None
    less = any(word in goal.metric for word in _LESS_IS_BETTER)
    reference, best = (min if less else max)(others, key=lambda pair: pair[0])
    effect = pairs.ratio(best, row) if goal.metric == "latency_ms" else None
    if effect is not None:
        return _Value(effect.ratio, row, effect)
    below, above = (own, reference) if less else (reference, own)
    return _Value(above / below, row) if below else None


def _others(goal: Goal, row: Row, rows: Sequence[Row]) -> Iterator[Row]:
    assert goal.against is not None
    if goal.against.backends:
        yield from (r for r in rows if r.cell == row.cell and r.backend in goal.against.backends)
    elif goal.against.same:
        cell = row.cell.model_copy(update=goal.against.same)
        yield from (r for r in rows if r.cell == cell and r.backend == row.backend)
    else:
        same = (r for r in rows if _belongs(goal, r, (row.backend,)) and r.cell.gpu == row.cell.gpu)
        yield from (r for r in same if r.cell.dtype == row.cell.dtype and matches(goal.against.when, r.cell))


def metric_of(row: Row, metric: str) -> float | None:
    """A column, a derived figure or a number of `extra`; None where the row has none."""
    if metric.startswith("extra."):
        return _extra(metric.removeprefix("extra."))(row)
    value = DERIVED[metric](row) if metric in DERIVED else getattr(row, metric)
    return None if value is None else float(value)
