"""Batches that double until one does not fit, a row each; a process that dies is a row as well."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from maxsim_bench import training_capacity
from maxsim_bench.machine import Machine
from maxsim_bench.training_capacity import BACKENDS, Step, batches, ladder, main, run

CPU = Machine("cpu", "cpu", "a processor", 1 << 33, 1)


def made_up(backend: str, gpu: str, device: str, sizes: Sequence[int]) -> list[Step]:
    """Eager fits one size, the others all; one peer kills its process."""
    if backend == "train_lik":
        os._exit(1)
    fits = sizes[:1] if backend == "train_eager" else sizes
    steps = [Step(B, "ok", 10 * B, B * B) for B in fits]
    return steps if len(fits) == len(sizes) else [*steps, Step(sizes[1], "oom", error="out of memory")]


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
    assert rows[1].cell.Nq == rows[1].cell.B
    assert len(said) == 3
    again: list[str] = []
    assert run(CPU, tmp_path, 128, again.append, made_up) == rows
    assert again == []


def test_a_real_step_runs_and_the_first_failure_ends_the_ladder(monkeypatch) -> None:
    monkeypatch.setattr(training_capacity, "LENGTH", 8)
    assert [(s.B, s.status) for s in ladder("train_fused", "cpu", "cpu", [2, 4])] == [(2, "ok"), (4, "ok")]
    assert ladder("train_fused", "cpu", "cpu", [2])[0].input_bytes == 2 * 2 * 8 * 128 * 2
    assert [(s.B, s.status) for s in ladder("train_csr", "cpu", "cpu", [2, 4])] == [(2, "unsupported")]


def test_every_backend_is_registered() -> None:
    from maxsim_bench.backends.registry import get

    assert all(get(name).name == name for name in BACKENDS)


def test_a_processor_is_refused(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(training_capacity, "this_machine", lambda: CPU)
    with pytest.raises(SystemExit):
        main([])
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
