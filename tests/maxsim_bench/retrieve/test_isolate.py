"""A function in a process of its own answers, raises, dies, is given up, or is ended with the whole run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench import stopping
from maxsim_bench.record.children import Child
from maxsim_bench.retrieve import isolate
from maxsim_bench.retrieve.isolate import Abandoned, Dead, in_own_process


def _answers(value: int) -> int:
    return value + 1


def _raises() -> None:
    raise ValueError("told by the other side")


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hangs() -> None:
    time.sleep(60)


def test_a_process_of_its_own_answers_raises_dies_or_is_given_up() -> None:
    assert in_own_process(_answers, (1,), 60) == 2
    with pytest.raises(ValueError, match="told by the other side"):
        in_own_process(_raises, (), 60)
    with pytest.raises(Dead, match="SIGKILL") as died:
        in_own_process(_dies, (), 60)
    assert died.value.status == "crash"
    with pytest.raises(Dead, match="no answer after 3 s") as hung:
        in_own_process(_hangs, (), 3)
    assert hung.value.status == "timeout"


def test_an_abandoned_run_ends_its_processes_and_begins_no_other() -> None:
    threading.Timer(4.0, isolate.abandon).start()
    began = time.monotonic()
    with pytest.raises(Abandoned):
        in_own_process(_hangs, (), 120)
    assert time.monotonic() - began < 50
    with pytest.raises(Abandoned):
        in_own_process(_answers, (1,), 60)
    isolate.resume()
    assert in_own_process(_answers, (1,), 60) == 2


def test_a_run_that_is_stopped_while_a_process_starts_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*given: Any) -> Child:
        child = Child(*given)
        isolate.abandon()
        return child

    monkeypatch.setattr(isolate, "Child", late)
    began = time.monotonic()
    with pytest.raises(Abandoned):
        in_own_process(_hangs, (), 120)
    assert time.monotonic() - began < 50
    isolate.resume()


STOPPED = """
import sys, time
from maxsim_bench.retrieve.isolate import in_own_process
from maxsim_bench.stopping import stopped_in_one_line

def work():
    print("working", flush=True)
    time.sleep(3600)

if __name__ == "__main__":
    with stopped_in_one_line():
        in_own_process(work, (), 3600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_process_at_once_and_it_says_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C goes to every process in the foreground, what a scheduler sends to the command alone."""
    path = tmp_path / "program.py"
    path.write_text(STOPPED)
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "working\n"
            (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
            _, told = run.communicate(timeout=120)  # ends only when nobody holds the pipes any more
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert (run.returncode, told) == (1, f"{stopping.STOPPED}\n")
