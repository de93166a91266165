"""Expansion of a declared grid: the product of its axes, less what its constraints leave out, each with its reason.

Room: `declare`. Imports nothing else of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import capacity, drawn_documents, input_bytes, known_gpus
from maxsim_bench.declare.experiment import (
    DRAWN,
    PROFILES,
    VARIANT,
    DeclarationError,
    Experiment,
    LeaveOut,
    LeftOut,
    Plan,
    Planned,
    axis_of,
    axis_value,
    matches,
    split_axes,
)
from maxsim_bench.declare.lengths import LENGTHS, parse, too_long


def expand(experiment: Experiment, gpu: str) -> Plan:
    """The grid of one card: each cell once, in the order of the axes, with the backends that measure it.

    A file that names neither `gpu` nor "any" has no cells for it. "any" stands for every card, but not for "cpu",
    because sizes that suit a card take a processor for ever: that one is named or left out.

    Raises `DeclarationError` for a value that its axis does not take, and for lengths beyond Ld of a cell that is not
    left out.
    """
    plan = Plan(planned=[], left_out=[])
    named = experiment.gpus()
    if gpu not in named and (gpu == "cpu" or "any" not in named):
        return plan
    for cell in dict.fromkeys(_product(experiment, gpu)):
        rule = _rule_on(experiment, cell)
        why = _unfit(experiment, cell) if rule is None else rule.why
        if why is not None:
            plan.left_out.append(LeftOut(cell=cell, why=why))
            continue
        backends = backends_for(experiment, cell)
        if backends:
            plan.planned.append(Planned(cell=cell, backends=tuple(backends)))
        for rule in _rules_on_backends(experiment, cell):
            gone = tuple(b for b in rule.backends or () if b in experiment.backends)
            plan.left_out.append(LeftOut(cell=cell, why=rule.why, backends=gone))
    beyond = dict.fromkeys(filter(None, (_beyond(p.cell) for p in plan.planned)))
    if beyond:
        where = experiment.source or experiment.name
        raise DeclarationError([f"{where}: axes.{LENGTHS}: {told}" for told in beyond])
    return plan


def overlong(experiment: Experiment) -> list[str]:
    """What is wrong with uniform lengths beyond Ld, of cells that some card does not leave out; each told once."""
    if not _may_be_overlong(experiment):
        return []
    cards = _cards(experiment)
    suspects = {cell: told for cell in _product(experiment, cards[0]) if (told := _beyond(cell))}
    return list(
        dict.fromkeys(
            told for cell, told in suspects.items()
            if any(_is_planned(experiment, cell.model_copy(update={"gpu": gpu})) for gpu in cards)
        )
    )  # fmt: skip


def idle(experiment: Experiment) -> list[LeaveOut]:
    """Constraints of the file and its profiles that leave nothing out of the grid of any card under any profile: they
    match no cell, or others before them leave out all that they match.
    """
    waiting = [*experiment.leave_out, *(rule for p in experiment.profiles.values() for rule in p.leave_out)]
    for profile in PROFILES:
        under = experiment.under(profile)
        for gpu in _cards(under):
            rules = [rule for rule in waiting if _among(rule, under.leave_out)]
            for cell in _product(under, gpu) if rules else ():
                acting = _acting(under, cell) if any(matches(rule.when, cell) for rule in rules) else []
                rules = [rule for rule in rules if not _among(rule, acting)]
                if not rules:
                    break
            waiting = [rule for rule in waiting if not _among(rule, under.leave_out) or _among(rule, rules)]
    return waiting


def _cards(experiment: Experiment) -> list[str]:
    """The cards that have a grid; "any" is every one that is known, and no processor."""
    return [g for gpu in experiment.gpus() for g in (sorted(known_gpus().keys() - {"cpu"}) if gpu == "any" else [gpu])]


def _is_planned(experiment: Experiment, cell: Cell) -> bool:
    """Whether some backend measures the cell."""
    left = _rule_on(experiment, cell) is not None or _unfit(experiment, cell) is not None
    return not left and bool(backends_for(experiment, cell))


def _beyond(cell: Cell) -> str | None:
    """What is wrong with a cell's uniform lengths beyond its Ld; None for dense documents, which have no others."""
    if cell.length_distribution is None or cell.Ld is None or cell.layout not in ("masked", "packed"):
        return None
    told = too_long(parse(cell.length_distribution), cell.Ld)
    return None if told is None else f"{LENGTHS} = {cell.length_distribution!r}, but {told}, or leave such cells out."


def _may_be_overlong(experiment: Experiment) -> bool:
    """Whether some declared lengths exceed an Ld that they can meet: few files, and only those are multiplied out."""
    named: dict[str, list[dict[str, Any]]] = {}
    for key, rows in flat_axes(experiment).items():
        for name in split_axes(key):
            named[name] = [dict(zip(split_axes(key), row, strict=True)) for row in rows]
    shortest = min((row["Ld"] for row in named.get("Ld", ()) if row["Ld"] is not None), default=None)
    for row in named.get(LENGTHS, ()):
        least = row.get("Ld", shortest)
        if row[LENGTHS] is not None and least is not None and too_long(parse(row[LENGTHS]), least):
            return True
    return False


def _among(rule: LeaveOut, rules: Iterable[LeaveOut]) -> bool:
    """Whether it is one of these, not merely equal to one: a constraint written twice is idle the second time."""
    return any(rule is one for one in rules)


def backends_for(experiment: Experiment, cell: Cell) -> list[str]:
    """The experiment's backends, less those that a constraint leaves out of this cell."""
    gone = {b for rule in _rules_on_backends(experiment, cell) for b in rule.backends or ()}
    return [b for b in experiment.backends if b not in gone]


def _rules_on_backends(experiment: Experiment, cell: Cell) -> list[LeaveOut]:
    """Constraints that remove backends of the experiment from this cell."""
    return [
        rule
        for rule in experiment.leave_out
        if rule.backends is not None and set(rule.backends) & set(experiment.backends) and matches(rule.when, cell)
    ]


def _rule_on(experiment: Experiment, cell: Cell) -> LeaveOut | None:
    """The first constraint that leaves out the cell."""
    rules = (rule for rule in experiment.leave_out if rule.backends is None and matches(rule.when, cell))
    return next(rules, None)


def _acting(experiment: Experiment, cell: Cell) -> list[LeaveOut]:
    """Constraints that leave out something here: this cell, or backends of it that none before them does."""
    rule = _rule_on(experiment, cell)
    if rule is not None:
        return [rule]
    acting: list[LeaveOut] = []
    left = set(experiment.backends)
    for rule in _rules_on_backends(experiment, cell) if _unfit(experiment, cell) is None else ():
        if left & set(rule.backends or ()):
            acting.append(rule)
        left -= set(rule.backends or ())
    return acting


def _unfit(experiment: Experiment, cell: Cell) -> str | None:
    """Why the cell is none of its own, or no backend could run it: its inputs alone take more memory than there is."""
    if axis_of(cell, DRAWN) is not None and (cell.op != "search" or drawn_documents(cell) >= (cell.B or 0)):
        return f"{experiment.source}: axes: {DRAWN} is for searches of more documents than are drawn"
    room = capacity(cell)
    needed = input_bytes(cell)
    if experiment.unfit == "leave_out" and room is not None and needed > room:
        cap = "under its memory cap" if cell.memory_cap else f"on {cell.gpu}"
        return (
            f"{experiment.source}: axes: fits no backend: the inputs alone take {needed / 1e9:.1f} GB, and {cap} there "
            f'are {room / 1e9:.1f} GB. Lower B, or set unfit = "run" to record the failure'
        )
    return None


def _product(experiment: Experiment, gpu: str) -> Iterator[Cell]:
    axes = flat_axes(experiment)
    axes.pop("gpu", None)
    fixed: dict[str, Any] = {"experiment": experiment.name, "gpu": gpu, "op": experiment.op}
    groups = [[dict(zip(split_axes(key), choice, strict=True)) for choice in rows] for key, rows in axes.items()]
    for choices in product(*groups):
        values: dict[str, Any] = {k: v for choice in choices for k, v in choice.items()}
        free = {k.removeprefix(VARIANT): values.pop(k) for k in list(values) if k.startswith(VARIANT)}
        variant = ";".join(f"{k}={v}" for k, v in sorted(free.items()) if v is not None)
        yield Cell(**fixed, **values, variant=variant or None)


def flat_axes(experiment: Experiment) -> dict[str, list[tuple[Any, ...]]]:
    """Axis key → rows of typed values, one for each axis the key names; `timing.policies` is an axis like any other.

    Raises `DeclarationError` for a value that its axis does not take.
    """
    declared = dict(experiment.axes)
    variants = declared.pop("variant", {})
    declared.update({VARIANT + name: values for name, values in variants.items()})
    if experiment.op != "fidelity":  # rankings are not timed
        declared.setdefault("timing_policy", list(experiment.timing.policies))
    flat = {}
    for key, given in declared.items():
        names = split_axes(key)
        rows = given if isinstance(given, (list, tuple)) else [given]
        if len(names) == 1:
            rows = [[value] for value in rows]
        flat[key] = [tuple(_typed(experiment, key, n, v) for n, v in zip(names, row, strict=True)) for row in rows]
    return flat


def _typed(experiment: Experiment, key: str, axis: str, value: Any) -> Any:
    """The value of an axis. A file's are checked where it is loaded; one that code declared says here what is wrong."""
    try:
        return axis_value(axis, value)
    except ValueError as error:
        where = experiment.source or experiment.name
        raise DeclarationError([f"{where}: axes.{key}: {axis} = {value!r}, but {error}."]) from None
