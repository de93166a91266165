"""The parent's side of a worker process: start it, ask it, wait with a limit, take what it printed, end it.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from typing import IO, Any, Literal

from maxsim_bench.measure import clock
from maxsim_bench.run.protocol import CellRequest, CellResult, Hello, WorkerSetup
from maxsim_bench.run.worker import LOST_DEVICE

_OUTPUT_BYTES = 4096  # of a worker's output, kept for the row of a failure
_CHUNK = 1024
_TELL_EVERY_S = 20.0  # of an answer that lets itself be waited for, which step it is in


class WorkerDiedError(RuntimeError):
    """A worker ended or had to be ended. `kind` is "crash" or "timeout"; `output` the end of what it printed."""

    def __init__(self, kind: Literal["crash", "timeout"], message: str, output: str) -> None:
        super().__init__(message)
        self.kind: Literal["crash", "timeout"] = kind
        self.output = output

    def row_error(self) -> str:
        """Message and last line of output, for a row."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return f"{self}; its last output: {lines[-1][:300]}" if lines else str(self)


class WorkerStartError(RuntimeError):
    """A worker did not get as far as its first cell; every further one would fail alike."""


HARNESS_FAILED = "the harness failed"  # so begins the error of a row that says nothing about its backend


class HarnessError(RuntimeError):
    """An exception of the harness itself in a worker, not of a backend; its text holds the step and the traceback."""

    def __init__(self, step: str, trace: str) -> None:
        super().__init__(f"in the worker, during {step}:\n{trace}")
        self.step, self.trace = step, trace

    def row_error(self) -> str:
        """Step and last line of the traceback, for a row."""
        lines = [line.strip() for line in self.trace.splitlines() if line.strip()] or ["no traceback"]
        return f"{HARNESS_FAILED} during {self.step}: {lines[-1][:600]}"


class WorkerProcess:
    """One worker. Not to be shared between threads; `close` ends it in any state."""

    def __init__(
        self,
        setup: WorkerSetup,
        startup_timeout_s: float,
        waiting: Callable[[str], None] = lambda _: None,
        tell_every_s: float = _TELL_EVERY_S,
    ) -> None:
        """Start a worker and wait until it is ready.

        Args:
            setup, startup_timeout_s: of the worker.
            waiting: told after every `tell_every_s` of an answer not given yet, in a sentence that names the step.

        Raises:
            WorkerStartError: with what it printed, if it dies, fails, or is not ready in time.
        """
        ours, theirs = Pipe()
        self._channel = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "maxsim_bench.run.worker", str(theirs.fileno()), str(os.getpid())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, and a kill takes compile helpers along
        )
        theirs.close()
        assert self._process.stdout is not None
        self._output = _Tail(self._process.stdout)
        self._waiting, self._tell_every_s = waiting, tell_every_s
        self.used = False
        self.last_step = "start-up"
        try:
            self.hello: Hello = self._ask(("setup", setup), startup_timeout_s)
        except (WorkerDiedError, HarnessError) as error:
            self.close()
            raise WorkerStartError(
                f"a worker process did not start: {error}\n{self._output.text()}".rstrip()
                + f"\nStart-up may take {startup_timeout_s:g} s; `maxsim-bench doctor` looks for what is missing."
            ) from error
        except BaseException:  # Ctrl-C included: no worker may outlive who started it
            self.close()
            raise

    def ceilings(self, timeout_s: float) -> dict[str, Any]:
        """Ceilings of the device; raises `WorkerDiedError`."""
        self.last_step = "measuring the device's ceilings"
        found: dict[str, Any] = self._ask(("ceilings",), timeout_s)
        return found

    def measure(self, request: CellRequest) -> CellResult:
        """Measure one cell.

        Raises:
            WorkerDiedError: if the worker ends, or is silent for longer than the request allows.
            HarnessError: for an exception of the harness itself in the worker.
        """
        self.used = True
        self.last_step = "the start of the cell"
        self._output.clear()
        result: CellResult = self._ask(("measure", request), request.timeout_s)
        return result

    def _ask(self, message: tuple[Any, ...], timeout_s: float) -> Any:
        try:
            self._channel.send(message)
        except OSError:
            raise self._dead() from None
        asked = clock.seconds()
        deadline, tell = asked + timeout_s, asked + self._tell_every_s
        while True:
            if not self._channel.poll(max(0.0, min(deadline, tell) - clock.seconds())):
                now = clock.seconds()
                if now < deadline:
                    self._waiting(f"waiting for {now - asked:.0f} s: {self.last_step}")
                    tell = now + self._tell_every_s
                    continue
                step = self.last_step
                self.close()
                raise WorkerDiedError("timeout", f"nothing for {timeout_s:g} s during {step}", self._output.text())
            try:
                kind, value = self._channel.recv()
            except (EOFError, OSError):
                raise self._dead() from None
            if kind == "step":
                self.last_step = value
                deadline = clock.seconds() + timeout_s
            elif kind == "done":
                return value
            elif kind == "lost":
                self.close()
                raise WorkerDiedError("crash", value, self._output.text())
            else:
                raise HarnessError(self.last_step, value)

    def _dead(self) -> WorkerDiedError:
        step = self.last_step
        status = self.close()
        return WorkerDiedError("crash", f"the worker {_how(status)} during {step}", self._output.text())

    def close(self) -> int:
        """End the process and its children, wait for it; its exit status. Safe to call twice."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that is well ends by itself when the channel closes
            self._process.wait(timeout=0.5)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of its group is left
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._output.join()
        return status


def _how(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return "lost its device" if status == LOST_DEVICE else f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (by the system, if it ran out of main memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class _Tail:
    """Reads a stream to its end in the background and keeps the last bytes, so that no worker blocks on a full pipe."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._chunks: deque[bytes] = deque(maxlen=_OUTPUT_BYTES // _CHUNK)
        self._thread = threading.Thread(target=self._read, name="worker-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                self._chunks.append(chunk)

    def clear(self) -> None:
        self._chunks.clear()

    def join(self) -> None:
        """Wait until everything that was printed has been read; not for long, should a stranger hold the pipe."""
        self._thread.join(timeout=2.0)

    def text(self) -> str:
        return b"".join(list(self._chunks)).decode("utf-8", "replace")
