"""Filters of the command line: `Lq=32`, `B>=1000`, `B>Nq`, `dtype!=fp32`, `chunk=none`, by the type of the axis.

Room: `declare`. Imports nothing else of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from maxsim_bench.declare.experiment import AXES, VARIANT, DeclarationError, Plan, Planned, axis_value, matches
from maxsim_bench.declare.load import condition_mistakes, suggest

_FILTER = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|<|>|=)\s*(.+?)\s*")


def parse_where(texts: Iterable[str]) -> list[dict[str, Any]]:
    """One condition for each filter, all of which must hold; "Lq=32,64" admits either value.

    Raises `DeclarationError` with every filter that cannot be meant, and a suggestion.
    """
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    for text in texts:
        parts = _FILTER.fullmatch(text)
        if parts is None:
            problems.append(f"--where {text}: no filter. Write AXIS=VALUE, AXIS=ONE,OTHER or AXIS>=NUMBER.")
            continue
        axis, operator, given = parts.groups()
        if axis not in AXES and not axis.startswith(VARIANT):
            problems.append(f"--where {text}: unknown axis {axis!r}. {suggest(axis, AXES)}")
            continue
        values = given.split(",")
        if operator in ("<", "<=", ">", ">=") and given in AXES:  # B>Nq
            condition = {axis: f"{operator} {given}"}
            problems += [f"--where {text}: {told}" for _, told in condition_mistakes(condition)]
            found.append(condition)
            continue
        try:
            typed = [_typed(axis, value.strip()) for value in values]
        except ValueError as error:
            problems.append(f"--where {text}: {error}.")
            continue
        if operator == "=":
            found.append({axis: typed})
        elif operator == "!=":
            found.append({axis: {"not": typed}})
        elif len(typed) > 1 or not isinstance(typed[0], int):
            problems.append(f"--where {text}: {operator} needs one number or axis.")
        else:
            found.append({axis: f"{operator} {typed[0]}"})
    if problems:
        raise DeclarationError(problems)
    return found


def select(plan: Plan, where: Iterable[Mapping[str, Any]], backends: Iterable[str] = ()) -> list[Planned]:
    """The planned cells that meet every condition, with those of their backends that are named (all if none is)."""
    conditions, wanted = list(where), set(backends)
    chosen = []
    for planned in plan.planned:
        kept = tuple(b for b in planned.backends if not wanted or b in wanted)
        if kept and all(matches(condition, planned.cell) for condition in conditions):
            chosen.append(Planned(cell=planned.cell, backends=kept))
    return chosen


def _typed(axis: str, text: str) -> Any:
    """The text as a value that a condition takes: numbers where the axis has them, "none" for an unused axis."""
    if text == "none" or axis.startswith(VARIANT):
        return text
    if axis == "memory_cap":
        return axis_value(axis, text)
    try:
        value: Any = int(text)
    except ValueError:
        value = text
    try:
        axis_value(axis, value)
    except ValueError as error:
        raise ValueError(f"{axis} = {text}, but {error}") from None
    return value
