"""Which rows answer a claim: the mapping of `experiments/paper/mapping.toml` applied to the rows at hand.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from maxsim_bench.declare.experiment import axis_of, axis_value, matches
from maxsim_bench.record.row import Row
from maxsim_bench.report.claims.paper import Answering, Claim, Fill, Paper, Rule
from maxsim_bench.report.load import Results

_BYTES = ("peak_gb", "memory_ratio", "status", "first_oom_B", "residual_transient_gb", "grads_gb")


class NoAnswer(LookupError):  # noqa: N818  # it is a finding, not an error of the program
    """No row answers a claim; the message says why."""


@dataclass(frozen=True)
class Answer:
    """Rows that answer a claim.

    Attributes:
        rows: of the first backend that has any, all of one experiment; several where the claim spans several cells.
        beside: rows of our own kernel on the same cells.
        rule, backend: how they were found, and whose they are.
    """

    rows: tuple[Row, ...]
    beside: tuple[Row, ...]
    rule: Rule
    backend: str


class Index:
    """Rows by experiment and backend, and each row's source."""

    def __init__(self, results: Results) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = {}
        self.sources: dict[str, str] = {}
        self.cells: dict[str, dict[str, Row]] = {}
        for row, source in zip(results.rows, results.frame["source"], strict=True):
            names = {row.cell.experiment, "fidelity" if row.cell.op == "fidelity" else row.cell.experiment}
            for name in names:  # rankings are found whatever the experiment that asked for them is called
                self._rows.setdefault((name, row.backend), []).append(row)
            self.sources[row.key] = source
            self.cells.setdefault(row.cell.hash(), {})[row.backend] = row

    def of(self, experiment: str, backend: str) -> list[Row]:
        """Rows of one backend in one experiment."""
        return self._rows.get((experiment, backend), [])


def answer(claim: Claim, paper: Paper, index: Index) -> Answer:
    """The rows that answer a claim.

    Raises:
        NoAnswer: saying what would have to be measured.
    """
    rule = paper.rule(claim)
    element = paper.elements[claim.paper_element]
    if rule is None:
        raise NoAnswer(element.missing or f"no experiment of this project answers {claim.experiment!r}")
    if claim.backend in paper.mapping.not_measurements:
        raise NoAnswer(paper.mapping.not_measurements[claim.backend])
    who = paper.mapping.backends[rule.backends].get(claim.backend)
    if who is None:
        raise NoAnswer(element.missing or f"no backend of this project stands for {claim.backend!r}")
    fill = paper.fill(claim)
    for experiment in rule.rows:
        for backend in _allowed(who, claim):
            found = _matching(claim, rule, who, fill, index.of(experiment, backend))
            if found:
                beside = [row for own in who.beside for row in _same_cells(found, own, index)]
                return Answer(tuple(found), tuple(beside), rule, backend)
    raise NoAnswer(element.missing or _wanted(claim, rule, who))


def baseline_rows(rows: Sequence[Row], claim: Claim, paper: Paper, rule: Rule, index: Index) -> list[Row | None]:
    """For each row the row of the claim's baseline on the same cell, None where it was not measured there."""
    who = paper.mapping.backends[rule.backends].get(claim.baseline)
    if who is None:
        return [None] * len(rows)
    allowed = _allowed(who, claim)
    return [
        next((index.cells[r.cell.hash()][b] for b in allowed if b in index.cells[r.cell.hash()]), None) for r in rows
    ]


def _allowed(who: Answering, claim: Claim) -> tuple[str, ...]:
    return who.answers + (who.for_memory if claim.metric in _BYTES else ())


def _same_cells(rows: Iterable[Row], backend: str, index: Index) -> list[Row]:
    return [found for row in rows if (found := index.cells[row.cell.hash()].get(backend)) is not None]


def _matching(claim: Claim, rule: Rule, who: Answering, fill: Fill | None, rows: Sequence[Row]) -> list[Row]:
    if fill is not None and fill.every_row:
        return [row for row in rows if matches(fill.when, row.cell)]
    wanted = _wanted_axes(claim, rule, who)
    when = fill.when if fill is not None else {}
    found = [row for row in rows if _fits(row, wanted) and matches(when, row.cell)]
    found = [row for row in found if _sized(row, claim, rule, fill)]
    if rule.match:
        named = (claim.dataset, claim.encoder)
        found = [row for row in found if _same_collection(row, named)]
    return _of_one_kind(_preferring_card(found, claim, rule), fill)


def _wanted_axes(claim: Claim, rule: Rule, who: Answering) -> dict[str, Any]:
    wanted = {**rule.cell, **rule.elements.get(claim.paper_element, {}), **who.cell}
    dtype = who.dtype or (claim.dtype if claim.dtype in ("fp16", "bf16", "fp32") else None)
    if dtype and not rule.match:
        wanted["dtype"] = dtype
    for name, axis in rule.variant.items():
        if name in claim.variants:
            text = rule.values.get(claim.variants[name], claim.variants[name])
            wanted[axis] = int(text) if axis == "chunk" else axis_value(axis, text)
    return wanted


def _fits(row: Row, wanted: dict[str, Any]) -> bool:
    return all(axis_of(row.cell, axis) == value for axis, value in wanted.items())


def _sized(row: Row, claim: Claim, rule: Rule, fill: Fill | None) -> bool:
    """Sizes are equal where the claim names them; a claim that names no size needs a rule that fills it."""
    sizes = {axis: getattr(claim, axis) for axis in rule.axes}
    named = {axis: size for axis, size in sizes.items() if size is not None}
    if rule.axes and fill is None and len(named) < len(sizes):
        return False
    return all(getattr(row.cell, axis) == size for axis, size in named.items())


def _same_collection(row: Row, named: tuple[str, str]) -> bool:
    dataset, encoder = (text.lower().rsplit("/", 1)[-1] for text in named)
    return (row.cell.dataset or "").lower() == dataset and (row.cell.encoder or "").lower().rsplit("/", 1)[
        -1
    ] == encoder


def _preferring_card(rows: list[Row], claim: Claim, rule: Rule) -> list[Row]:
    """Rows of the claim's card if there are any, else under its cap, else of whichever card has most of them."""
    cap = rule.caps.get(claim.gpu)
    capped = [row for row in rows if row.cell.memory_cap == cap]
    rows = capped or rows
    own = [row for row in rows if row.cell.gpu == claim.gpu.lower()]
    if own:
        return own
    cards = [row.cell.gpu for row in rows]
    most = max(sorted(set(cards)), key=cards.count, default="")
    return [row for row in rows if row.cell.gpu == most]


def _of_one_kind(rows: list[Row], fill: Fill | None) -> list[Row]:
    """One row for a claim of one cell: a dense one before others, the largest chunk where the backend has none."""
    if fill is not None or len(rows) < 2:
        return rows
    return [
        max(
            rows,
            key=lambda r: (r.cell.layout == "dense", r.status == "ok", r.cell.memory_cap is None, r.cell.chunk or 0),
        )
    ]


def _wanted(claim: Claim, rule: Rule, who: Answering) -> str:
    sizes = [f"{axis}={getattr(claim, axis)}" for axis in rule.axes if getattr(claim, axis) is not None]
    place = f" at {', '.join(sizes)}" if sizes else ""
    data = " on " + " with ".join(p for p in (claim.dataset, claim.encoder) if p) if claim.dataset else ""
    where = " ".join(f"--where {size}" for size in sizes)
    asked = _allowed(who, claim) or who.for_memory
    command = f"maxsim-bench run {rule.rows[0]} --backend {asked[0]} {where}".strip()
    return f"no row of {asked[0]}{place}{data} in {', '.join(rule.rows)}" + ("" if rule.match else f": {command}")
