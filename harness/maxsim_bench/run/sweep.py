"""A sweep: the cells of an experiment, each measured once, every row on the disk as soon as it exists.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import Cell, row_key
from maxsim_bench.declare.experiment import Experiment, Status
from maxsim_bench.measure import clock
from maxsim_bench.measure.failures import describe
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.record.environments import add_environments, read_environments
from maxsim_bench.record.files import undisturbed
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples, read_samples
from maxsim_bench.record.store import Store
from maxsim_bench.run.executor import Executor, LocalExecutor
from maxsim_bench.run.lock import device_lock
from maxsim_bench.run.process import HARNESS_FAILED, WorkerDiedError
from maxsim_bench.run.protocol import CellRequest, Hello, WorkerSetup, load
from maxsim_bench.run.rows import failed_row

# Ceilings measured by this process, by session and device: a command over several experiments measures them once.
_MEASURED_CEILINGS: dict[tuple[str, str], dict[str, Any]] = {}

_SIZES = ("Nq", "B", "Lq", "Ld", "d")  # axes along which a cell only grows


@dataclass(frozen=True)
class SweepOptions:
    """How to run.

    Attributes:
        device: "cuda", "cpu", None for a GPU if there is one.
        force: measure finished rows again.
        timeout_s: longest silence of a worker, None for the experiment's.
        startup_timeout_s: for a worker to become ready.
        try_after_oom: measure larger cells although the backend ran out of memory on a smaller one.
        with_ceilings: measure the device's ceilings first.
        energy_seconds: of sustained running for the energy of a call, where the card counts it; 0 for none.
        session, resolver: see `WorkerSetup`.
        lock_folder: of device locks; None for the machine's temporary folder.
    """

    device: str | None = None
    force: bool = False
    timeout_s: float | None = None
    startup_timeout_s: float = 120.0
    try_after_oom: bool = False
    with_ceilings: bool = True
    energy_seconds: float = 0.1
    session: str = WorkerSetup.session
    resolver: str = WorkerSetup.resolver
    lock_folder: Path | None = None


@dataclass(frozen=True)
class Progress:
    """A cell is done. `seconds_left` is estimated from the cells measured so far, None before the first."""

    done: int
    total: int
    cell: Cell
    rows: tuple[Row, ...]
    seconds_left: float | None


@dataclass
class SweepSummary:
    """What a sweep did.

    Attributes:
        measured: rows of this sweep by status.
        resumed: rows that were finished before.
        failed: rows, old and new, that count against the exit code: a failure that the experiment does not allow, and
            any of the harness itself.
        seconds: it took.
    """

    measured: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    failed: list[Row] = field(default_factory=list)
    seconds: float = 0.0


def run_sweep(
    experiment: Experiment,
    cells: Sequence[tuple[Cell, Sequence[str]]],
    store: Store,
    options: SweepOptions = SweepOptions(),
    progress: Callable[[Progress], None] = lambda _: None,
    executor: Executor | None = None,
    waiting: Callable[[str], None] = lambda _: None,
) -> SweepSummary:
    """Measure every cell with each of its backends, but what the store has already.

    Args:
        experiment: for timing, isolation, baseline and allowed failures.
        cells: cell with the names of its backends, in the order to measure; filters are applied.
        store: the rows go there. It is held for the whole sweep.
        options, progress: as named.
        executor: where cells run; worker processes of this machine by default.
        waiting: told what such a worker is doing, time and again while a cell takes long.

    Raises:
        StoreError: the store cannot be written (a full disk) or is held by another run. Finished rows are safe.
        DeviceBusyError: another run measures on the device.
        WorkerStartError: no worker process starts.
    """
    setup = WorkerSetup(options.session, options.resolver, options.device)
    local = LocalExecutor(setup, options.startup_timeout_s, waiting)
    sweep = _Sweep(experiment, store, options, executor or local)
    return sweep.run(cells, progress)


@dataclass
class _Sweep:
    experiment: Experiment
    store: Store
    options: SweepOptions
    executor: Executor
    summary: SweepSummary = field(default_factory=SweepSummary)
    hello: Hello | None = None
    record: dict[str, Any] | None = None  # of the ceilings
    ran_out: dict[str, list[Cell]] = field(default_factory=dict)
    outdated: set[str] = field(default_factory=set)  # keys of refusals that no longer hold

    def run(self, cells: Sequence[tuple[Cell, Sequence[str]]], progress: Callable[[Progress], None]) -> SweepSummary:
        began = clock.seconds()
        resolve: Callable[[str], Backend] = load(self.options.resolver)
        with ExitStack() as stack:
            stack.enter_context(self.store.lock())
            stack.callback(self.executor.close)
            known = {} if self.options.force else {row.key: row for row in self.store.rows()}
            self.outdated = {key for key, row in known.items() if self._possible_now(row, resolve)}
            known = {key: row for key, row in known.items() if key not in self.outdated}
            spent, measured = 0.0, 0
            for done, (cell, names) in enumerate(cells):
                versions = {name: resolve(name).version() for name in names}
                keys = {name: row_key(cell.hash(), name, versions[name]) for name in names}
                for row in (known[key] for key in keys.values() if key in known):
                    self.summary.resumed += 1
                    self._note(row)
                todo = [name for name in names if keys[name] not in known]
                rows: list[Row] = []
                if todo:
                    started = clock.seconds()
                    if self.hello is None:
                        self._open(stack)
                    rows = self._cell(cell, {name: versions[name] for name in todo}, resolve)
                    spent, measured = spent + clock.seconds() - started, measured + 1
                left = len(cells) - done - 1
                estimate = spent / measured * left if measured else None
                progress(Progress(done + 1, len(cells), cell, tuple(rows), estimate))
        self.summary.seconds = clock.seconds() - began
        return self.summary

    def _possible_now(self, row: Row, resolve: Callable[[str], Backend]) -> bool:
        """Whether a row says that its backend refused the cell unseen, and here it does not: that host lacked a GPU.

        What failed to be captured as a graph is unsupported too, but has seen the inputs.
        """
        device = self.options.device
        if row.status != "unsupported" or row.input_bytes is not None or device is None:
            return False
        try:
            return resolve(row.backend).supports(row.cell, device) is None
        except Exception:  # asked again where rows are made, which tells it
            return True

    def _open(self, stack: ExitStack) -> None:
        """First worker, lock of its device, ceilings, and the environment on the disk.

        What rows could not be added to is told before anything is measured, which would be lost.
        """
        self.store.rows()
        read_samples(self.store.path)
        read_environments(self.store.path.parent)
        self.hello = self.executor.open()
        stack.enter_context(device_lock(self.hello.device_key, self.hello.device_name, self.options.lock_folder))
        facts = dict(self.hello.environment)
        if self.options.with_ceilings:
            facts["ceilings"] = self._ceilings(self.hello.device_key)
        add_environments(self.store.path.parent, {self.hello.environment_id: facts})

    def _ceilings(self, device_key: str) -> dict[str, Any] | str:
        """Ceilings of the device, measured once a process; why there are none, where that took the worker's life."""
        key = (self.options.session, device_key)
        if key not in _MEASURED_CEILINGS:
            try:
                _MEASURED_CEILINGS[key] = self.executor.ceilings()
            except WorkerDiedError as died:
                self.executor.close()  # the next cell starts a new worker, and does without
                return f"unknown: {died.row_error()}"
        self.record = _MEASURED_CEILINGS[key]
        return self.record

    def _cell(self, cell: Cell, versions: dict[str, str], resolve: Callable[[str], Backend]) -> list[Row]:
        """Rows of the backends of one cell that are not in the store yet; they are when this returns."""
        assert self.hello is not None
        request = self._request(cell, versions)
        rows: list[Row] = []
        able: list[str] = []
        for name in versions:
            try:
                reason = resolve(name).supports(cell, self.hello.device)
            except Exception as error:
                told = f"{HARNESS_FAILED} asking what {name} supports: {describe(error)}"
                rows.append(self._unmeasured(request, name, "error", told))
                continue
            if reason is not None:
                rows.append(self._unmeasured(request, name, "unsupported", reason))
            elif (smaller := self._ran_out_before(name, cell)) is not None:
                rows.append(self._unmeasured(request, name, "skipped", f"out of memory already at {smaller}"))
            else:
                able.append(name)
        samples: dict[str, Any] = {}
        if able:
            result = self.executor.run(_narrowed(request, able))
            rows += result.rows
            samples = result.samples
        order = {name: i for i, name in enumerate(versions)}
        rows.sort(key=lambda row: order[row.backend])
        with undisturbed():
            append_samples(self.store.path, samples)  # first: a row in the store means that its samples are there
            anew = self.options.force or any(row.key in self.outdated for row in rows)
            (self.store.replace if anew else self.store.append)(rows)
        for row in rows:
            self.summary.measured[row.status] += 1
            self._note(row)
        return rows

    def _unmeasured(self, request: CellRequest, name: str, status: Status, why: str) -> Row:
        assert self.hello is not None
        return failed_row(request, name, self.hello.device_name, self.hello.environment_id, status, why)

    def _request(self, cell: Cell, versions: dict[str, str]) -> CellRequest:
        timing = self.experiment.timing
        budget = TimingBudget(
            seconds=timing.seconds,
            min_samples=timing.min_samples,
            max_samples=timing.max_samples,
            width_percent=timing.width_percent,
            warmup_seconds=timing.seconds / 3,
            energy_seconds=self.options.energy_seconds,
            seed=int(cell.hash(), 16),
        )
        return CellRequest(
            cell=cell,
            backends=tuple(versions),
            versions=versions,
            baseline=self.experiment.baseline,
            budget=budget,
            ceilings=self.record,
            fresh=self.experiment.isolation == "fresh",
            timeout_s=self.options.timeout_s or timing.timeout_s,
        )

    def _note(self, row: Row) -> None:
        """Keep what later cells and the exit code need to know of a row."""
        if row.status == "oom":
            self.ran_out.setdefault(row.backend, []).append(row.cell)
        mistaken = (row.error or "").startswith(HARNESS_FAILED)  # which no declaration of a backend's limits allows
        if mistaken or self.experiment.failed(row):
            self.summary.failed.append(row)

    def _ran_out_before(self, name: str, cell: Cell) -> str | None:
        """The smaller cell on which this backend ran out of memory, by the axes that grew; None if there is none."""
        if self.options.try_after_oom:
            return None
        for other in self.ran_out.get(name, ()):
            grown = growth(other, cell)
            if grown:
                return ", ".join(f"{axis}={getattr(other, axis)}" for axis in grown)
        return None


def _narrowed(request: CellRequest, names: list[str]) -> CellRequest:
    return replace(request, backends=tuple(names), versions={name: request.versions[name] for name in names})


def growth(smaller: Cell, larger: Cell) -> list[str]:
    """Axes along which `larger` exceeds `smaller`; empty unless no size shrinks and everything else is equal."""
    a, b = smaller.model_dump(exclude={"timing_policy"}), larger.model_dump(exclude={"timing_policy"})
    if any(a[axis] != b[axis] for axis in a if axis not in _SIZES):
        return []
    if any((a[axis] or 0) > (b[axis] or 0) for axis in _SIZES):
        return []
    return [axis for axis in _SIZES if (a[axis] or 0) < (b[axis] or 0)]
