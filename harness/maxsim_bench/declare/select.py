"""Filters of the command line: `Lq=32`, `B>=1000`, `B>Nq`, `dtype!=fp32`, `chunk=none`, by the type of the axis.

Read from words, and said as the command that a reader types.

Room: `declare`. Imports nothing else of ours.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from maxsim_bench.declare.experiment import (
    AXES,
    VARIANT,
    DeclarationError,
    Plan,
    Planned,
    ProfileName,
    axis_value,
    matches,
)
from maxsim_bench.declare.load import condition_mistakes, suggest

_FOLDER = Path("experiments")
Verb = Literal["plan", "run", "fidelity"]
_ORDERS = ("<", "<=", ">", ">=")
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
        if operator in _ORDERS and (axis != "memory_cap" or given in AXES):  # a size is no whole number yet
            condition = {axis: f"{operator} {_plain(given)}"}
            told = [mistake for _, mistake in condition_mistakes(condition)]
            problems += [f"--where {text}: {one}" for one in told]
            found += [] if told else [condition]
            continue
        try:
            typed = [_typed(axis, value.strip()) for value in given.split(",")]
        except ValueError as error:
            problems.append(f"--where {text}: {error}.")
            continue
        if operator == "=":
            found.append({axis: typed})
        elif operator == "!=":
            found.append({axis: {"not": typed}})
        elif len(typed) > 1 or not isinstance(typed[0], int):
            problems.append(f"--where {text}: {operator} needs one size.")
        else:
            found.append({axis: f"{operator} {typed[0]}"})
    if problems:
        raise DeclarationError(problems)
    return found


@dataclass(frozen=True)
class Filters:
    """The part of a grid that is asked for, in the words of the options of `plan` and `run`; `memory_cap` in bytes."""

    where: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    memory_cap: int | None = None
    experiments: Path = _FOLDER

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """Of `where`. Raises `DeclarationError` for what cannot be meant."""
        return parse_where(self.where)

    def command(
        self, names: Iterable[str], profile: ProfileName, verb: Verb = "run", gpu: str | None = None,
        *, force: bool = False,
    ) -> str:  # fmt: skip
        """The command that shows or measures this part of the named experiments; of rankings the part by backend.

        Quoted for a shell; whatever names a part of a grid to a reader takes it from here. A cell of rankings has a
        command of its own, with its data set and encoder: `report.origins.command`.

        Args:
            gpu: the card that "plan" is asked about, if it is not the one at hand.
            force: measure again what is finished.
        """
        rankings = verb == "fidelity"  # it takes no conditions on cells
        words = ["maxsim-bench", verb, *([] if rankings else names), "--profile", profile]
        words += [] if gpu is None else ["--gpu", gpu]
        words += ["--force"] if force else []
        words += [word for name in self.backends for word in ("--backend", name)]
        if not rankings:
            words += [word for text in self.where for word in ("--where", text)]
            words += [] if self.memory_cap is None else ["--memory-cap", str(self.memory_cap)]
        words += [] if self.experiments == _FOLDER else ["--experiments", self.experiments.as_posix()]
        return shlex.join(words)


def where_text(axis: str, condition: Any) -> str:
    """The filter that says what a condition of a grid does: a value, a list of values, or a comparison (">= 5000")."""
    text = ",".join(map(str, condition)) if isinstance(condition, (list, tuple)) else str(condition)
    return f"{axis}{text.replace(' ', '')}" if text[:1] in "<>" else f"{axis}={text}"


def select(plan: Plan, where: Iterable[Mapping[str, Any]], backends: Iterable[str] = ()) -> list[Planned]:
    """The planned cells that meet every condition, with those of their backends that are named (all if none is)."""
    conditions, wanted = list(where), set(backends)
    chosen = []
    for planned in plan.planned:
        kept = tuple(b for b in planned.backends if not wanted or b in wanted)
        if kept and all(matches(condition, planned.cell) for condition in conditions):
            chosen.append(Planned(cell=planned.cell, backends=kept))
    return chosen


def _plain(text: str) -> str:
    """A number as a condition writes it (1_000 → 1000); anything else as it is."""
    try:
        return str(int(text))
    except ValueError:
        return text


def _typed(axis: str, text: str) -> Any:
    """The text as a value that a condition takes: numbers where the axis has them, "none" for an unused axis."""
    if text == "none":
        return text
    if axis == "memory_cap":
        return axis_value(axis, text)
    value: Any = text
    if not axis.startswith(VARIANT):
        with suppress(ValueError):
            value = int(text)
    try:
        axis_value(axis, value)
    except ValueError as error:
        raise ValueError(f"{axis} = {text}, but {error}") from None
    return value
