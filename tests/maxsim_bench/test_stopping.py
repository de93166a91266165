"""A command that a scheduler ends says so and keeps its rows, as one that Ctrl-C ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from maxsim_bench.record.store import Store
from maxsim_bench.stopping import terminated_as_interrupted

ROOT = Path(__file__).parents[2]


def test_sigterm_becomes_an_interrupt_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_kills_as_ever() -> None:
    with terminated_as_interrupted():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_another_thread_nothing_is_changed() -> None:
    ran = []

    def work() -> None:
        with terminated_as_interrupted():
            ran.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [before]


def test_a_sweep_that_is_terminated_says_so_and_keeps_every_finished_row(tmp_path: Path) -> None:
    """As a scheduler does it, between two rows of the smoke grid; the lock is free again and the rows are whole."""
    command = [
        sys.executable, "-m", "maxsim_bench.cli", "run", "smoke", "--into", str(tmp_path), "--experiments",
        str(ROOT / "experiments"), "--backend", "eager", "--backend", "chunked", "--where", "dtype=fp32",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    store = tmp_path / "smoke.csv"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and running.poll() is None and not (store.exists() and Store(store).rows()):
        time.sleep(0.02)
    assert running.poll() is None, running.communicate()
    running.send_signal(signal.SIGTERM)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 1
    assert told.rstrip().endswith("Stopped. Every finished row is kept; the same command goes on from there.")
    rows = Store(store).rows()
    assert rows
    assert {row.status for row in rows} == {"ok"}
    with Store(store).lock():
        pass
