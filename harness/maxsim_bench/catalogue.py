"""What there is: experiments, backends and data sets by name, and a cell with everything measured for it.

Orchestration beside `cli.py`. May import every room.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from maxsim_bench.backends.lengths import histograms
from maxsim_bench.backends.registry import backends
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.datasets import DATASETS
from maxsim_bench.declare.experiment import PROFILES, DeclarationError, Experiment
from maxsim_bench.declare.load import load_directory, suggest
from maxsim_bench.planning import describe
from maxsim_bench.progress import outcome
from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store

KINDS = ("experiments", "backends", "datasets")
STARVED_PERCENT = 5  # of a row's samples, from which on `show` says that the host may be in its time


class Found(BaseModel):
    """A cell, the rows measured for it with the files that hold them, and the command that measures it."""

    cell: Cell
    rows: list[tuple[str, Row]]
    command: str | None


def experiments(folder: Path, names: tuple[str, ...] = ()) -> list[Experiment]:
    """The named experiments of a folder, all if none is named. Raises `DeclarationError` for what is not there."""
    if not folder.is_dir():
        raise DeclarationError([f"{folder}: no such folder. Run in the checkout, or name it with --experiments."])
    known = load_directory(folder, backends(), histograms())
    unknown = [f"no experiment {name!r} in {folder}. {suggest(name, known)}" for name in names if name not in known]
    if unknown:
        raise DeclarationError(unknown)
    return [known[name] for name in names or known]


def known_backends(names: tuple[str, ...]) -> None:
    """Raise `DeclarationError` for every name that is no backend."""
    known = backends()
    unknown = [f"--backend {name}: no such backend. {suggest(name, known)}" for name in names if name not in known]
    if unknown:
        raise DeclarationError(unknown)


def catalogue(what: str, folder: Path) -> dict[str, Any]:
    """Name → one line about it, for "experiments" or "datasets"; for "backends" the fields of a `BackendState`."""
    if what == "experiments":
        return {e.name: e.title for e in experiments(folder)}
    if what == "backends":
        from maxsim_bench.doctor import state
        from maxsim_bench.machine import this_machine

        device = this_machine().device
        return {name: state(backend, device).model_dump() for name, backend in backends().items()}
    from maxsim_bench.doctor import data_folders, data_sets
    from maxsim_bench.retrieve.datasets.beir import ALIASES

    local = {name: f"in {folder}" for folder in data_folders() for name in data_sets(folder)}
    known = dict(DATASETS)
    for name, told in DATASETS.items():
        here = local.pop(ALIASES.get(name, name), None)
        known[name] = told if here is None else f"{told} [{here}]"
    further = {
        "<BEIR name>": "downloaded by `beir`, such as scifact or nfcorpus",
        "ir_datasets:<id>": "from the package ir_datasets, where it is installed",
        "<path>": "a directory or archive in BEIR layout",
    }
    return known | local | further


def catalogue_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """The lists as text, each under a heading that says what stands beside the names."""
    from maxsim_bench.doctor import VERSIONS, BackendState

    beside = {
        "experiments": "what each measures",
        "backends": f"what each is, and its {VERSIONS}",
        "datasets": "what each is, and where it comes from",
    }
    lines = []
    for kind, entries in found.items():
        width = max((len(name) for name in entries), default=0) + 2
        lines.append(f"{kind} ({beside[kind]})")
        for name, told in entries.items():
            if kind == "backends":
                state = BackendState.model_validate(told)
                told = f"{state.about} [{state.told()}]"
            lines.append(f"  {name:<{width}}{told}")
    return lines


def find_cell(beginning: str, folder: Path, results: Path) -> Found:
    """The one cell whose hash begins so, among declared and measured ones, with its rows.

    Raises `DeclarationError` if there is none or more than one.
    """
    from maxsim_bench.report.declared import Declared  # with the report comes pandas: not for every command
    from maxsim_bench.report.origins import command

    measured: dict[str, list[tuple[str, Row]]] = {}
    for path in sorted([*results.glob("*.csv"), *results.glob("*/*.csv")]):  # deeper ones are details, not stores
        for row in Store(path).rows():
            measured.setdefault(row.cell.hash(), []).append((path.as_posix(), row))
    cells = {digest: rows[0][1].cell for digest, rows in measured.items()}
    declared = Declared({experiment.name: experiment for experiment in experiments(folder)})
    for experiment in declared.experiments.values():
        for profile in PROFILES:
            for gpu in experiment.gpus(profile):
                for cell in experiment.cells(gpu, profile):
                    cells.setdefault(cell.hash(), cell)
    hits = [digest for digest in cells if digest.startswith(beginning)]
    if len(hits) != 1:
        told = f"{len(hits)} cells begin so; give more digits" if hits else "no cell, declared or measured, begins so"
        raise DeclarationError([f"{beginning}: {told}. `maxsim-bench plan` lists them."])
    cell = cells[hits[0]]
    return Found(cell=cell, rows=measured.get(hits[0], []), command=command(cell, declared) or None)


def found_lines(found: Found) -> list[str]:
    """The cell, its rows and the command as text; rows that a newer one of their backend replaced stand last."""
    cell = found.cell
    lines = [f"{cell.hash()}  {cell.experiment} {cell.op} on {cell.gpu}", f"  {describe(cell)}"]
    newest: dict[tuple[Path, str], tuple[str, Row]] = {}
    for one in found.rows:
        place = (Path(one[0]).parent, one[1].backend)
        if place not in newest or _measured(one) > _measured(newest[place]):  # of equals the first, as in the report
            newest[place] = one
    kept = {id(row) for _, row in newest.values()}
    shown = [(path, row) for path, row in found.rows if id(row) in kept]
    replaced = [(path, row) for path, row in found.rows if id(row) not in kept]
    width = max((len(row.backend) for _, row in found.rows), default=0)
    lines += [_told(path, row, width) for path, row in shown]
    if replaced:
        lines.append("  replaced by the newer rows above, not in the report:")
        lines += [_told(path, row, width) for path, row in sorted(replaced, key=_measured, reverse=True)]
    if not found.rows:
        lines.append("  not measured yet")
    if found.command:
        lines.append(f"  measure it on {cell.gpu}: {found.command}")
    return lines


def _measured(found: tuple[str, Row]) -> str:
    return found[1].measured_at or ""


def _told(path: str, row: Row, width: int) -> str:
    """One line: the row's time, the file that holds it, where and when it was measured, whether the host is in it."""
    when = f", {row.measured_at[:16].replace('T', ' ')} UTC" if row.measured_at else ""
    where = f", environment {row.environment_id}" if row.environment_id else ""
    starved = json.loads(row.extra or "{}").get("starved_samples_percent", 0)
    told = isinstance(starved, int | float) and starved > STARVED_PERCENT
    held = f"; {starved:.0f} % of the samples began before the host was through: they may hold waits" if told else ""
    return f"  {row.backend:<{width}} {outcome(row)}  ({path}, version {row.backend_version}{where}{when}){held}"
