"""What the paper published, as data: claims, tolerances, the mapping to rows, remarks on the elements.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from maxsim_bench.report.load import ReportError

M = TypeVar("M", bound=BaseModel)
INTEGERS = ("Nq", "B", "Lq", "Ld", "d")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Claim(_Strict):
    """One line of claims.csv; sizes are None where the claim names none. `value` is a word for the metric "status"."""

    claim_id: str
    paper_element: str
    experiment: str
    gpu: str
    backend: str
    Nq: int | None
    B: int | None
    Lq: int | None
    Ld: int | None
    d: int | None
    dtype: str
    dataset: str
    encoder: str
    metric: str
    value: str
    unit: str
    relation: Literal["=", "~", "<=", ">=", "up to"]
    superseded: bool
    source: str
    note: str
    baseline: str
    variant: str

    @property
    def number(self) -> float | None:
        """The published value, None for a word."""
        return None if self.metric == "status" else float(self.value)

    @property
    def variants(self) -> dict[str, str]:
        """ "shape=ColPali;chunk=1024;best" → {"shape": "ColPali", "chunk": "1024", "best": ""}."""
        parts = (part.partition("=") for part in self.variant.split(";") if part)
        return {name.strip(): value.strip() for name, _, value in parts}

    def of_baseline(self, variant: str = "") -> Claim:
        """The same number of the claim's baseline; "fp32 baseline" among the variants is its dtype.

        `variant` is what the claim's columns leave unsaid of the baseline.
        """
        changes: dict[str, str] = {"backend": self.baseline, "baseline": ""}
        if variant:
            changes["variant"] = f"{self.variant};{variant}" if self.variant else variant
        if "fp32 baseline" in self.variants:
            changes["dtype"] = "fp32_tf32"
        return self.model_copy(update=changes)

    @property
    def related(self) -> str:
        """How the published value is meant: its relation, or which end of a published range it is."""
        end = self.variants.get("range")
        return f"{end} end of a range" if end else self.relation

    @property
    def published_on(self) -> str:
        """Card, backend and shape for a reader."""
        sizes = [
            f"{axis}={getattr(self, axis)}" for axis in INTEGERS if getattr(self, axis) is not None and axis != "d"
        ]
        width = [f"d={self.d}"] if self.d not in (None, 128) else []
        rest = [self.dataset, self.encoder, self.variant]
        return ", ".join(part for part in [self.gpu, self.backend, self.dtype, *sizes, *width, *rest] if part)


class Tolerance(_Strict):
    """A class of metrics and when a measured number of it confirms a published one.

    Attributes: see the head of `tolerances.toml`.
    """

    across_cards: bool
    percent: float | None = None
    absolute: float | None = None
    better: Literal["lower", "higher", "neither"]
    metrics: tuple[str, ...]
    name: str = ""

    @model_validator(mode="after")
    def _one_width(self) -> Tolerance:
        if (self.percent is None) == (self.absolute is None):
            raise ValueError("give either percent or absolute")
        return self

    def width(self, published: float) -> float:
        """How far from the published value still confirms it."""
        return self.absolute if self.absolute is not None else (self.percent or 0.0) / 100 * abs(published)


class Answering(_Strict):
    """Our backends that answer for one of the paper's.

    Attributes:
        answers: in order of preference; for_memory: those that may only where bytes are asked for.
        beside: our own, shown beside and judged by nobody.
        dtype, cell: of the cells that count; a condition is written as in an experiment's `when`.
        fastest: of several rows the fastest answers (a block or a compiler flavour that is the best of a sweep).
        extra: metric → key of the row's `extra` that holds it.
        note: in what this backend differs from the published one.
        of_dtype: of the claims that it answers; all if none is named (a backend that multiplies in 16 bits says nothing
            about a claim on TF32).
        part: why its numbers, and ratios to them, compare in part only (another version; a step that nobody else can
            run).
        stands_in: why ours answers for the published implementation: nothing of it can. Such verdicts are counted
            apart; where something of it can, a claim without its row is not measured, and ours stands beside.
    """

    answers: tuple[str, ...]
    for_memory: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    dtype: str | None = None
    cell: dict[str, Any] = {}
    fastest: bool = False
    extra: dict[str, str] = {}
    note: str = ""
    of_dtype: tuple[str, ...] = ()
    part: str = ""
    stands_in: str = ""


class Rule(_Strict):
    """Which experiments of ours answer which of the paper's, and how their axes correspond.

    Several rules may fit a claim; they are tried in the order of the file.

    Attributes:
        claims, rows: experiments of the paper, and of ours in order of preference.
        of: elements that it is for; all if none is named.
        axes: sizes that must be equal; partial: a claim that names fewer of them is answered by any such cell.
        match: for rankings, what must be equal.
        metrics: metric → axes that it fixes (a stage of a pipeline).
        words: word among the claim's variants → axes that it fixes.
        every: all rows that fit are meant, not one of them.
        cell, elements: axes of ours that are fixed, and other values of them for an element.
        variant, values: the claim's variants that are axes of ours, and how their values are called here.
        backends: which table of backends counts.
        note: in what the rows differ from the published protocol.
    """

    claims: tuple[str, ...]
    rows: tuple[str, ...]
    of: tuple[str, ...] = ()
    axes: tuple[str, ...] = INTEGERS
    partial: bool = False
    every: bool = False
    match: tuple[str, ...] = ()
    cell: dict[str, Any] = {}
    variant: dict[str, str] = {}
    values: dict[str, str] = {}
    elements: dict[str, dict[str, Any]] = {}
    metrics: dict[str, dict[str, Any]] = {}
    words: dict[str, dict[str, Any]] = {}
    backends: str = "default"
    note: str = ""


class Fill(_Strict):
    """Cells that a claim without a (full) shape speaks of; `every_row`: all rows of the backend that fulfil `when`.

    `why` says in what these cells differ from those of the claim.
    """

    element: str
    experiment: str
    when: dict[str, Any] = {}
    every_row: bool = False
    why: str = ""


class Unmeasured(_Strict):
    """Why no row answers some claims, and the command that would measure them; empty lists mean all.

    Attributes:
        elements, metrics, backends, dtypes, datasets: which claims; variants: variant → values.
        hard: the reason holds whatever rows there are (a quality on synthetic embeddings).
        command: none where nobody outside can measure it (a data sheet, a private record).
    """

    elements: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = {}
    hard: bool = False
    why: str
    command: str = ""

    def covers(self, claim: Claim) -> bool:
        """Whether the claim is one of these."""
        named = (
            (self.elements, claim.paper_element), (self.metrics, claim.metric), (self.backends, claim.backend),
            (self.dtypes, claim.dtype), (self.datasets, claim.dataset),
        )  # fmt: skip
        if any(known and value not in known for known, value in named):
            return False
        return all(claim.variants.get(name) in values for name, values in self.variants.items())


class Kept(_Strict):
    """What one of the two peaks holds and the other does not, by the sizes of the cell.

    Attributes:
        tensor: all similarities of a step, or those of the block before, which the published script kept by a name
            while the next one was made, or gradients in FP32 where a newer version writes them in 16 bits at once
            ("fp32_gradients": of short queries, many on both sides), or a block of a corpus whose size its script fixes
            ("corpus_block", of `documents`), in place of ours; or what ours holds beyond it: the documents of all
            ranks with their gradients ("gathered"), or what the pool of a CUDA graph reserves beyond its tensors
            ("graph_slack").
        element_bytes: of one element.
        why: as a reader is told.
    """

    tensor: Literal["similarities", "former_block", "fp32_gradients", "corpus_block", "gathered", "graph_slack"]
    element_bytes: int
    documents: int = 0
    why: str

    @property
    def ours(self) -> bool:
        """Whether it is ours that holds it."""
        return self.tensor in ("gathered", "graph_slack")


class Unsaid(_Strict):
    """What a ratio's columns leave unsaid of its baseline, as the baseline's own claim or its protocol has it.

    Attributes:
        element, metric, Nq: which claims; variant: of their baseline, written as in claims.csv.
    """

    element: str
    metric: str
    Nq: int
    variant: str


Resident = Literal["inputs", "prepared", "own", "fp32_inputs", "queries"]


class Scratch(_Strict):
    """What the process of a published peak held and our meter leaves out by design.

    Attributes:
        bytes: by the published card, "any" for all of them; resident: tensors of the cell instead.
        beside_argmax: bytes held at a moment of their own, when of what a step allocates only the winning tokens
            (int32) were there: a peak beside that of the whole step, whichever is larger.
        of: our backends whose namesakes' processes held it; all if none is named.
        why: as a reader is told, with its source.
    """

    bytes: dict[str, int] = {}
    resident: tuple[Resident, ...] = ()
    beside_argmax: int = 0
    of: tuple[str, ...] = ()
    why: str

    def held_by(self, backend: str) -> bool:
        """Whether the namesake of this backend of ours held it."""
        return not self.of or backend in self.of


class Peak(_Strict):
    """What a published peak counts beside what a call allocates.

    Attributes:
        resident, bytes, why: counted with every reading; scratched, card: what one reading counts besides, and on
            which card.
        kept: by our backend, what its namesake held that it does not, or the reverse. A verdict is on bytes that were
            measured, so this is told beside it, by its size; `kept_counts` asks for that reading.
        scratch: names of what may stand in the published number as well. Nothing is "better" that one of these
            readings, or that of `kept`, confirms.
    """

    resident: tuple[Resident, ...]
    bytes: int = 0
    scratched: tuple[Scratch, ...] = ()
    card: str = ""
    why: str = ""
    kept: dict[str, Kept] = {}
    kept_counts: bool = False
    scratch: tuple[str, ...] = ()


class Printed(_Strict):
    """Numbers that a script rounds before it writes them: a measured one is compared rounded alike."""

    elements: tuple[str, ...]
    metrics: tuple[str, ...]
    decimals: int
    why: str


class Correspondence(_Strict):
    """The file mapping.toml. `caps`: card → bytes of the cap under which another card answers for it."""

    backends: dict[str, dict[str, Answering]]
    not_measurements: dict[str, str] = {}
    caps: dict[str, int] = {}
    rules: tuple[Rule, ...]
    fill: tuple[Fill, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()
    unsaid: tuple[Unsaid, ...] = ()
    peaks: dict[str, Peak]
    scratch: dict[str, Scratch] = {}
    printed: tuple[Printed, ...] = ()

    @model_validator(mode="after")
    def _scratch_is_known(self) -> Correspondence:
        unknown = {name for peak in self.peaks.values() for name in peak.scratch} - set(self.scratch)
        if unknown:
            raise ValueError(f"peaks name scratch that is not declared: {', '.join(sorted(unknown))}")
        return self


class Remark(_Strict):
    """A note on some claims of an element; empty lists mean all."""

    text: str
    experiments: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def concerns(self, claim: Claim) -> bool:
        """Whether the note is about this claim."""
        named = ((self.experiments, claim.experiment), (self.metrics, claim.metric))
        return all(not known or value in known for known, value in named)


class Element(_Strict):
    """Remarks on one element of the paper; a note that is about some of its claims only says which."""

    title: str
    protocol: str
    notes: tuple[str | Remark, ...] = ()
    missing: str = ""
    command: str = ""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Every note with the claims that it is about."""
        return tuple(note if isinstance(note, Remark) else Remark(text=note) for note in self.notes)


@dataclass(frozen=True)
class Paper:
    """Everything in `experiments/paper/`."""

    claims: tuple[Claim, ...]
    tolerances: Mapping[str, Tolerance]  # by metric
    mapping: Correspondence
    elements: Mapping[str, Element]

    def rules(self, claim: Claim) -> list[Rule]:
        """The rules for the claim's experiment and element, in order; none if nothing of ours answers it."""
        return [
            rule
            for rule in self.mapping.rules
            if claim.experiment in rule.claims and (not rule.of or claim.paper_element in rule.of)
        ]

    def unmeasured(self, claim: Claim) -> Unmeasured | None:
        """Why no row answers the claim, where the mapping says so."""
        return next((u for u in self.mapping.unmeasured if u.covers(claim)), None)

    def baseline(self, claim: Claim) -> Claim:
        """The same number of the claim's baseline, with what the claim's columns leave unsaid."""
        asked = (claim.paper_element, claim.metric, claim.Nq)
        said = (u.variant for u in self.mapping.unsaid if (u.element, u.metric, u.Nq) == asked)
        return claim.of_baseline(next(said, ""))

    def fill(self, claim: Claim) -> Fill | None:
        """The cells that an incomplete claim speaks of."""
        return next(
            (f for f in self.mapping.fill if (f.element, f.experiment) == (claim.paper_element, claim.experiment)), None
        )

    def printed(self, claim: Claim) -> Printed | None:
        """To how many decimals the claim's number was rounded, where its script rounds it."""
        return next(
            (p for p in self.mapping.printed if claim.paper_element in p.elements and claim.metric in p.metrics), None
        )

    def peak(self, claim: Claim) -> Peak:
        """How to read a peak of the claim's element."""
        return self.mapping.peaks.get(claim.paper_element, self.mapping.peaks["default"])

    def with_scratch(self, claim: Claim, backends: Collection[str]) -> Iterator[Peak]:
        """The claim's peak with what the published processes of these backends may have held as well, little first."""
        peak = self.peak(claim)
        held = [one for name in peak.scratch if any((one := self.mapping.scratch[name]).held_by(b) for b in backends)]
        for count in range(1, len(held) + 1):
            for some in combinations(held, count):
                yield peak.model_copy(update={"scratched": some, "card": claim.gpu})


def read_paper(folder: Path) -> Paper:
    """Read and check `claims.csv`, `tolerances.toml`, `mapping.toml` and `elements.toml`.

    Raises:
        ReportError: naming file and place, for what cannot be read, a metric without tolerance, or an unknown element.
    """
    claims = _claims(folder / "claims.csv")
    classes = _validated(folder / "tolerances.toml", Tolerance)
    tolerances = {m: t.model_copy(update={"name": name}) for name, t in classes.items() for m in t.metrics}
    elements = _validated(folder / "elements.toml", Element)
    path = folder / "mapping.toml"
    try:
        mapping = Correspondence.model_validate(_toml(path))
    except ValidationError as error:
        raise ReportError(_told(path, error)) from None
    for claim in claims:
        if claim.metric not in tolerances:
            raise ReportError(
                f"{folder / 'tolerances.toml'}: no class holds the metric {claim.metric!r}. Add it to one."
            )
        if claim.paper_element not in elements:
            raise ReportError(f"{folder / 'elements.toml'}: nothing about {claim.paper_element!r}. Add a table for it.")
    return Paper(claims, tolerances, mapping, elements)


def _claims(path: Path) -> tuple[Claim, ...]:
    found = []
    with _opened(path).open(newline="", encoding="utf-8") as file:
        for line, record in enumerate(csv.DictReader(file), start=2):
            given: dict[str, Any] = dict(record)
            for name in INTEGERS:
                given[name] = int(given[name]) if given.get(name) else None
            given["superseded"] = given.get("superseded") == "yes"
            try:
                claim = Claim.model_validate(given)
                _ = claim.number
            except ValidationError as error:
                raise ReportError(f"{_told(Path(f'{path}:{line}'), error)}. Restore the file.") from None
            except ValueError:
                raise ReportError(f"{path}:{line}: value: {claim.value!r} is no number. Restore the file.") from None
            found.append(claim)
    return tuple(found)


def _opened(path: Path) -> Path:
    if not path.is_file():
        raise ReportError(f"{path}: not there. Run in the checkout, or name the folder of the paper's data.")
    return path


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_opened(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{path}: {error}") from None


def _validated(path: Path, model: type[M]) -> dict[str, M]:
    found: dict[str, M] = {}
    for name, fields in _toml(path).items():
        try:
            found[name] = model.model_validate(fields)
        except ValidationError as error:
            raise ReportError(f"{_told(path, error)} (in {name})") from None
    return found


def _told(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{path}: {'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
