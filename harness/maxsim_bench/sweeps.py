"""From what a user asks for to sweeps: experiments chosen, grids filtered, each measured into its store.

Orchestration beside `cli.py`. May import every room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from maxsim_bench.catalogue import experiments, known_backends
from maxsim_bench.declare.cell import Cell, row_key
from maxsim_bench.declare.estimate import known_gpus
from maxsim_bench.declare.experiment import PROFILES, DeclarationError, Experiment, ProfileName
from maxsim_bench.declare.load import suggest
from maxsim_bench.declare.select import Filters, Verb
from maxsim_bench.machine import this_machine
from maxsim_bench.planning import Outline, describe, duration, outline, outline_lines
from maxsim_bench.progress import SweepProgress, outcome
from maxsim_bench.record.row import Row


@dataclass(frozen=True)
class Request:
    """What to measure, and how. `folder` is where this machine's rows go; the other names are the options of `run`."""

    folder: Path
    experiments: Path = Path("experiments")
    names: tuple[str, ...] = ()
    profile: ProfileName = "full"
    where: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    memory_cap: int | None = None
    force: bool = False
    timeout_s: float | None = None
    dry_run: bool = False

    @property
    def filters(self) -> Filters:
        """The part of the grid that is asked for."""
        return Filters(self.where, self.backends, self.memory_cap, self.experiments)


class Swept(BaseModel):
    """What one call of `sweep` did: rows of this run by status, rows finished before, rows that failed unallowed."""

    folder: str
    plans: list[Outline]
    dry_run: bool = False
    measured: Counter[str] = Counter()
    resumed: int = 0
    failed: list[Row] = []


def outlines(
    *,
    experiments: Path = Path("experiments"),
    names: tuple[str, ...] = (),
    profile: ProfileName = "full",
    where: Iterable[str] = (),
    backends: tuple[str, ...] = (),
    memory_cap: int | None = None,
    gpu: str | None = None,
) -> list[Outline]:
    """The filtered grid of every chosen experiment for `gpu`, by default the device at hand."""
    filters = Filters(tuple(where), backends, memory_cap, experiments)
    return [plan for _, plan in _chosen(filters, names, profile, gpu)]


def _chosen(
    filters: Filters, names: tuple[str, ...], profile: ProfileName, gpu: str | None
) -> list[tuple[Experiment, Outline]]:
    _ = filters.conditions  # what cannot be meant is told before anything is read
    known_backends(filters.backends)
    chosen = experiments(filters.experiments, names)
    card = this_machine().key if gpu is None else gpu
    if gpu is not None and gpu not in known_gpus():
        raise DeclarationError([f"--gpu {gpu}: unknown card. {suggest(gpu, known_gpus())}"])
    return [(e, outline(e, card, profile, filters)) for e in chosen]


def sweep(request: Request) -> Swept:
    """Measure everything asked for on the device at hand; rows go to `folder/<experiment>.csv` as they come.

    Raises `DeclarationError` where experiments are named and none of them has a cell for this device and these filters.
    """
    from maxsim_bench.record.store import Store
    from maxsim_bench.run.sweep import SweepOptions, run_sweep

    r = request
    machine = this_machine()
    chosen = _chosen(r.filters, r.names, r.profile, machine.key)
    rankings = [experiment.name for experiment, _ in chosen if experiment.op == "fidelity" and r.names]
    if rankings:
        raise DeclarationError(
            [f"{', '.join(rankings)}: rankings are made by `maxsim-bench fidelity --profile {r.profile}`."]
        )
    chosen = [(experiment, plan) for experiment, plan in chosen if plan.planned and experiment.op != "fidelity"]
    if not chosen:
        raise DeclarationError([nothing(r.names, machine.key, r.profile, r.filters)])
    done = Swept(folder=r.folder.as_posix(), plans=[plan for _, plan in chosen], dry_run=r.dry_run)
    options = SweepOptions(device=machine.device, force=r.force, timeout_s=r.timeout_s)
    for experiment, plan in [] if r.dry_run else chosen:
        cells = [(p.cell, p.backends) for p in plan.planned]
        store = Store(r.folder / f"{experiment.name}.csv")
        with SweepProgress(experiment.name, [cell for cell, _ in cells]) as progress:
            for why in plan.idle:
                progress.idle(why)
            if r.force and (parted := _parted(store.rows(), cells)):
                progress.parting(*parted)
            summary = run_sweep(
                experiment.under(r.profile), cells, store, options, progress.cell, waiting=progress.waiting
            )
        done.measured.update(summary.measured)
        done.resumed += summary.resumed
        done.failed += summary.failed
    return done


def _parted(
    rows: Iterable[Row], cells: Iterable[tuple[Cell, Iterable[str]]]
) -> tuple[list[str], list[str], int] | None:
    """Backends whose rows are replaced, those of other timed rows of these cells, and the number of cells; or None."""
    from maxsim_bench.backends.registry import get

    timed: dict[str, dict[str, str]] = {}  # cell → key of the row → backend
    for row in rows:
        if row.latency_ms is not None:
            timed.setdefault(row.cell.hash(), {})[row.key] = row.backend
    again: set[str] = set()
    left: set[str] = set()
    count = 0
    for cell, names in cells:
        here = timed.get(cell.hash(), {})
        # a row of another version of its backend's sources stays
        replaced = {name for name in names if row_key(cell.hash(), name, get(name).version()) in here}
        others = set(here.values()) - set(names)
        if replaced and others:
            again, left, count = again | replaced, left | others, count + 1
    return (sorted(again), sorted(left), count) if count else None


def nothing(names: tuple[str, ...], gpu: str, profile: ProfileName, filters: Filters) -> str:
    """The message of `plan` and `run`, which both end with exit code 2, where no cell is left; with what there is."""
    told = f"no cell of {', '.join(names) or 'any experiment'} is declared for {gpu} under profile {profile}"
    given = " ".join((*filters.where, *filters.backends))
    return f"{told}{f' with {given}' if given else ''}. {_instead(names, gpu, profile, filters)}"


def _instead(names: tuple[str, ...], gpu: str, profile: ProfileName, filters: Filters) -> str:
    """What the card can measure: the same under another profile, more without the filters, else another grid.

    Of the card at hand with the command that measures it, of another one with the command that shows it.
    """
    every = Filters(experiments=filters.experiments)
    here = gpu == this_machine().key
    verb: Verb = "run" if here else "plan"
    asked = None if here else gpu
    others = [other for other in PROFILES if other != profile]
    for other in others:
        found = _measurable(names, gpu, other, filters)
        if found:
            return f"Under profile {other} there are: `{filters.command(_names(found), other, verb, asked)}`."
    if any(plan.planned for _, plan in _chosen(every, names, profile, gpu)):
        return "Without these filters there are. `maxsim-bench plan` shows what is declared."
    for other in others:
        found = _measurable(names, gpu, other, every)
        if found:
            command = every.command(_names(found), other, verb, asked)
            return f"Under profile {other}, without these filters, there are: `{command}`."
    smallest = PROFILES[0]
    found = _measurable((), gpu, smallest, every)
    if not found:
        return "`maxsim-bench plan` shows what is declared."
    largest = max(found, key=lambda plan: plan.measurements)
    card = "a processor" if gpu == "cpu" else gpu
    listing = every.command((), smallest, "plan", asked)
    begin = "begin with" if here else "on that machine begin with"
    return f"What {card} can measure are the grids of `{listing}`; {begin} `{largest.command}`."


def _measurable(names: tuple[str, ...], gpu: str, profile: ProfileName, filters: Filters) -> list[Outline]:
    """Grids that have a cell which `run` measures."""
    chosen = _chosen(filters, names, profile, gpu)
    return [plan for experiment, plan in chosen if plan.planned and experiment.op != "fidelity"]


def _names(plans: Iterable[Outline]) -> list[str]:
    return [plan.experiment for plan in plans]


def sweep_lines(done: Swept) -> list[str]:
    """What a sweep did, or would do, as text."""
    if done.dry_run:
        return [line for plan in done.plans for line in outline_lines(plan)]
    counts = ", ".join(f"{count} {status}" for status, count in sorted(done.measured.items())) or "nothing new"
    lines = [f"measured: {counts}; finished before: {done.resumed}; rows in {done.folder}"]
    lines += [f"failed: {f.cell.experiment} {describe(f.cell)} {f.backend}: {outcome(f)}" for f in done.failed]
    return lines


def estimate(plans: Iterable[Outline]) -> str:
    """Time that the plans take together, in words."""
    return duration(sum(plan.seconds for plan in plans))
