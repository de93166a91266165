"""Batches that double until one does not fit, a row each; a process that dies is a row as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from maxsim_bench import training_capacity
from maxsim_bench.machine import Machine
from maxsim_bench.record.store import Store
from maxsim_bench.training_capacity import BACKENDS, Step, batches, ladder, main, run

CPU = Machine("cpu", "cpu", "a processor", 1 << 33, 1)


def made_up(backend: str, gpu: str, device: str, sizes: Sequence[int]) -> Iterator[Step]:
    """Eager fits one size, the others all; one peer kills its process, one step hangs."""
    for B in sizes:
        if backend == "train_lik":
            os._exit(3)
        if backend == "train_lik_lowmem" and B > 64:
            time.sleep(600)
        if backend == "train_eager" and B > 64:
            yield Step(B, "oom", error="out of memory")
            return
        yield Step(B, "ok", 10 * B, B * B)


def test_batches_double_up_to_the_largest() -> None:
    assert batches(300) == [64, 128, 256]


def test_rows_say_what_fits_and_what_does_not_and_a_dead_process_is_one_crash(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(training_capacity, "BACKENDS", ("train_fused", "train_eager", "train_lik"))
    said: list[str] = []
    rows = run(CPU, tmp_path, 128, said.append, made_up)
    assert [(r.backend, r.cell.B, r.status) for r in rows] == [
        ("train_fused", 64, "ok"), ("train_fused", 128, "ok"), ("train_eager", 64, "ok"), ("train_eager", 128, "oom"),
        ("train_lik", 64, "crash"),
    ]  # fmt: skip
    assert rows[1].peak_extra_bytes == 128 * 128
    assert "exit status 3" in (rows[-1].error or "")
    assert rows[1].cell.Nq == rows[1].cell.B
    assert len(said) == 3
    again: list[str] = []
    assert run(CPU, tmp_path, 128, again.append, made_up) == rows
    assert again == []


def test_a_real_step_runs_and_the_first_failure_ends_the_ladder(monkeypatch) -> None:
    monkeypatch.setattr(training_capacity, "LENGTH", 8)
    assert [(s.B, s.status) for s in ladder("train_fused", "cpu", "cpu", [2, 4])] == [(2, "ok"), (4, "ok")]
    assert next(iter(ladder("train_fused", "cpu", "cpu", [2]))).input_bytes == 2 * 2 * 8 * 128 * 2
    assert [(s.B, s.status) for s in ladder("train_csr", "cpu", "cpu", [2, 4])] == [(2, "unsupported")]


def test_a_step_that_takes_too_long_is_a_timeout_and_ends_its_backend_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(training_capacity, "BACKENDS", ("train_lik_lowmem", "train_fused"))
    rows = run(CPU, tmp_path, 256, lambda line: None, made_up, step_seconds=2.0)
    assert [(r.backend, r.cell.B, r.status) for r in rows] == [
        ("train_lik_lowmem", 64, "ok"), ("train_lik_lowmem", 128, "timeout"), ("train_fused", 64, "ok"),
        ("train_fused", 128, "ok"), ("train_fused", 256, "ok"),
    ]  # fmt: skip
    assert rows[1].error == "no answer within 2 s"


def interrupted(store: Path, backend: str, gpu: str, device: str, sizes: Sequence[int]) -> Iterator[Step]:
    """The second step does not end before Ctrl-C reaches who waits for it, with the first in the store."""
    yield Step(sizes[0], "ok", 1, 1)
    while not (store.exists() and Store(store).rows()):
        time.sleep(0.05)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)


def test_what_was_finished_before_ctrl_c_stays_and_the_next_run_goes_on_behind_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(training_capacity, "BACKENDS", ("train_fused",))
    store = tmp_path / "training_capacity.csv"
    with pytest.raises(KeyboardInterrupt):
        run(CPU, tmp_path, 256, lambda line: None, partial(interrupted, store))
    assert [row.cell.B for row in Store(store).rows()] == [64]
    rows = run(CPU, tmp_path, 256, lambda line: None, made_up)
    assert [(row.cell.B, row.peak_extra_bytes) for row in rows] == [(64, 1), (128, 128**2), (256, 256**2)]


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    """To every process of the group, as a terminal sends it."""
    script = (
        "import time; from maxsim_bench import training_capacity as room\n"
        "from maxsim_bench.machine import Machine\n"
        "room.this_machine = lambda: Machine('cuda', 'h200', 'a card', 1 << 37, 2)\n"
        "def run(*given, **told):\n    print('climbing', flush=True); time.sleep(600)\n"
        "room.run = run; room.main([])\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "climbing\n"
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 1
    assert told == "Stopped. Every finished row is kept; the same command goes on from there.\n"


def test_ours_come_first() -> None:
    assert BACKENDS[:3] == ("train_fused", "train_lean", "train_recompute")


def test_every_backend_is_registered() -> None:
    from maxsim_bench.backends.registry import get

    assert all(get(name).name == name for name in BACKENDS)


def test_a_processor_is_refused(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(training_capacity, "this_machine", lambda: CPU)
    with pytest.raises(SystemExit):
        main([])
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
