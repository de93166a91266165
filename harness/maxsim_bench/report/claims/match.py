"""Which rows answer a claim: the mapping of `experiments/paper/mapping.toml` applied to the rows at hand.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import axis_value, matches
from maxsim_bench.record.row import Row
from maxsim_bench.report.claims.paper import Answering, Claim, Fill, Paper, Rule
from maxsim_bench.report.load import Results

BYTES = frozenset({"peak_gb", "memory_ratio", "status", "first_oom_B", "residual_transient_gb"})


class NoAnswer(LookupError):  # noqa: N818  # it is a finding, not an error of the program
    """No row answers a claim; the message says why."""


@dataclass(frozen=True)
class Answer:
    """Rows that answer a claim.

    Attributes:
        rows: of the first backend that has any, all of one experiment; several where the claim spans several cells.
        beside: rows of our own kernel on the same cells.
        rule, who, backend: how they were found, and whose they are.
    """

    rows: tuple[Row, ...]
    beside: tuple[Row, ...]
    rule: Rule
    who: Answering
    backend: str


class Index:
    """Rows by experiment and backend, by cell, each row's source, and the most GPUs that any was measured on."""

    def __init__(self, results: Results) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = {}
        self.sources: dict[str, str] = {}
        self.cells: dict[str, dict[str, Row]] = {}
        for row, source in zip(results.rows, results.frame["source"], strict=True):
            for name in _names(row):
                self._rows.setdefault((name, row.backend), []).append(row)
            self.sources[row.key] = source
            self.cells.setdefault(row.cell.hash(), {})[row.backend] = row
        on_cards = [row for row in results.rows if row.status == "ok" and row.cell.gpu != "cpu"]
        self.gpus = max((row.cell.ranks for row in on_cards), default=1)
        self._earlier: dict[tuple[str, str], list[Row]] = {}
        for row, source in results.earlier:
            self._earlier.setdefault((row.cell.hash(), row.backend), []).append(row)
            self.sources.setdefault(row.key, source)

    def of(self, experiment: str, backend: str) -> list[Row]:
        """Rows of one backend in one experiment."""
        return self._rows.get((experiment, backend), [])

    def earlier(self, row: Row) -> list[Row]:
        """Finished rows of the same cell and backend that this one replaced, the newest first."""
        found = [r for r in self._earlier.get((row.cell.hash(), row.backend), []) if r.status == "ok"]
        return sorted(found, key=lambda r: r.measured_at or "", reverse=True)


def _names(row: Row) -> set[str]:
    """The row's experiment; rankings are found whatever the experiment that asked for them is called."""
    return {row.cell.experiment, "fidelity"} if row.cell.op == "fidelity" else {row.cell.experiment}


def answer(claim: Claim, paper: Paper, index: Index, *, ours: bool = False) -> Answer:
    """The rows that answer a claim: of the first rule, experiment and backend that has any.

    A backend that does not claim the cell leaves it to the next one. With `ours` the rows of our own that are shown
    beside an answer, where there is none to find them by.

    Raises:
        NoAnswer: if there are none.
    """
    for rule, who in answering(claim, paper):
        fill = paper.fill(claim)
        for experiment in rule.rows:
            for backend in who.beside if ours else allowed(who, claim):
                rows = [row for row in index.of(experiment, backend) if row.status != "unsupported"]
                found = _matching(claim, paper, rule, who, fill, rows)
                if found:
                    beside = [row for own in who.beside for row in _same_cells(found, own, index)]
                    return Answer(tuple(found), tuple(beside), rule, who, backend)
    raise NoAnswer(f"no row answers {claim.backend} of {claim.paper_element}")


def answering(claim: Claim, paper: Paper) -> list[tuple[Rule, Answering]]:
    """The rules that a claim falls under, each with who answers for its backend there."""
    found = []
    for rule in paper.rules(claim):
        who = paper.mapping.backends[rule.backends].get(claim.backend)
        if who is not None and (not who.of_dtype or claim.dtype in who.of_dtype):
            found.append((rule, who))
    return found


def allowed(who: Answering, claim: Claim) -> tuple[str, ...]:
    """Our backends that may answer, in order of preference."""
    return who.answers + (who.for_memory if claim.metric in BYTES else ())


def baseline_rows(rows: Sequence[Row], claim: Claim, paper: Paper, index: Index) -> list[Row | None]:
    """For each row the claim's baseline: on the same cell, else the row that answers the baseline's own claim.

    None where it was not measured. Times of two cells were not taken in turn, so their ratio is one of medians.
    """
    theirs = paper.baseline(claim)
    found: list[Row | None] = []
    for row in rows:
        base = next((b for b in _on_the_same_cell(row, theirs, paper, index) if b is not None), None)
        found.append(base if base is not None or len(rows) > 1 else _elsewhere(row, theirs, paper, index))
    return found


def _on_the_same_cell(row: Row, theirs: Claim, paper: Paper, index: Index) -> Iterable[Row | None]:
    measured, fill = index.cells[row.cell.hash()], paper.fill(theirs)
    for rule, who in answering(theirs, paper):
        if _names(row) & set(rule.rows) and cell_fits(row.cell, theirs, rule, who, fill):
            rows = [measured[b] for b in allowed(who, theirs) if b in measured]
            yield _fastest(rows)[0] if who.fastest and rows else next(iter(rows), None)


def _elsewhere(row: Row, theirs: Claim, paper: Paper, index: Index) -> Row | None:
    try:
        found = answer(theirs, paper, index).rows
    except NoAnswer:
        return None
    return found[0] if len(found) == 1 and found[0].cell.gpu == row.cell.gpu else None


def _same_cells(rows: Iterable[Row], backend: str, index: Index) -> list[Row]:
    return [found for row in rows if (found := index.cells[row.cell.hash()].get(backend)) is not None]


def _matching(
    claim: Claim, paper: Paper, rule: Rule, who: Answering, fill: Fill | None, rows: Sequence[Row]
) -> list[Row]:
    found = [row for row in rows if cell_fits(row.cell, claim, rule, who, fill)]
    if fill is not None and fill.every_row:
        return found
    found = _preferring_card(found, claim, paper.mapping.caps.get(claim.gpu))
    if fill is not None or rule.every or len(found) < 2:
        return found
    return _fastest(found)[:1] if who.fastest else _plainest(found)


def cell_fits(cell: Cell, claim: Claim, rule: Rule, who: Answering, fill: Fill | None) -> bool:
    """Whether a cell, measured or only declared, is what the claim speaks of under this rule."""
    if fill is not None and fill.every_row:
        return matches(fill.when, cell)
    if not _sized(cell, claim, rule, fill) or not matches(wanted_axes(claim, rule, who), cell):
        return False
    if rule.match and not _same_collection(cell, claim):
        return False
    return fill is None or matches(fill.when, cell)


def wanted_axes(claim: Claim, rule: Rule, who: Answering) -> dict[str, Any]:
    """Conditions beside the sizes: what the rule, the element, the metric, the claim's variants and `who` fix."""
    wanted = {**rule.cell, **rule.elements.get(claim.paper_element, {}), **rule.metrics.get(claim.metric, {})}
    for word in rule.words.keys() & claim.variants.keys():
        wanted |= rule.words[word]
    wanted |= who.cell
    dtype = who.dtype or (claim.dtype if claim.dtype in ("fp16", "bf16", "fp32") else None)
    if dtype and not rule.match:
        wanted["dtype"] = dtype
    for name, axis in rule.variant.items():
        if name in claim.variants:
            text = rule.values.get(claim.variants[name], claim.variants[name])
            wanted[axis] = int(text) if axis == "chunk" else axis_value(axis, text)
    return _typed(wanted)


def _typed(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """An axis that must not be used is written "none" in a condition."""
    return {axis: "none" if value is None else value for axis, value in wanted.items()}


def _sized(cell: Cell, claim: Claim, rule: Rule, fill: Fill | None) -> bool:
    """Sizes are equal where the claim names them; one that names too few needs a rule that says so."""
    sizes = {axis: getattr(claim, axis) for axis in rule.axes}
    named = {axis: size for axis, size in sizes.items() if size is not None}
    if fill is None and not rule.partial and len(named) < len(sizes):
        return False
    return all(getattr(cell, axis) == size for axis, size in named.items())


def _same_collection(cell: Cell, claim: Claim) -> bool:
    def name(text: str | None) -> str:
        return (text or "").lower().rsplit("/", 1)[-1]

    return (name(cell.dataset), name(cell.encoder)) == (name(claim.dataset), name(claim.encoder))


def _preferring_card(rows: list[Row], claim: Claim, cap: int | None) -> list[Row]:
    """Rows of the claim's card if there are any, else under its cap, else of whichever card has most of them."""
    own = [row for row in rows if row.cell.gpu == claim.gpu.lower()]
    if own:
        return own
    rows = [row for row in rows if cap is not None and row.cell.memory_cap == cap] or rows
    cards = [row.cell.gpu for row in rows]
    most = max(sorted(set(cards)), key=cards.count, default="")
    return [row for row in rows if row.cell.gpu == most]


def _plainest(rows: list[Row]) -> list[Row]:
    """One row for a claim of one cell: a dense one before others, the largest chunk where the backend has none."""
    return [
        max(
            rows,
            key=lambda r: (r.cell.layout == "dense", r.status == "ok", r.cell.memory_cap is None, r.cell.chunk or 0),
        )
    ]


def _fastest(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.latency_ms is None, row.latency_ms or 0.0))
