"""An experiment as its TOML declares it: axes, constraints with reasons, backends, timing, allowed failures, profiles.

Room: `declare`. Imports nothing else of ours. `load.py` reads the file, `grid.py` expands it to cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Protocol

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from maxsim_bench.declare.cell import Cell, Op
from maxsim_bench.declare.lengths import LENGTHS, parse

Status = Literal["ok", "incorrect", "oom", "error", "timeout", "crash", "unsupported", "skipped"]
Isolation = Literal["shared", "fresh"]
ProfileName = Literal["smoke", "paper", "full"]
PROFILES: tuple[ProfileName, ...] = ("smoke", "paper", "full")

# "unsupported" says what a backend does not claim to do, "skipped" follows from a row that is judged itself.
FAILURES = frozenset({"incorrect", "oom", "error", "timeout", "crash"})

# What a grid may vary: every field of a cell but the two that the experiment as a whole decides.
AXES = tuple(name for name in Cell.model_fields if name not in ("experiment", "op", "variant"))
VARIANT = "variant."
DRAWN = VARIANT + "drawn"  # how many documents are drawn, of which a search's corpus of B is made by repetition

# The caps that the paper's figures call 40 GB and 80 GB: the usable bytes of its two A100 cards.
NAMED_CAPS = {"40GB": 42_400_000_000, "80GB": 85_000_000_000}
_SIZES = "Write bytes, or a number with MB, GB, MiB or GiB: 40GB"
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class DeclarationError(ValueError):
    """One or more mistakes in what was declared. `problems` holds one complete message each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def parse_bytes(value: str | int | float) -> int:
    """Bytes from 42.4e9, "16GB" (10⁹), "16GiB" (2³⁰); "40GB" and "80GB" mean the cards of the paper (`NAMED_CAPS`)."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a size. {_SIZES}")
    if not isinstance(value, str):
        amount = float(value)
    elif value.replace(" ", "").upper() in NAMED_CAPS:
        return NAMED_CAPS[value.replace(" ", "").upper()]
    else:
        text = value.replace(" ", "").upper()
        digits = text.rstrip("KMGIB")
        try:
            amount = float(digits) * _UNITS[text[len(digits) :] or "B"]
        except (ValueError, KeyError):
            raise ValueError(f"{value!r} is not a size. {_SIZES}") from None
    if not 1 <= amount < float("inf"):
        raise ValueError(f"{value!r} is not a size of at least one byte")
    return int(amount)


def axis_value(axis: str, value: Any) -> Any:
    """`value` as the cell's field `axis` types it; "none" leaves the axis unused. Raises ValueError with the reason."""
    if value == "none":
        return None
    if axis == DRAWN and not (str(value).isdecimal() and int(value) > 0):
        raise ValueError("a number of documents is a whole number, at least 1")
    if axis.startswith(VARIANT):
        if isinstance(value, (str, int, float)) and not set(str(value)) & {";", "="}:
            return str(value).lower() if isinstance(value, bool) else str(value)
        raise ValueError("a variant is a word or a number without ';' and '='")
    if axis == "memory_cap":
        return parse_bytes(value)
    try:
        typed = _typed(axis).validate_python(value, strict=True)
    except ValidationError as error:
        # a union reports every branch; the one about None helps nobody
        told = [e["msg"] for e in error.errors() if e["type"] != "none_required"]
        raise ValueError(told[0][0].lower() + told[0][1:]) from None
    if axis == LENGTHS and typed is not None:
        parse(typed)
    return typed


@cache
def _typed(axis: str) -> TypeAdapter[Any]:
    """The type of a cell's field, built once: building takes longer than most of what is validated with it."""
    field = Cell.model_fields[axis]
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind)


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Timing(_Declared):
    """How long a backend of a cell is sampled, and when it is given up.

    Attributes:
        seconds: of sampling for each backend and cell, unless the interval is narrow enough before.
        min_samples, max_samples: bounds on the number of samples.
        width_percent: sampling stops when the 95 % interval of the median is within this.
        timeout_s: a backend that takes longer on one cell, preparation included, becomes a row `timeout`.
        policies: values of the axis `timing_policy`.
        setup_seconds: what a backend is known to need before its first sample (compilation), for the plan's estimate.
    """

    seconds: float = Field(default=1.0, gt=0, le=600)
    min_samples: int = Field(default=10, ge=1)
    max_samples: int = Field(default=2000, ge=1)
    width_percent: float = Field(default=1.0, gt=0)
    timeout_s: float = Field(default=300.0, gt=0)
    policies: Names = ("cold_l2",)
    setup_seconds: dict[str, Annotated[float, Field(ge=0)]] = {}

    @field_validator("max_samples")
    @classmethod
    def _bounds(cls, most: int, given: ValidationInfo) -> int:
        least = given.data.get("min_samples", 1)
        if most < least:
            raise ValueError(f"{most} is less than min_samples = {least}")
        return most


class LeaveOut(_Declared):
    """Cells (or some backends of them) that a grid leaves out, and why."""

    when: dict[str, Any]
    why: str = Field(min_length=1)
    backends: Names | None = None


class FailedRow(Protocol):
    """What `AllowedFailure` reads of a row (a `record.row.Row` is one)."""

    @property
    def cell(self) -> Cell: ...
    @property
    def backend(self) -> str: ...
    @property
    def status(self) -> str: ...


class AllowedFailure(_Declared):
    """A status that is a result, not a failure: out of memory, for what is known to materialise."""

    status: Annotated[tuple[Status, ...], BeforeValidator(_listed), Field(min_length=1)]
    why: str = Field(min_length=1)
    backends: Names | None = None
    when: dict[str, Any] = {}

    def allows(self, row: FailedRow) -> bool:
        """Whether this declaration covers the row's status, backend and cell."""
        named = self.backends is None or row.backend in self.backends
        return row.status in self.status and named and matches(self.when, row.cell)


class Profile(_Declared):
    """What a smaller profile changes: whole axes are replaced, timing fields overridden, constraints added."""

    axes: dict[str, Any] = {}
    backends: Names | None = None
    timing: dict[str, Any] = {}
    leave_out: tuple[LeaveOut, ...] = ()


class Experiment(_Declared):
    """One file of `experiments/`.

    Attributes:
        name, title, description: the name is the file's, and the name of its CSV.
        op: what runs.
        elements: tables, figures and sections of the paper that its rows answer ("tab:fwd").
        backends: names, in the order of tables.
        baseline: the backend that speed-ups are relative to; rows of a cell without it have none.
        isolation: "shared" reuses a healthy worker, "fresh" starts a process for each backend and cell.
        unfit: what happens to a cell whose inputs alone exceed the card (or its cap): left out with that reason, or
            run, where running out of memory is the result.
        axes: axis → value or list; "Lq, Ld" → list of pairs varies both together; [axes.variant] names free ones.
        timing_overrides, profiles: see `Timing`, `Profile`. The profile `full` is the file as it stands.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str = Field(min_length=1)
    description: str = ""
    op: Op = "forward"
    elements: tuple[str, ...] = ()
    backends: Names
    baseline: str | None = None
    isolation: Isolation = "shared"
    unfit: Literal["leave_out", "run"] = "leave_out"
    axes: dict[str, Any] = Field(min_length=1)
    timing: Timing = Timing()
    leave_out: tuple[LeaveOut, ...] = ()
    allow: tuple[AllowedFailure, ...] = ()
    profiles: dict[Literal["smoke", "paper"], Profile] = {}
    source: str = ""  # the file it came from, for messages

    @property
    def verb(self) -> Literal["run", "fidelity"]:
        """The command of `maxsim-bench` that measures it: rankings have one of their own."""
        return "fidelity" if self.op == "fidelity" else "run"

    def failed(self, row: FailedRow) -> bool:
        """Whether the row counts against the exit code: a failure that no declaration allows."""
        return row.status in FAILURES and not any(a.allows(row) for a in self.allow)

    def cells(self, gpu: str, profile: ProfileName = "full") -> list[Cell]:
        """The cells for one card, in the order of the axes; none if the experiment is not declared for it."""
        return [p.cell for p in self.plan(gpu, profile).planned]

    def left_out(self, gpu: str, profile: ProfileName = "full") -> list[LeftOut]:
        """What the grid of that card leaves out, with reasons."""
        return self.plan(gpu, profile).left_out

    def backends_for(self, cell: Cell, profile: ProfileName = "full") -> list[str]:
        """The backends that measure this cell: all of the profile's, but those a constraint leaves out."""
        from maxsim_bench.declare.grid import backends_for

        return backends_for(self.under(profile), cell)

    def plan(self, gpu: str, profile: ProfileName = "full") -> Plan:
        """Cells with their backends, and what was left out, for one card."""
        from maxsim_bench.declare.grid import expand

        return expand(self.under(profile), gpu)

    def free_axes(self) -> set[str]:
        """Names of the axes of [axes.variant], under any profile."""
        return {
            name for axes in (self.axes, *(p.axes for p in self.profiles.values())) for name in axes.get("variant", {})
        }

    def idle(self) -> list[LeaveOut]:
        """Constraints that leave nothing out, on any card under any profile: a mistake that no grid would show."""
        from maxsim_bench.declare.grid import idle

        return idle(self)

    def gpus(self, profile: ProfileName = "full") -> list[str]:
        """The cards that the file names; "any" stands for whichever is at hand."""
        named = self.under(profile).axes.get("gpu", "any")
        return list(named) if isinstance(named, (list, tuple)) else [named]

    def under(self, profile: ProfileName) -> Experiment:
        """The experiment as that profile changes it (`full`, or one that the file does not declare: unchanged)."""
        change = self.profiles.get(profile) if profile != "full" else None
        if change is None:
            return self
        kept = {k: v for k, v in self.axes.items() if not _shares_axis(k, change.axes)}
        variant = {**self.axes.get("variant", {}), **change.axes.get("variant", {})}
        axes = {**kept, **change.axes, **({"variant": variant} if variant else {})}
        updates: dict[str, Any] = {"axes": axes, "leave_out": self.leave_out + change.leave_out}
        if change.backends is not None:
            updates["backends"] = change.backends
            if self.baseline not in change.backends:
                updates["baseline"] = None
        updates["timing"] = Timing.model_validate({**self.timing.model_dump(), **change.timing})
        return self.model_copy(update=updates)


class Planned(_Declared):
    """A cell of a grid with the backends that measure it."""

    cell: Cell
    backends: tuple[str, ...]


class LeftOut(_Declared):
    """A cell that a grid leaves out, or (where `backends` is given) backends that do not measure it, and why."""

    cell: Cell
    why: str
    backends: tuple[str, ...] | None = None


class Plan(BaseModel):
    """The exact grid of one card."""

    planned: list[Planned]
    left_out: list[LeftOut]


def split_axes(key: str) -> list[str]:
    """ "Lq, Ld" → ["Lq", "Ld"]: a key that names several axes varies them together."""
    return [part.strip() for part in key.split(",")]


def _shares_axis(key: str, others: Mapping[str, Any]) -> bool:
    mine = set(split_axes(key))
    return any(mine & set(split_axes(other)) for other in others)


def axis_of(cell: Cell, axis: str) -> Any:
    """The cell's value on an axis, "variant.<name>" included; None where unused."""
    if not axis.startswith(VARIANT):
        return getattr(cell, axis)
    return variant_parts(cell.variant).get(axis.removeprefix(VARIANT))


def variant_parts(variant: str | None) -> dict[str, str]:
    """The parts of a variant by name: "loss=cross_entropy;stage=dd" → loss and stage; none of None."""
    return dict(part.split("=", 1) for part in (variant or "").split(";") if part)


_COMPARE = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


def matches(when: Mapping[str, Any], cell: Cell) -> bool:
    """Whether every condition holds: a value, a list of values, a comparison (">= 5000", "> B"), or { not = ... }."""
    return all(_holds(condition, axis, cell) for axis, condition in when.items())


def _holds(condition: Any, axis: str, cell: Cell) -> bool:
    value = axis_of(cell, axis)
    if isinstance(condition, dict):
        return not _holds(condition["not"], axis, cell)
    if isinstance(condition, (list, tuple)):
        return any(_holds(one, axis, cell) for one in condition)
    operator, operand = comparison(condition)
    if operator is None:
        return bool(value == axis_value(axis, condition))
    other = axis_of(cell, operand) if operand in AXES else axis_value(axis, _number(operand))
    if operator != "!=" and (value is None or other is None):
        return False
    return bool(_COMPARE[operator](value, other))


def comparison(condition: Any) -> tuple[str | None, str]:
    """(">=", "5000") of ">= 5000"; (None, "") of anything that is not a comparison."""
    if isinstance(condition, str):
        for operator in _COMPARE:  # two-character operators come first
            if condition.startswith(operator):
                return operator, condition[len(operator) :].strip()
    return None, ""


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


Plan.model_rebuild()
