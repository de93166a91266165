"""What a sweep would do, in words and as data: cells, time, memory, what is left out, what waits for other cards.

Orchestration beside `cli.py`. May import: declare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import capacity, eager_bytes, input_bytes, plan_seconds
from maxsim_bench.declare.experiment import Experiment, LeftOut, Plan, Planned, ProfileName
from maxsim_bench.declare.select import Filters, select

_WHOLE = Filters()
IDLE = "leaves nothing out, on any card under any profile"


class Outline(BaseModel):
    """The exact grid of one experiment on one card, after filters, with estimates.

    `elsewhere` maps every other card that the file names to its number of cells, `command` measures them there; `idle`
    holds the reasons of constraints that leave nothing out anywhere.
    """

    model_config = ConfigDict(frozen=True)

    experiment: str
    title: str
    profile: ProfileName
    gpu: str
    planned: list[Planned]
    left_out: list[LeftOut]
    elsewhere: dict[str, int]
    command: str
    idle: list[str]
    seconds: float

    @property
    def measurements(self) -> int:
        """Rows that the grid asks for."""
        return sum(len(p.backends) for p in self.planned)


def outline(experiment: Experiment, gpu: str, profile: ProfileName, filters: Filters = _WHOLE) -> Outline:
    """The grid of `experiment` for one card under a profile, filtered; a memory cap is that of every cell."""
    under = experiment.under(profile)
    plan = experiment.plan(gpu, profile)
    conditions, memory_cap = filters.conditions, filters.memory_cap
    planned = select(plan, conditions, filters.backends)
    if memory_cap is not None:
        planned = [p.model_copy(update={"cell": p.cell.model_copy(update={"memory_cap": memory_cap})}) for p in planned]
        planned = list({p.cell: p for p in planned}.values())
    others = [g for g in experiment.gpus(profile) if g not in (gpu, "any")]
    return Outline(
        experiment=experiment.name,
        title=experiment.title,
        profile=profile,
        gpu=gpu,
        planned=planned,
        left_out=plan.left_out,
        elsewhere={g: len(select(experiment.plan(g, profile), conditions, filters.backends)) for g in others},
        command=filters.command([experiment.name], profile, experiment.verb),
        idle=[rule.why for rule in experiment.idle()],
        seconds=plan_seconds(Plan(planned=planned, left_out=[]), under.timing),
    )


def outline_lines(plan: Outline, *, cells: bool = True) -> list[str]:
    """The outline as text: one line for the sum, one a cell, one a reason, one a card that is not here."""
    head = f"{plan.experiment} ({plan.profile}) on {plan.gpu}: "
    if not plan.planned:
        lines = [head + "no cells"]
    else:
        inputs = max(input_bytes(p.cell) for p in plan.planned)
        tensor = max(eager_bytes(p.cell) for p in plan.planned)
        sizes = (
            f"; inputs up to {size(inputs)}, similarity tensor up to {size(tensor)}" if inputs else ""
        )  # of rankings none
        lines = [
            f"{head}{len(plan.planned)} cells, {plan.measurements} measurements, about {duration(plan.seconds)}{sizes}"
        ]
    if cells:
        axes = varying([p.cell for p in plan.planned])
        for p in plan.planned:
            lines.append(f"  {p.cell.hash()}  {describe(p.cell, axes)}  {' '.join(p.backends)}{_too_big(p.cell)}")
    reasons = Counter((o.why, o.backends) for o in plan.left_out)
    for (why, backends), count in reasons.items():
        lines.append(f"  left out: {count} × {' '.join(backends) if backends else 'cell'}: {why}")
    for why in plan.idle:
        lines.append(f"  {IDLE}: {why}")
    for gpu, count in plan.elsewhere.items():
        if count:
            told = f"on that machine `{plan.command}`, then merge its CSV here"
            lines.append(f"  elsewhere: {count} cells for {gpu}: {told}")
    return lines


def varying(cells: list[Cell]) -> list[str]:
    """Axes on which the cells differ, in the order of a cell's fields; all that are used where there is one cell."""
    fields = [f for f in Cell.model_fields if f not in ("experiment", "gpu", "op")]
    if len(cells) < 2:
        return [f for f in fields if cells and getattr(cells[0], f) is not None]
    return [f for f in fields if len({getattr(c, f) for c in cells}) > 1]


def describe(cell: Cell, axes: Iterable[str] | None = None) -> str:
    """ "B=1000 Lq=32 dtype=fp16": the cell on these axes, by default all that it uses."""
    named = varying([cell]) if axes is None else axes
    return " ".join(f"{a}={getattr(cell, a)}" for a in named if getattr(cell, a) is not None)


def _too_big(cell: Cell) -> str:
    room = capacity(cell)
    if room is None or eager_bytes(cell) + input_bytes(cell) <= room:
        return ""
    return f"  (similarity tensor and inputs exceed {size(room)})"


def duration(seconds: float) -> str:
    """ "12 s", "3 min", "2 h 5 min": as exact as an estimate is."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Bytes as "3.4 GB" (10⁹), "120 MB" or "5 kB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"
