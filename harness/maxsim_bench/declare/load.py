"""TOML file in, checked `Experiment` out; or every mistake of the file at once, with line, key and suggestion.

Room: `declare`. Imports nothing else of ours.
"""

from __future__ import annotations

import math
import re
import reprlib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import known_gpus
from maxsim_bench.declare.experiment import (
    AXES,
    PROFILES,
    VARIANT,
    AllowedFailure,
    DeclarationError,
    Experiment,
    LeaveOut,
    Profile,
    ProfileName,
    Timing,
    axis_value,
    comparison,
    split_axes,
)
from maxsim_bench.declare.grid import flat_axes, overlong
from maxsim_bench.declare.lengths import LENGTHS, parse

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path_ = tuple[str | int, ...]  # where in the file: ("profiles", "smoke", "axes", "B")
_MOST_CELLS = 100_000  # a mistyped list multiplies; at a second a cell this is more than a day
_TENSORS = ("Nq", "B", "Lq", "Ld", "d", "dtype")
_NEEDED = {"forward": _TENSORS, "training_step": _TENSORS, "search": (*_TENSORS, "k")}

_FIELDS: dict[str, Collection[str]] = {
    "": [f for f in Experiment.model_fields if f != "source"],
    "timing": Timing.model_fields,
    "leave_out": LeaveOut.model_fields,
    "allow": AllowedFailure.model_fields,
    "smoke": Profile.model_fields,
    "paper": Profile.model_fields,
    "profiles": ("smoke", "paper"),
}


def load_directory(
    folder: Path, backends: Collection[str] | None = None, collections: Collection[str] | None = None
) -> dict[str, Experiment]:
    """Every experiment below `folder` by name, sorted. Raises one `DeclarationError` with the mistakes of all files."""
    found: dict[str, Experiment] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            found[path.stem] = load(path, backends, collections)
        except DeclarationError as error:
            problems += error.problems
    if problems:
        raise DeclarationError(problems)
    return found


def load(path: Path, backends: Collection[str] | None = None, collections: Collection[str] | None = None) -> Experiment:
    """The experiment that `path` declares.

    `backends` and `collections` (whose documents' lengths can be drawn) are the known names (None: not checked).

    Raises `DeclarationError` with one line for each mistake: `file:line: key: what is wrong. What to do.`
    """
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except OSError as error:
        raise DeclarationError([f"{path}: cannot be read: {error.strerror}. Check the name."]) from None
    except UnicodeDecodeError as error:
        raise DeclarationError([f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8."]) from None
    except tomllib.TOMLDecodeError as error:
        message = re.sub(r" \(at (line (\d+), column \d+|end of document)\)$", "", str(error))
        line = re.search(r"\(at line (\d+)", str(error))
        where = line[1] if line else text.count("\n") + 1
        raise DeclarationError([f"{path}:{where}: not TOML: {message}."]) from None
    lines = _line_numbers(text)
    mistakes = sorted(set(_mistakes(path, given, backends, collections)), key=lambda m: (_line(lines, m[0]), m[1]))
    if not mistakes:
        experiment = Experiment.model_validate({**given, "source": str(path)})
        mistakes = list(dict.fromkeys(_size_mistakes(experiment)))
    if mistakes:
        raise DeclarationError([f"{path}:{_line(lines, at)}: {_name(at)}{told}" for at, told in mistakes])
    return experiment


def suggest(word: str, choices: Collection[str]) -> str:
    """ "Did you mean 'fused'?", or the list of choices if nothing is close."""
    lower = {c.lower(): c for c in choices}
    close = [lower[c] for c in get_close_matches(word.lower(), list(lower), n=1, cutoff=0.6)]
    return f"Did you mean {close[0]!r}?" if close else f"Choose from {', '.join(sorted(choices))}."


def _mistakes(
    path: Path, given: dict[str, Any], backends: Collection[str] | None, collections: Collection[str] | None
) -> Iterator[tuple[Path_, str]]:
    try:
        experiment = Experiment.model_validate({**given, "source": str(path)})
    except ValidationError as error:
        yield from map(_from_pydantic, error.errors())
        experiment = None
    for at, axes in _tables(given, "axes"):
        yield from _axis_mistakes(at, axes, collections)
    variants = {name for _, axes in _tables(given, "axes") for name in _variants(axes)}
    for at, when in _tables(given, "when"):
        yield from (((*at, axis), told) for axis, told in condition_mistakes(when, variants))
    yield from _backend_mistakes(given, backends)
    if given.get("name") not in (None, path.stem):
        yield (
            ("name",),
            f"{given['name']!r}, but the file is {path.name}. Name both alike, the CSV too takes this name.",
        )
    free = [axes.get("variant", {}) for _, axes in _tables(given, "axes")]
    if experiment is not None and all(isinstance(axes, dict) for axes in free):  # else no profile can be applied
        for profile in PROFILES:
            if profile != "full" and profile not in experiment.profiles:
                continue
            yield from _profile_mistakes(experiment, profile)


def _size_mistakes(experiment: Experiment) -> Iterator[tuple[Path_, str]]:
    """Axes that the operator cannot do without, and a grid that nobody means to measure."""
    declared = {name for key in experiment.axes for name in split_axes(key)}
    absent = [axis for axis in _NEEDED.get(experiment.op, ()) if axis not in declared]
    if absent:
        yield ("axes",), f"{', '.join(absent)} not given, but op = {experiment.op!r} needs a value for each. Add them."
    for profile in PROFILES:
        if profile != "full" and profile not in experiment.profiles:
            continue
        rows = flat_axes(experiment.under(profile))
        cells = math.prod([len(rows[key]) for key in rows])
        if cells > _MOST_CELLS:
            yield (
                ("axes",) if profile == "full" else ("profiles", profile, "axes"),
                f"the axes span {cells:,} cells, more than {_MOST_CELLS:,}. Thin them out, or link some.",
            )
            continue
        for told in overlong(experiment.under(profile)):
            yield _axis_place(experiment, profile, LENGTHS), told


def _axis_place(experiment: Experiment, profile: ProfileName, axis: str) -> Path_:
    """Where an axis of the experiment under a profile is given: by the profile, or by the file."""
    change = experiment.profiles.get(profile) if profile != "full" else None
    own = {} if change is None else change.axes
    for at, axes in ((("profiles", profile, "axes"), own), (("axes",), experiment.axes)):
        for key in axes:
            if axis in split_axes(key):
                return (*at, key)
    return ("axes",)


# What pydantic calls a value that TOML calls otherwise.
_CALLED = {"model_type": "a table", "model_attributes_type": "a table", "dict_type": "a table", "tuple_type": "a list"}


def _from_pydantic(error: ErrorDetails, at: Path_ = ()) -> tuple[Path_, str]:
    """A mistake that pydantic found, with its place below `at`: what was given, and what is allowed."""
    loc, kind = (*at, *error["loc"]), error["type"]
    if kind == "extra_forbidden":
        table = next((str(part) for part in reversed(loc[:-1]) if isinstance(part, str)), "")
        if table in _FIELDS:  # else it stands below a key that is told itself
            return loc, f"unknown key. {suggest(str(loc[-1]), _FIELDS[table])}"
    if kind == "missing":
        return loc[:-1], f"{loc[-1]} is missing."
    if len(loc) > 1 and loc[0] == "profiles" and loc[1] not in _FIELDS["profiles"]:
        return loc[:2], f"unknown profile. {suggest(str(loc[1]), _FIELDS['profiles'])} The file itself is full."
    if kind == "value_error":  # of a validator of ours, which shows the value
        message = error["msg"].removeprefix("Value error, ")
        return loc, message[0].lower() + message[1:] + "."
    message = f"Input should be {_CALLED[kind]}" if kind in _CALLED else error["msg"]
    return loc, f"{reprlib.repr(error['input'])}, but {message[0].lower() + message[1:]}."


def _tables(given: Any, name: str, at: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Every table called `name`, wherever it stands, with its place; axes are not searched for further tables."""
    items = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else ()
    for key, value in items:
        if key == name and isinstance(value, dict):
            yield (*at, key), value
        elif key != "axes":
            yield from _tables(value, name, (*at, key))


def _variants(axes: dict[str, Any]) -> Collection[str]:
    declared = axes.get("variant")
    return declared if isinstance(declared, dict) else ()


def _axis_mistakes(at: Path_, axes: dict[str, Any], collections: Collection[str] | None) -> Iterator[tuple[Path_, str]]:
    for key, given in axes.items():
        if key == "variant":
            if not isinstance(given, dict):
                yield (*at, key), "is a table: [axes.variant] with one list for each free axis."
                continue
            for name, values in given.items():
                if not re.fullmatch(r"\w+", name):  # cells keep them as "name=value;name=value"
                    yield (*at, key, name), f"{name!r} is no name. Write letters, digits and underscores."
                yield from _value_mistakes((*at, key, name), [VARIANT + name], values, collections)
            continue
        names = split_axes(key)
        unknown = [n for n in names if n not in AXES]
        if unknown:
            yield (*at, key), f"unknown axis {unknown[0]!r}. {suggest(unknown[0], AXES)}"
        else:
            yield from _value_mistakes((*at, key), names, given, collections)


def _value_mistakes(
    at: Path_, names: list[str], given: Any, collections: Collection[str] | None
) -> Iterator[tuple[Path_, str]]:
    rows = given if isinstance(given, list) else [given]
    if not rows:
        yield at, "is empty, so the grid has no cell. Give at least one value, or remove the axis."
    if len({repr(row) for row in rows}) < len(rows):
        twice = next(row for i, row in enumerate(rows) if row in rows[:i])
        yield at, f"holds {twice!r} twice. Remove one."
    for row in rows:
        if len(names) > 1 and (not isinstance(row, list) or len(row) != len(names)):
            yield at, f"{row!r} is not one value for each of {', '.join(names)}. Write [[32, 300], [32, 1024]]."
            continue
        for name, value in zip(names, row if len(names) > 1 else [row], strict=True):
            if name == "gpu":
                if value != "any" and str(value) not in known_gpus():
                    yield at, f"unknown card {value!r}. {suggest(str(value), ['any', *known_gpus()])}"
                continue
            try:
                if name == LENGTHS and isinstance(value, str) and value != "none":
                    parse(value, collections)
                axis_value(name, value)
            except (ValueError, TypeError) as error:
                todo = "Take it out of its inner list" if isinstance(value, list) else "Remove or correct it"
                yield at, f"{name} = {value!r}, but {error}. {todo}."


def condition_mistakes(when: Mapping[str, Any], variants: Collection[str] | None = None) -> Iterator[tuple[str, str]]:
    """(axis, what is wrong with it) of every condition that `matches` cannot judge, or that holds for no cell.

    Args:
        variants: names of the free axes that cells have (None: not checked).
    """
    for axis, condition in when.items():
        if axis not in AXES and not axis.startswith(VARIANT):
            yield axis, f"unknown axis. {suggest(axis, AXES)}"
            continue
        free = axis.removeprefix(VARIANT)
        if variants is not None and axis.startswith(VARIANT) and free not in variants:
            yield axis, f"no cell has this axis. {suggest(free, variants) if variants else 'None has a variant.'}"
            continue
        pending = [condition]
        while pending:
            one = pending.pop()
            if isinstance(one, dict) and set(one) == {"not"}:
                pending.append(one["not"])
            elif isinstance(one, dict):
                yield axis, f"{one!r} is no condition. The only table is {{ not = value }}."
            elif isinstance(one, list) and not one:
                yield axis, "[] never holds. Give at least one value, or remove the condition."
            elif isinstance(one, list):
                pending += one
            else:
                told = _comparison_mistake(axis, one) if comparison(one)[0] else _never_holds(axis, one)
                if told is not None:
                    yield axis, told


def _comparison_mistake(axis: str, condition: str) -> str | None:
    """What is wrong with "> 5000" or "> B" on an axis; None where it can be judged."""
    operator, operand = comparison(condition)
    number = re.fullmatch(r"-?\d+", operand)
    if operand not in AXES and not number:
        return f"{condition!r} compares with neither a whole number nor an axis. {suggest(operand, AXES)}"
    if operator == "!=" and not number:
        return None
    for name in [axis] if number else [axis, operand]:
        if not _counts(name):
            return f"{condition!r} compares whole numbers, and {name} is none. Write a value, or a list of values."
    if not number:
        return None
    told = _never_holds(axis, int(operand))
    return None if told is None else f"{condition!r}: {told}"


def _counts(axis: str) -> bool:
    """Whether the values of an axis are whole numbers."""
    return axis in AXES and int in (Cell.model_fields[axis].annotation, *get_args(Cell.model_fields[axis].annotation))


def _never_holds(axis: str, value: Any) -> str | None:
    try:
        axis_value(axis, value)
    except (ValueError, TypeError) as error:
        return f"{value!r} never holds: {error}."
    return None


def _backend_mistakes(given: dict[str, Any], known: Collection[str] | None) -> Iterator[tuple[Path_, str]]:
    declared = given.get("backends")
    listed = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    mine = [name for name in listed if isinstance(name, str)]  # of what is no name pydantic tells
    if len(set(mine)) < len(mine):
        yield ("backends",), "names a backend twice. Remove one."
    for name in mine:
        if known is not None and name not in known:
            yield ("backends",), f"unknown backend {name!r}. {suggest(str(name), known)}"
    others: list[tuple[Path_, Any]] = [(("baseline",), given["baseline"])] if "baseline" in given else []
    for section in ("leave_out", "allow"):
        others += _of_rules((section,), given.get(section))
    others += [(("timing", "setup_seconds"), _set_up(given.get("timing")))]
    profiles = given.get("profiles")
    for profile, change in (profiles if isinstance(profiles, dict) else {}).items():
        if isinstance(change, dict):
            others.append((("profiles", profile, "backends"), change.get("backends", [])))
            others += _of_rules(("profiles", profile, "leave_out"), change.get("leave_out"))
            others.append((("profiles", profile, "timing", "setup_seconds"), _set_up(change.get("timing"))))
    for at, names in others:
        for name in [names] if isinstance(names, str) else names if isinstance(names, list) else []:
            if name not in mine:
                yield at, f"{name!r} is not among the backends of this experiment. {suggest(str(name), mine)}"


def _of_rules(at: Path_, entries: Any) -> list[tuple[Path_, Any]]:
    """The backends that each table of a list names, with their place; of what is no table pydantic tells."""
    listed = enumerate(entries if isinstance(entries, list) else [])
    return [((*at, i, "backends"), entry.get("backends", [])) for i, entry in listed if isinstance(entry, dict)]


def _set_up(timing: Any) -> list[str]:
    """The backends that a table of timing names."""
    named = timing.get("setup_seconds") if isinstance(timing, dict) else None
    return list(named) if isinstance(named, dict) else []


def _profile_mistakes(experiment: Experiment, profile: ProfileName) -> Iterator[tuple[Path_, str]]:
    """What shows only once a profile has been applied: axes named twice or lost, bad timing, a grid without cells."""
    at: Path_ = () if profile == "full" else ("profiles", profile)
    try:
        changed = experiment.under(profile)
    except ValidationError as error:
        yield from (_from_pydantic(e, (*at, "timing")) for e in error.errors())
        return
    named = [n for key in changed.axes for n in split_axes(key)]
    for axis in sorted({n for n in named if named.count(n) > 1}):
        yield (*at, "axes"), f"{axis} is given twice. Name it in one key only."
    if "timing_policy" in named and changed.timing.policies != ("cold_l2",):
        yield (*at, "timing", "policies"), "is the axis timing_policy, which is given too. Remove one."
    for policy in changed.timing.policies:
        try:
            axis_value("timing_policy", policy)
        except ValueError as error:
            yield (*at, "timing", "policies"), f"{policy!r}: {error}."
    lost = {n for key in experiment.axes for n in split_axes(key)} - set(named)
    if lost:
        yield (*at, "axes"), f"replaces a linked axis but not {', '.join(sorted(lost))}. Give every axis of the link."


def _line_numbers(text: str) -> dict[Path_, int]:
    """Place of every table and key → line.

    tomllib keeps none, and TOML's grammar is not ours to repeat: headers and the keys that begin a line are enough to
    name the line of a mistake; what stands inside a value has the line of its key.
    """
    lines: dict[Path_, int] = {}
    counts: dict[Path_, int] = {}
    table: Path_ = ()
    in_text = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if in_text:
            in_text = "" if in_text in line else in_text
            continue
        header = re.match(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(#.*)?$", line)
        key = re.match(r"""\s*("[^"]+"|'[^']+'|[\w.-]+)\s*=""", line)
        if header and "," not in header[2]:
            table = _place(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key:
            lines.setdefault((*table, *_place(key[1])), number)
        for mark in ('"""', "'''"):
            if line.count(mark) % 2:
                in_text = mark
    return lines


def _place(dotted: str) -> Path_:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", dotted.strip()))


def _line(lines: dict[Path_, int], at: Path_) -> int:
    while at and at not in lines:
        at = at[:-1]
    return lines.get(at, 1)


def _name(at: Path_) -> str:
    return ".".join(str(part) for part in at if not isinstance(part, int)) + ": " if at else ""
