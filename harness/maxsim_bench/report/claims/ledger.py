"""One line for each claim: published, measured, comparable or not, verdict; and the counts by element.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import pandas as pd

from maxsim_bench.declare.estimate import capacity
from maxsim_bench.record.row import Row
from maxsim_bench.report import names
from maxsim_bench.report.claims.match import Answer, Index, NoAnswer, allowed, answer, answering, baseline_rows
from maxsim_bench.report.claims.paper import Claim, Kept, Paper, Peak, Tolerance
from maxsim_bench.report.claims.unmeasured import declared_together, reason
from maxsim_bench.report.claims.values import Asked, NoValue, arithmetic, rate_readings, value
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.load import Results

Verdict = Literal["holds", "better", "differs", "other hardware", "not measured", "superseded"]
VERDICTS: tuple[Verdict, ...] = ("holds", "better", "differs", "other hardware", "not measured", "superseded")
FOOTPRINT = Peak(resident=("inputs",))
_FAILED_FITS = ("oom", "skipped")
_ARITHMETIC = "arithmetic"  # classes of tolerances.toml: what follows from sizes, and what counters may tell as well
_TRAFFIC = ("traffic", "traffic_ratio")
_REFUSED = ("unsupported", "error")
JUDGED: tuple[Verdict, ...] = ("holds", "better", "differs")
# What depends on the card, by class of tolerances.toml, in words for one and for several.
KINDS = {
    "latency": ("time", "times"),
    "dispersion": ("spread of times", "spreads of times"),
    "throughput": ("rate", "rates"),
    "speedup": ("speed-up", "speed-ups"),
    "share": ("share of a time", "shares of a time"),
    "price": ("price", "prices"),
    "fit": ("outcome such as out of memory", "outcomes such as out of memory"),
}


@dataclass(frozen=True)
class Entry:
    """One line of the ledger. `measured` is a number in the claim's unit, a word for a status, or empty.

    Attributes:
        relation: how the published value is meant, or which end of a published range it is.
        measured_by, measured_on: backend and card; `cell`, `source`: hashes and CSVs that lead back to the rows, those
            of ours where nothing else was measured.
        reading: another reading of the same claim where its protocol allows two, in words.
        ours, ours_by: our own kernel on the same cells, judged by nobody.
        stands_in: why ours answers for the published implementation; empty where that answers itself.
        comparable: whether this kind of number may be compared given where both were measured.
        why: of the verdict; command: what would measure it, for what is not.
    """

    claim_id: str
    element: str
    metric: str
    unit: str
    relation: str
    published: str
    published_on: str
    measured: str
    measured_by: str
    measured_on: str
    ours: str
    ours_by: str
    stands_in: str
    comparable: str
    verdict: Verdict
    why: str
    reading: str
    note: str
    cell: str
    source: str
    command: str


@dataclass(frozen=True)
class Ledger:
    """Every claim with its verdict, in the order of claims.csv."""

    entries: tuple[Entry, ...]
    paper: Paper

    def frame(self) -> pd.DataFrame:
        """One line an entry."""
        return pd.DataFrame([asdict(entry) for entry in self.entries], columns=list(Entry.__dataclass_fields__))

    def summary(self) -> pd.DataFrame:
        """Counts of verdicts by element, in the order of the paper's claims."""
        frame = self.frame()
        order = list(dict.fromkeys(frame["element"]))
        counts = pd.crosstab(frame["element"], frame["verdict"]).reindex(
            index=order, columns=list(VERDICTS), fill_value=0
        )
        counts.insert(0, "title", [self.paper.elements[name].title for name in order])
        counts["claims"] = counts[list(VERDICTS)].sum(axis=1)
        stood = Counter(entry.element for entry in self.entries if _stood_in(entry))
        counts["by ours"] = [stood[name] for name in order]
        return counts.reset_index()

    def stood_in(self) -> int:
        """How many that hold, are better or differ were judged by ours, because nothing published can answer them."""
        return sum(map(_stood_in, self.entries))

    def elsewhere(self) -> dict[str, int]:
        """What stands beside a measurement on other hardware: kind, in words → how many; the most frequent first."""
        kinds = Counter(
            "fit" if not e.measured or e.measured in names.STATUS_WORDS else self.paper.tolerances[e.metric].name
            for e in self.entries
            if e.verdict == "other hardware"
        )
        return {KINDS[kind][count > 1]: count for kind, count in kinds.most_common()}

    def basis(self) -> str:
        """What the verdicts that judge rest on besides a full comparison with a measurement, in one sentence; or ""."""
        judged = [entry for entry in self.entries if entry.verdict in JUDGED]
        told = {
            "by arithmetic over published sizes, redone here": sum(e.measured_by == "arithmetic" for e in judged),
            "by a smaller size that ran out of memory": sum(e.measured == "skipped" for e in judged),
            "in part only (another version or encoder, a step written here)": sum(
                e.comparable.startswith("in part") and not e.stands_in for e in judged
            ),
            "by our own implementation, where the published one has nothing that can answer": self.stood_in(),
        }
        parts = [f"{count} {words}" for words, count in told.items() if count]
        return f"Judged not by a whole comparison with a measurement: {'; '.join(parts)}." if parts else ""

    def counts(self) -> dict[str, int]:
        """Verdict → how many claims."""
        return {verdict: sum(entry.verdict == verdict for entry in self.entries) for verdict in VERDICTS}


def _stood_in(entry: Entry) -> bool:
    return bool(entry.stands_in) and entry.verdict in JUDGED


def ledger(paper: Paper, results: Results, declared: Declared) -> Ledger:
    """The verdict on every claim from the rows at hand; where there are none, what is declared says how to get them."""
    context = _Context(paper, Index(results), results, declared)
    return Ledger(tuple(_entry(claim, context) for claim in paper.claims), paper)


@dataclass(frozen=True)
class _Context:
    """What every claim is judged by."""

    paper: Paper
    index: Index
    results: Results
    declared: Declared


@dataclass
class _Found:
    """What is known of a claim so far."""

    measured: str = ""
    measured_by: str = ""
    measured_on: str = ""
    ours: str = ""
    ours_by: str = ""
    stands_in: str = ""
    comparable: str = ""
    verdict: Verdict = "not measured"
    why: str = ""
    reading: str = ""
    cell: str = ""
    source: str = ""
    command: str = ""

    def also(self, *remarks: str) -> None:
        """Add to the other readings what is not said yet."""
        self.reading = "; ".join(dict.fromkeys(r for r in (self.reading, *remarks) if r))


def _entry(claim: Claim, context: _Context) -> Entry:
    element = context.paper.elements[claim.paper_element]
    found = _found(claim, context)
    if claim.superseded:
        found.verdict, found.why, found.command = "superseded", "the authors replaced this number themselves", ""
    about = [remark.text for remark in element.remarks if remark.concerns(claim)]
    notes = [claim.note, *about] if not claim.superseded else [claim.note]
    return Entry(
        claim_id=claim.claim_id, element=claim.paper_element, metric=claim.metric, unit=claim.unit,
        relation=claim.related, published=claim.value, published_on=claim.published_on,
        note=" ".join(n.rstrip(".") + "." for n in notes if n), **asdict(found),
    )  # fmt: skip


def _found(claim: Claim, context: _Context) -> _Found:
    known = context.paper.unmeasured(claim)
    if known is not None and known.hard:
        return _Found(why=known.why, command=known.command)
    try:
        return _judged(claim, context)
    except NoAnswer:
        missing = reason(claim, context.paper, context.declared, context.index.gpus)
        return _ours_alone(claim, _Found(why=missing.why, command=missing.command), context)
    except NoValue as told:  # a row is there, but not this number of it, or not its baseline's
        return _Found(why=str(told), command=_remedy(claim, context, again=told.again))


def _ours_alone(claim: Claim, told: _Found, context: _Context) -> _Found:
    """Our own rows beside a claim that nothing answers: where they are, and their number if they hold it."""
    with contextlib.suppress(NoAnswer, NoValue):
        found = answer(claim, context.paper, context.index, ours=True)
        number = _number(claim, found.rows, found, context)
        told.ours, told.ours_by = names.number(number, 4), names.backend(found.backend)
        told.cell, told.source = _cells(found.rows), _sources(found.rows, context.index)
    return told


def _remedy(claim: Claim, context: _Context, *, again: bool) -> str:
    """The command for a number that the rows lack: measures the baseline, or everything on the cell again and in turn.

    Half a cell is not measured again: what shared rounds with it would share them no longer. A baseline that is added
    to a cell whose other rows are there would share none either.
    """
    paper, declared = context.paper, context.declared
    if claim.metric == "first_oom_B":  # the published corpus is what is lacking
        return reason(claim.model_copy(update={"B": int(claim.value)}), paper, declared).command
    if again:
        whole = claim.model_copy(update={"baseline": claim.baseline or claim.backend})
        command = reason(whole, paper, declared).command
        return f"{command} --force" if command else ""
    if not claim.baseline:
        return reason(claim, paper, declared).command
    base = paper.baseline(claim)
    if claim.metric == "speedup" and declared_together(claim, base, paper, declared):
        command = reason(base.model_copy(update={"baseline": claim.backend}), paper, declared).command
        return f"{command} --force" if command else ""
    return reason(base, paper, declared).command


def _judged(claim: Claim, context: _Context) -> _Found:
    paper, index = context.paper, context.index
    tolerance = paper.tolerances[claim.metric]
    computed = _computed(claim, paper)
    if computed is not None:
        return _counted(claim, computed, context) if tolerance.name in _TRAFFIC else computed
    found = answer(claim, paper, index)
    if claim.metric == "first_oom_B":
        return _first_oom(claim, found, context)
    told = _told(found, index)
    part = found.who.stands_in or _in_part(claim, found, paper)
    if claim.metric == "status":
        return _qualified(_judged_status(claim, found, told, paper), part)
    failed = found.rows[0]
    if len(found.rows) == 1 and failed.status != "ok":
        return _qualified(_judged_failure(claim, failed, told, paper), part)
    measured = _number(claim, found.rows, found, context)
    assert claim.number is not None, "only a status is a word"
    told.measured = names.number(measured, 4)
    _beside(claim, told, found, context)
    if claim.metric == "achieved_gb_per_s":
        told.also(*rate_readings(found.rows[0]))
    cards = {row.cell.gpu for row in found.rows}
    if not tolerance.across_cards and cards != {claim.gpu.lower()}:
        told.comparable = f"no: {tolerance.name} depends on the card ({claim.gpu or 'not named'} was published)"
        told.verdict = "other hardware"
        told.why = f"{told.measured} {claim.unit} here, {claim.value} {claim.unit} there"
        return _qualified(told, part)
    fill = paper.fill(claim)
    if cards == {claim.gpu.lower()}:
        told.comparable = "yes: same card"
    else:
        told.comparable = f"yes: {tolerance.name} compares across cards"
    _qualified(told, part or (fill.why if fill is not None else ""))
    told.verdict, told.why = _compare(claim, claim.number, measured, tolerance)
    if claim.metric in ("peak_gb", "memory_ratio", "residual_transient_gb"):
        _read_otherwise(claim, told, found, context)
    return _as_printed(claim, told, measured, context.paper)


def _in_part(claim: Claim, found: Answer, paper: Paper) -> str:
    """Why what was measured, or what it is divided by, compares in part only."""
    base = (who.part for _, who in answering(paper.baseline(claim), paper)) if claim.baseline else ()
    return "; ".join(dict.fromkeys(part for part in (found.who.part, *base) if part))


def _qualified(told: _Found, part: str) -> _Found:
    """What compares, compares in part where there is a reason for that; beside what does not the reason is told too."""
    if part:
        told.comparable = f"in part: {part}" if told.comparable.startswith("yes") else f"{told.comparable}; {part}"
    return told


def _as_printed(claim: Claim, told: _Found, measured: float, paper: Paper) -> _Found:
    """Where the published number was rounded before it was written down, the measured one is rounded alike."""
    printed, tolerance = paper.printed(claim), paper.tolerances[claim.metric]
    if printed is None or claim.number is None:
        return told
    exact = f"{told.verdict} ({told.why})"
    told.verdict, why = _compare(claim, claim.number, round(measured, printed.decimals), tolerance)
    told.why = f"{why}, rounded to {printed.decimals} decimals"
    told.also(f"{printed.why}; unrounded: {exact}")
    return told


def _told(found: Answer, index: Index) -> _Found:
    return _Found(
        measured_by=names.backend(found.backend),
        measured_on=", ".join(sorted({names.card(row.cell.gpu) for row in found.rows})),
        stands_in=found.who.stands_in,
        cell=_cells(found.rows),
        source=_sources(found.rows, index),
        reading="; ".join(dict.fromkeys(n for n in (found.rule.note, found.who.note) if n)),
    )


def _cells(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(row.cell.hash() for row in rows))


def _sources(rows: Sequence[Row], index: Index) -> str:
    return ", ".join(sorted({index.sources[row.key] for row in rows}))


def _number(claim: Claim, rows: Sequence[Row], found: Answer, context: _Context, peak: Peak | None = None) -> float:
    """The claim's number over the rows: one row's, or the extreme that the claim's relation speaks of."""
    paper, index = context.paper, context.index
    bases = baseline_rows(rows, claim, paper, index)
    values: list[float] = []
    reasons: list[NoValue] = []
    for row, base in zip(rows, bases, strict=True):
        if row.status != "ok":
            reasons.append(NoValue(f"{row.backend} is {row.status} there: {row.error}"))
            continue
        try:
            values.append(value(Asked(claim, row, base, peak or paper.peak(claim), found.who, index, context.results)))
        except NoValue as told:
            reasons.append(told)
    if not values:
        raise reasons[0]
    return _extreme(claim)(values)


def _extreme(claim: Claim) -> Callable[[list[float]], float]:
    """Over several cells: the low end of a range, the largest of "up to" and "at most", the first of anything else."""
    if claim.metric == "warmup_wall_s":
        return sum  # of all shapes that are warmed up
    if claim.variants.get("range") == "low":
        return min
    if claim.variants.get("range") == "high" or claim.relation in ("<=", "up to"):
        return max
    return lambda values: values[0]


def _beside(claim: Claim, told: _Found, found: Answer, context: _Context) -> None:
    """Our own kernel on the same cells, and the other reading of a peak; what cannot be had is left empty."""
    if found.beside:
        try:
            told.ours = names.number(_number(claim, found.beside, found, context), 4)
            told.ours_by = names.backend(found.beside[0].backend)
        except NoValue:
            told.ours = ""
    fill = context.paper.fill(claim)
    told.also(fill.why if fill is not None else "")
    bases = baseline_rows(found.rows, claim, context.paper, context.index) if claim.baseline else []
    if claim.metric == "speedup" and any(
        base is not None and base.cell != row.cell for row, base in zip(found.rows, bases, strict=False)
    ):
        told.also("a ratio of medians: the baseline was measured on a cell of its own")
    if claim.metric == "speedup" and any(
        base is not None and _replaced(claim, row, base, found, context)
        for row, base in zip(found.rows, bases, strict=False)
    ):
        told.also("the baseline as it was timed in turn with this row; it was measured again later, without it")


def _read_otherwise(claim: Claim, told: _Found, found: Answer, context: _Context) -> None:
    """The number without what the published peak counts beside the call, and by the size of what only one of both held.

    A verdict is on what was measured; where the latter reading is another verdict, `why` says so. But nothing is better
    that a reading with what the published process held confirms.
    """
    peak, tolerance = context.paper.peak(claim), context.paper.tolerances[claim.metric]
    bases = baseline_rows(found.rows, claim, context.paper, context.index) if claim.baseline else []
    backends = {row.backend for row in (*found.rows, *bases) if row is not None}
    held = [kept for backend, kept in peak.kept.items() if backend in backends]
    if claim.metric != "residual_transient_gb" and (peak.bytes or "fp32_inputs" in peak.resident):
        bare = _number(claim, found.rows, found, context, FOOTPRINT)
        told.also(f"as published ({peak.why}); without that: {names.number(bare, 4)} {claim.unit}")
    _read_by_size(claim, told, found, context, held)
    readings = list(context.paper.with_scratch(claim, backends))
    if held:
        readings += [reading.model_copy(update={"kept_counts": True}) for reading in readings]
    for reading in readings:
        number = _number(claim, found.rows, found, context, reading)
        assert claim.number is not None, "only a status is a word"
        otherwise, why = _compare(claim, claim.number, number, tolerance)
        if told.verdict == "better" and otherwise == "holds":
            told.verdict = otherwise
            whose = (*(held if reading.kept_counts else ()), *reading.scratched)
            held_there = "; ".join(one.why for one in whose)
            told.why = f"{why} as {names.number(number, 4)} {claim.unit}: {held_there}; without it {told.why}"


def _read_by_size(claim: Claim, told: _Found, found: Answer, context: _Context, held: Sequence[Kept]) -> None:
    """`_read_otherwise`, by the size of what only one of both held."""
    peak, tolerance = context.paper.peak(claim), context.paper.tolerances[claim.metric]
    measured = _number(claim, found.rows, found, context)
    by_size = _number(claim, found.rows, found, context, peak.model_copy(update={"kept_counts": True}))
    if by_size == measured:
        return
    ours = all(kept.ours for kept in held)
    number = f"{names.number(by_size, 4)} {claim.unit}"
    told.also(f"{'; '.join(kept.why for kept in held)}; {'without' if ours else 'with'} it, by its size: {number}")
    assert claim.number is not None, "only a status is a word"
    otherwise, why = _compare(claim, claim.number, by_size, tolerance)
    what = "without what only ours holds" if ours else "with what the published script held"
    if told.verdict == "better" and otherwise == "holds":
        told.verdict, told.why = otherwise, f"{why} {what}, by its size, {number}; without it {told.why}"
    elif otherwise != told.verdict:
        told.why += f"; {what}, by its size, {number}: {why}"


def _replaced(claim: Claim, row: Row, base: Row, found: Answer, context: _Context) -> bool:
    """Whether the ratio is to an earlier measurement of the baseline, because the newest took no turns with the row."""
    if base.cell != row.cell or (row.speedup is not None and row.speedup_baseline == base.backend):
        return False
    asked = Asked(claim, row, base, context.paper.peak(claim), found.who, context.index, context.results)
    return asked.in_turn(base) not in (base, None)


def _computed(claim: Claim, paper: Paper) -> _Found | None:
    """The verdict on a number that follows from the claim's own sizes; None for one that does not."""
    number = arithmetic(claim) if paper.tolerances[claim.metric].name in (_ARITHMETIC, *_TRAFFIC) else None
    if number is None or claim.number is None:
        return None
    width = next(tolerance for tolerance in paper.tolerances.values() if tolerance.name == _ARITHMETIC)
    verdict, why = _compare(claim, claim.number, number, width)
    return _Found(names.number(number, 4), "arithmetic", "no card", comparable="yes: it follows from sizes alone",
                  verdict=verdict, why=why)  # fmt: skip


def _counted(claim: Claim, computed: _Found, context: _Context) -> _Found:
    """The verdict on what hardware counters saw, the published arithmetic beside it; without counters that alone.

    Where a row is there but its count judges nothing, the arithmetic leads to that row.
    """
    try:
        found = answer(claim, context.paper, context.index)
    except NoAnswer:
        computed.also("computed, as published; no hardware counter was read")
        return computed
    try:
        number = _number(claim, found.rows, found, context)
    except NoValue as told:
        computed.cell, computed.source = _cells(found.rows), _sources(found.rows, context.index)
        computed.also(f"computed, as published; {told}")
        return computed
    tolerance = context.paper.tolerances[claim.metric]
    counted = _told(found, context.index)
    counted.measured = names.number(number, 4)
    _beside(claim, counted, found, context)
    counted.comparable = "yes: the bytes of a call compare across cards, up to what caches keep and tuning chooses"
    assert claim.number is not None, "a number that was computed"
    counted.verdict, why = _compare(claim, claim.number, number, tolerance)
    counted.why = f"counted by hardware: {why}"
    counted.also(f"computed, as published: {computed.measured} {claim.unit}, {computed.verdict} ({computed.why})")
    return counted


def _compare(claim: Claim, published: float, measured: float, tolerance: Tolerance) -> tuple[Verdict, str]:
    """Within the tolerance or the stated bound; else on the better side or not."""
    width = tolerance.width(published)
    slack = f"{tolerance.percent:g} %" if tolerance.percent is not None else f"{tolerance.absolute:g}"
    if math.isnan(measured):
        return "differs", "the measured value is NaN"
    bounded = claim.relation in ("<=", ">=") and "range" not in claim.variants
    if bounded:
        kept = measured <= published if claim.relation == "<=" else measured >= published
        return ("holds", "within the stated bound") if kept else ("differs", "outside the stated bound")
    of = f" of the {claim.variants['range']} end of the published range" if "range" in claim.variants else ""
    if abs(measured - published) <= width:
        return "holds", f"within {slack}{of}"
    off = f"{100 * (measured / published - 1):+.0f} %" if published else f"{measured:g} instead of 0"
    if tolerance.better == ("lower" if measured < published else "higher"):
        return "better", f"{off}, on the better side{of}"
    return "differs", f"{off}, outside {slack}{of}"


def _same_room(claim: Claim, row: Row, paper: Paper) -> bool:
    """Whether the row may use as much memory as the published run: the same card, or its cap."""
    cap = paper.mapping.caps.get(claim.gpu)
    return row.cell.gpu == claim.gpu.lower() or (cap is not None and row.cell.memory_cap == cap)


def _judged_failure(claim: Claim, row: Row, told: _Found, paper: Paper) -> _Found:
    """A number was published, and here there is none: a difference where the rooms or cards are the same."""
    told.measured = row.status
    comparable = row.cell.gpu == claim.gpu.lower() or (row.status in _FAILED_FITS and _same_room(claim, row, paper))
    told.comparable = "yes: the same card or as many bytes" if comparable else "no: another card"
    told.verdict = "differs" if comparable else "other hardware"
    told.why = f"{row.status} here, {claim.value} {claim.unit} there: {row.error}"
    return told


def _judged_status(claim: Claim, found: Answer, told: _Found, paper: Paper) -> _Found:
    """Whether it fits, compared under the same cap (or on the same card); or that a kernel refuses a shape."""
    row = found.rows[0]
    told.measured = row.status
    if claim.value == "not_supported":
        told.comparable = "yes: a refusal does not depend on the card"
        if row.status == "ok":  # as where what ran out of memory there fits here
            told.verdict, told.why = "better", "it runs here"
        else:
            told.verdict = "holds" if row.status in _REFUSED else "differs"
            told.why = f"{row.status} here: {row.error}"
        return told
    if claim.value not in ("oom", "ok"):
        told.verdict, told.why = "not measured", f"{claim.value!r} is a remark on the authors' own run"
        return told
    room, theirs = capacity(row.cell), paper.mapping.caps.get(claim.gpu)
    if claim.value == "oom" and row.status in _FAILED_FITS and room and theirs and room >= theirs:
        told.comparable = "yes: what does not fit in more memory does not fit in less"
        told.verdict, told.why = "holds", f"{row.status} here too, with {room / 1e9:.4g} GB"
        return told
    if not _same_room(claim, row, paper):
        told.comparable = "no: another card has another amount of memory"
        told.verdict, told.why = "other hardware", f"{row.status} here, {claim.value} on {claim.gpu}"
        return told
    told.comparable = "yes: the same number of bytes may be used"
    fitted = "oom" if row.status in _FAILED_FITS else row.status
    if fitted == claim.value:
        not_run = f": not run, {row.error}" if row.status == "skipped" else ""
        told.verdict, told.why = "holds", f"the same outcome{not_run}"
    elif claim.value == "oom" and fitted == "ok":
        told.verdict, told.why = "better", "it fits here"
    else:
        told.verdict, told.why = "differs", f"{row.status} here: {row.error or 'it fits'}"
    return told


def _first_oom(claim: Claim, found: Answer, context: _Context) -> _Found:
    """The smallest corpus that did not fit, among the rows beside the one that the claim names.

    Of the backends that may answer the first whose rows reach that far: what fits below the published corpus says
    nothing of it.

    Raises:
        NoValue: if none does.
    """
    assert claim.number is not None
    short: list[str] = []
    order = allowed(found.who, claim)
    for backend in order[order.index(found.backend) :]:
        like = _over_B(found.rows[0], backend, context.index)
        failed = [r for r in like if r.status in _FAILED_FITS]
        fits = [r for r in like if r.status == "ok" and (not failed or (r.cell.B or 0) < (failed[0].cell.B or 0))]
        largest = (fits[-1].cell.B or 0) if fits else 0
        first = (failed[0].cell.B or 0) if failed else math.inf
        if first > claim.number > largest:
            if fits:
                short.append(f"{backend} fits with {largest} documents and was not measured with {claim.value}")
            continue
        row = (failed or fits)[0]
        told = _told(replace(found, rows=(row,), backend=backend), context.index)
        if not _same_room(claim, row, context.paper):
            told.verdict, told.why = "other hardware", "another card has another amount of memory"
            told.comparable = "no: " + told.why
            return told
        told.comparable = "yes: the same number of bytes may be used"
        told.measured = str(first) if failed else f"> {largest}"
        if first == claim.number:
            told.verdict, told.why = "holds", "the same corpus is the first that does not fit"
        else:
            told.verdict = "better" if first > claim.number else "differs"
            told.why = f"{told.measured} documents instead of {claim.value}"
        return told
    raise NoValue("; ".join(short) or f"{found.backend} was not measured with {claim.value} documents or fewer")


def _over_B(row: Row, backend: str, index: Index) -> list[Row]:
    """Rows of a backend on the cells that differ from the row's by B only, the smallest corpus first."""
    like = [r for r in index.of(row.cell.experiment, backend) if _but_B(r) == _but_B(row)]
    return sorted(like, key=lambda r: r.cell.B or 0)


def _but_B(row: Row) -> dict[str, object]:
    return row.cell.model_dump(exclude={"B"})
