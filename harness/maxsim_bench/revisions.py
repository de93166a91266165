"""`maxsim-bench compare --rev A B`: two revisions of `kernels/` in one process, measured turn by turn.

Orchestration beside `cli.py`. May import every room; torch and `maxsim` only inside functions.

Each revision is checked out into a temporary git worktree and its package copied under a name of its own
(`maxsim_base`, `maxsim_new`), its imports of itself renamed with it. One process then holds both, on one context and
one clock, so that whatever drifts falls on both alike.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.headline import BuildError, headline_cells, input_sets, label, scores_inspector, timed_rounds
from maxsim_bench.machine import Machine
from maxsim_bench.measure.failures import describe
from maxsim_bench.measure.timer import Call, TimingBudget

if TYPE_CHECKING:
    from maxsim_bench.report.compare import Comparison, Thresholds
    from maxsim_bench.reporting import Places

_PACKAGE = "kernels/maxsim"
_DATA = re.compile(r"""(["'])maxsim(?=\.[a-z_.]+\1|::)""")  # files("maxsim.fused") and names of torch operators
_FROM = re.compile(r"^(\s*)from maxsim(?=[.\s])", re.MULTILINE)
_IMPORT = re.compile(r"^(\s*)import maxsim[ \t]*(?=$|#)", re.MULTILINE)
_IMPORT_AS = re.compile(r"^(\s*)import maxsim(?=[.\w]* as )", re.MULTILINE)


class RevisionError(RuntimeError):
    """A revision that cannot be found, checked out or imported beside another."""


def chosen_cells(machine: Machine, experiments: Path, name: str | None, where: Sequence[str]) -> list[Cell]:
    """The forward cells of an experiment for this device, by default the headline cells, filtered.

    Raises:
        DeclarationError: for a filter or an experiment that does not exist.
        RevisionError: where nothing is left to measure.
    """
    from maxsim_bench.declare.experiment import matches
    from maxsim_bench.declare.select import parse_where
    from maxsim_bench.sweeps import outlines

    conditions = parse_where(where)
    if name is None:
        cells = headline_cells(machine)
    else:
        plans = outlines(experiments=experiments, names=(name,), where=where)
        cells = [planned.cell for plan in plans for planned in plan.planned]
    kept = [c for c in cells if c.op == "forward" and not c.quantiser and all(matches(w, c) for w in conditions)]
    if not kept:
        raise RevisionError(
            f"{name or 'the headline cells'}: no forward cell for {machine.key} passes these filters. "
            "See what there is with `maxsim-bench plan`, and loosen --where."
        )
    return kept


def measured_revisions(
    base: str, new: str, places: Places, thresholds: Path, experiment: str | None, where: Sequence[str]
) -> Comparison:
    """`compare_revisions` on the device at hand, by the thresholds of a file; see `chosen_cells`."""
    from maxsim_bench.machine import this_machine
    from maxsim_bench.report.compare import read_thresholds

    machine = this_machine()
    cells = chosen_cells(machine, places.experiments, experiment, where)
    return compare_revisions(base, new, cells, read_thresholds(thresholds), machine=machine)


def compare_revisions(
    base: str,
    new: str,
    cells: Sequence[Cell],
    thresholds: Thresholds,
    *,
    machine: Machine,
    budget: TimingBudget = TimingBudget(),  # noqa: B008  # frozen
    repository: Path = Path("."),
) -> Comparison:
    """Whether the kernels of revision `new` are slower than those of `base`.

    Where both hold the very same `kernels/maxsim`, every cell is SAME without being measured.

    Raises:
        RevisionError: for a revision that does not exist or cannot be loaded.
        BuildError: for one that fails, or gives scores other than the reference's.
        DeviceBusyError: while another run measures.
    """
    from maxsim_bench.report.compare import Comparison, decide_interleaved
    from maxsim_bench.report.compare.compare import ORDER
    from maxsim_bench.run.lock import device_lock
    from maxsim_bench.run.session import device_key

    trees = [_git(repository, "rev-parse", "--verify", "--quiet", f"{r}:{_PACKAGE}") for r in (base, new)]
    names = [f"{r} ({_git(repository, 'rev-parse', '--short', f'{r}^{{commit}}')})" for r in (base, new)]
    rate = thresholds.false_discovery_rate
    if trees[0] == trees[1]:
        return Comparison(names[0], names[1], tuple(_identical(cell) for cell in cells), (), rate)
    with device_lock(device_key(machine.device), machine.name), both_revisions(base, new, repository) as packages:
        measured = [_rounds(cell, packages, machine.device, budget) for cell in cells]
    decided = decide_interleaved(measured, thresholds)
    note = f"{len(cells)} cells, both revisions in one process and in turn, on {machine.name}."
    ordered = sorted(decided, key=lambda one: ORDER.index(one.decision))
    return Comparison(names[0], names[1], tuple(ordered), (note,), rate)


def _identical(cell: Cell) -> Any:
    from maxsim_bench.report.compare import Decided

    told = f"{_PACKAGE} is the same in both revisions"
    return Decided(label(cell), label(cell), "", "latency_ms", "SAME", told, None, None, "")


def _rounds(
    cell: Cell, packages: dict[str, Any], device: str, budget: TimingBudget
) -> tuple[str, list[float], list[float]]:
    from maxsim_bench.backends.fused import forward_call

    sets = input_sets(cell, device)
    calls: dict[str, list[Call]] = {}
    for name, package in packages.items():
        try:
            calls[name] = [forward_call(package, cell, inputs) for inputs in sets]
        except Exception as error:  # of another time's code; whatever it is, that revision cannot be measured here
            raise BuildError(f"{name} cannot take {label(cell)}: {describe(error)}") from error
    found = timed_rounds(cell, calls, device, budget, scores_inspector(cell, sets))
    return found.label, found.times_ms["base"], found.times_ms["new"]


@contextmanager
def both_revisions(base: str, new: str, repository: Path) -> Iterator[dict[str, Any]]:
    """The package `maxsim` of two revisions, imported as "base" and "new"; forgotten and removed afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="maxsim-bench-revisions-")))
        packages = {}
        for side, revision in (("base", base), ("new", new)):
            with _worktree(repository, revision, folder / f"{side}-worktree") as checkout:
                rename_package(checkout / _PACKAGE, folder / f"maxsim_{side}", revision)
        stack.enter_context(_importable(folder))
        for side, revision in (("base", base), ("new", new)):
            try:
                packages[side] = importlib.import_module(f"maxsim_{side}")
            except Exception as error:
                raise RevisionError(f"the kernels of {revision} cannot be imported here: {error}") from error
        yield packages


@contextmanager
def _worktree(repository: Path, revision: str, folder: Path) -> Iterator[Path]:
    commit = _git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    _git(repository, "worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        _git(repository, "worktree", "remove", "--force", str(folder))


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [m for m in sys.modules if m.partition(".")[0] in ("maxsim_base", "maxsim_new")]:
            del sys.modules[name]


def rename_package(package: Path, into: Path, revision: str) -> None:
    """Copy `package` to `into`, whose name it takes; lines keep their numbers.

    Raises:
        RevisionError: for an import of `maxsim` in a form that cannot be renamed, with file and line: left alone it
            would reach the installed package, and one revision would be measured against itself.
    """
    shutil.copytree(package, into, ignore=shutil.ignore_patterns("__pycache__"))
    for file in sorted(into.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        text = _FROM.sub(rf"\1from {into.name}", text)
        text = _IMPORT_AS.sub(rf"\1import {into.name}", text)
        text = _IMPORT.sub(rf"\1import {into.name} as maxsim", text)
        text = _DATA.sub(rf"\1{into.name}", text)
        file.write_text(text, encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(module.partition(".")[0] == "maxsim" for module in modules):
                raise RevisionError(
                    f"{_PACKAGE}/{file.relative_to(into)}:{node.lineno} of {revision}: this import of maxsim cannot be "  # type: ignore[attr-defined]  # imports have lines
                    "renamed. Write `from maxsim... import ...`, one module a line."
                )


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise RevisionError("git is not installed, and revisions are its business") from None
    if done.returncode != 0:
        told = done.stderr.strip() or f"`git {' '.join(arguments)}` finds nothing"
        raise RevisionError(f"{told}. Run in the checkout, and name revisions that hold {_PACKAGE}.")
    return done.stdout.strip()
