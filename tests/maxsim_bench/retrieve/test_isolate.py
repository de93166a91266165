"""A function in a process of its own answers, raises, dies, is given up, or is ended with the whole run."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

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
