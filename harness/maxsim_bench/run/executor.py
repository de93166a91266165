"""The seam between a sweep and whatever runs its cells: here worker processes of this machine.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from maxsim_bench.declare.experiment import Status
from maxsim_bench.record.row import Row
from maxsim_bench.run.process import HarnessError, WorkerDiedError, WorkerProcess
from maxsim_bench.run.protocol import CellRequest, CellResult, Hello, WorkerSetup
from maxsim_bench.run.rows import failed_row

_CEILINGS_TIMEOUT_S = 180.0


class Executor(Protocol):
    """Runs requests somewhere. A sweep knows nothing else about where its cells are measured."""

    def open(self) -> Hello:
        """Get ready; who will answer."""
        ...

    def ceilings(self) -> dict[str, Any]:
        """Measured ceilings of the device, as a record."""
        ...

    def run(self, request: CellRequest) -> CellResult:
        """One row for every backend of the request, whatever happens to it."""
        ...

    def close(self) -> None:
        """Let go of everything, in any state."""
        ...


@dataclass
class LocalExecutor:
    """Worker processes on this machine, one at a time, reused while they are healthy.

    Attributes:
        setup: of every worker.
        startup_timeout_s: how long one may take to become ready.
        waiting: told which step a worker is in while it takes long.
    """

    setup: WorkerSetup
    startup_timeout_s: float = 120.0
    waiting: Callable[[str], None] = lambda _: None
    _worker: WorkerProcess | None = None
    _hello: Hello | None = None

    def open(self) -> Hello:
        return self._ready().hello

    def ceilings(self) -> dict[str, Any]:
        """Raises `WorkerDiedError` where measuring them takes a worker's life."""
        return self._ready().ceilings(_CEILINGS_TIMEOUT_S)

    def run(self, request: CellRequest) -> CellResult:
        """Measure a cell; if its worker dies, again with one process a backend, so that the guilty one gets the row.

        An exception of the harness itself is an `error` row for each backend it left without one, its traceback is a
        warning, and the next cell has a new worker.

        Raises:
            WorkerStartError: if no worker can be started, for then no cell can be measured.
        """
        if request.fresh:
            return _joined([self._attempt_alone(request, name) for name in request.backends])
        try:
            return self._attempt(request)
        except WorkerDiedError as died:
            self._drop()
            if len(request.backends) == 1:
                return self._guilty(request, died)
        except HarnessError as mistake:
            return self._mistaken(request, mistake)
        return self._isolate(request)

    def close(self) -> None:
        self._drop()

    def _attempt(self, request: CellRequest) -> CellResult:
        result = self._ready(new=request.fresh).measure(request)
        if request.fresh or result.unhealthy is not None:
            self._drop()
        return result

    def _attempt_alone(self, request: CellRequest, name: str) -> CellResult:
        alone = replace(request, backends=(name,), fresh=True)
        try:
            return self._attempt(alone)
        except WorkerDiedError as died:
            self._drop()
            return self._guilty(alone, died)
        except HarnessError as mistake:
            return self._mistaken(alone, mistake)

    def _isolate(self, request: CellRequest) -> CellResult:
        """One process a backend; then the survivors together once more, for their paired times."""
        alone = {name: self._attempt_alone(request, name) for name in request.backends}
        good = tuple(name for name, result in alone.items() if result.rows[0].status == "ok")
        if 1 < len(good) < len(request.backends):
            try:
                together = self._attempt(replace(request, backends=good))
            except WorkerDiedError:
                self._drop()  # together they still do not live: the rows measured alone stand, without speed-ups
            except HarnessError as mistake:
                self._warn(mistake)  # and so they do here
                self._drop()
            else:
                bad = [result for name, result in alone.items() if name not in good]
                return _joined([together, *bad])
        return _joined(list(alone.values()))

    def _guilty(self, request: CellRequest, died: WorkerDiedError) -> CellResult:
        (name,) = request.backends
        return CellResult([self._failed(request, name, died.kind, died.row_error())])

    def _mistaken(self, request: CellRequest, mistake: HarnessError) -> CellResult:
        self._warn(mistake)
        self._drop()
        return CellResult([self._failed(request, name, "error", mistake.row_error()) for name in request.backends])

    def _warn(self, mistake: HarnessError) -> None:
        """The whole traceback where a person sees it; a row holds its last line."""
        warnings.warn(str(mistake), stacklevel=2)

    def _failed(self, request: CellRequest, name: str, status: Status, error: str) -> Row:
        assert self._hello is not None, "a worker that failed in a cell had started"
        return failed_row(request, name, self._hello.device_name, self._hello.environment_id, status, error)

    def _ready(self, new: bool = False) -> WorkerProcess:
        """A worker; starting one probes the device, so a device that died in a crash ends the sweep with a message."""
        if new and self._worker is not None and self._worker.used:
            self._drop()
        if self._worker is None:
            self._worker = WorkerProcess(self.setup, self.startup_timeout_s, self.waiting)
            self._hello = self._worker.hello
        return self._worker

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _joined(results: list[CellResult]) -> CellResult:
    rows = [row for result in results for row in result.rows]
    samples = {key: value for result in results for key, value in result.samples.items()}
    return CellResult(rows, samples)
