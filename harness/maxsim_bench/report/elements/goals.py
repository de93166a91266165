"""Every declared goal beside the measured figure.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Experiment
from maxsim_bench.record.row import Row
from maxsim_bench.report import names
from maxsim_bench.report.goals import Assessed, Goals, assess, measuring
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import CELL, Column, Table, shown

_AXES = ("Nq", "B", "Lq", "Ld", "d", "dtype", "memory_cap", "length_distribution", "timing_policy", "variant")
_NAMED = 8  # rows that miss a goal and are named; more are counted


def goal_tables(
    results: Results, declared: list[Goals], experiments: Mapping[str, Experiment] | None = None
) -> Iterator[Table]:
    """A table for each file of goals; `experiments` say which failures are allowed."""
    before = results.before()
    for one in declared:
        assessed = assess(one.goals, results, experiments)
        earlier = assess(one.goals, before, experiments)
        frame = pd.DataFrame([_line(*both, experiments or {}) for both in zip(assessed, earlier, strict=True)])
        columns = [
            Column("goal", "goal", right=False),
            Column("bound", "bound"),
            Column("worst", "worst measured"),
            Column("interval", "95 % interval", right=False),
            Column("best", "best measured"),
            Column("rows", "rows that meet it"),
            Column("verdict", "verdict", right=False),
            Column("before", "worst before, rows that met it"),
            Column("at", "worst at", right=False, roomy=True),
            Column("missed", "all that miss it, worst first", right=False, roomy=True),
            Column("peers", "peers when it was set", right=False, roomy=True),
            Column("binds", "what binds, or what measures it", right=False, roomy=True),
            replace(CELL, header="cell of the worst"),
        ]
        named = {name for goal in one.goals for name in goal.rows.experiment}
        sources = sorted(set(results.frame.loc[results.frame["experiment"].isin(named), "source"]))
        met = sum(entry.verdict == "met" for entry in assessed)
        caption = (
            f"{met} of {len(assessed)} goals are met by every row that they speak of: the newest of each cell, also "
            "where it was measured without the peers, by the ceilings of its own run. Before: by the measurements "
            "before the newest, where a cell was measured more than once, of the kernels and on the card of then; not "
            "told where another backend is the measure, whose older rows are kept for its older versions alone. An "
            "interval is there where the figure is a ratio of two backends that were timed in turn. Peers: what others "
            "reached when the goal was set, as it was declared."
        )
        if any(entry.open for entry in assessed):
            caption += " Where the interval spans the bound, the verdict is on the median alone."
        yield Table(f"goals/{one.name}", one.title, columns, frame, tuple(sources), caption)


def _line(entry: Assessed, earlier: Assessed, experiments: Mapping[str, Experiment]) -> dict[str, Any]:
    goal, at = entry.goal, entry.at
    beside = {"missed": goal.binds, "not measured": measuring(entry, experiments)}
    left_out = [f"{entry.unfit} left out: the inputs do not fit"] if entry.unfit else []
    return {
        "goal": goal.text,
        "bound": goal.bound,
        "worst": entry.worst,
        "interval": _interval(entry),
        "best": entry.best,
        "rows": ", ".join([*_counted(entry), *left_out]),
        "verdict": entry.verdict,
        "before": _before(earlier),
        "at": "" if at is None else _place(at.cell),
        "missed": _missed(entry.missed),
        "peers": goal.peers,
        "binds": beside.get(entry.verdict, ""),
        "cell_hash": "" if at is None else at.cell.hash(),
    }


def _interval(entry: Assessed) -> str:
    if entry.low is None or entry.high is None:
        return ""
    return f"{shown(entry.low)} to {shown(entry.high)}" + (", spans the bound" if entry.open else "")


def _before(earlier: Assessed) -> str:
    if earlier.goal.against is not None and earlier.goal.against.backends:
        return ""
    worst = [] if earlier.worst is None else [shown(earlier.worst)]
    return ", ".join([*worst, *_counted(earlier)])


def _counted(entry: Assessed) -> list[str]:
    """How many rows with a number meet the bound, and how many have none because they failed."""
    met = [f"{entry.met} of {entry.rows}"] if entry.rows else []
    return met + ([f"{entry.failed} failed"] if entry.failed else [])


def _place(cell: Cell) -> str:
    shown = ("Nq", "B", "Lq", "Ld", "d", "length_distribution", "timing_policy")
    given = {axis: value for axis in shown if (value := getattr(cell, axis)) is not None}
    return ": ".join(part for part in (cell.experiment, names.described(given)) if part)


def _missed(rows: tuple[Row, ...]) -> str:
    """Where a goal is missed, by the axes in which these rows differ; nothing for a single one, which is the worst."""
    cells = [row.cell.model_dump() for row in rows]
    differ = [axis for axis in _AXES if len({str(cell[axis]) for cell in cells}) > 1]
    told = [names.described({axis: cell[axis] for axis in differ}) for cell in cells[:_NAMED]] if differ else []
    more = len(cells) - len(told)
    return "; ".join(told) + (f"; and {more} more" if told and more else "")
