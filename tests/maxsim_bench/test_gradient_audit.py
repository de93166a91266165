"""The audit as rows: one a dtype and path, resumed; a bug is an `incorrect` row and exit code 1; Ctrl-C ends it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from maxsim.training import audit as kernels_audit
from maxsim.training.audit import Finding, Report
from maxsim_bench import gradient_audit
from maxsim_bench.gradient_audit import (
    LISTED,
    PARTS,
    AuditError,
    Job,
    Part,
    audited,
    jobs,
    main,
    merged,
    parts,
    processes_of,
    run,
)
from maxsim_bench.machine import Machine
from maxsim_bench.record.store import Store

CPU = Machine("cpu", "cpu", "a processor", 1 << 33, 1)
CARD = Machine("cuda", "h200", "a card", 140 << 30, 16)
Note = Callable[[str], None]


def report(cause: str, many: int = 1, cases: int = 4) -> Report:
    findings = [Finding("fp16 #0", "dD", (i,), 1.0, 2.0, cause) for i in range(many)]  # type: ignore[arg-type]
    return Report(cases, {"score": 1e-7, "dD": 2e-6}, findings, Counter({("dD", cause): many}))  # type: ignore[dict-item]


def one_finding(cause: str, many: int, part: Part, note: Note) -> dict[str, Report]:
    """Every path of the part that holds pair 0 found something; the others nothing."""
    note("a pair")
    found = many if 0 in part.numbers else 0
    return {job.backend: report(cause, found, len(part.numbers)) for job in part.jobs}


bug, tie = functools.partial(one_finding, "bug", 60), functools.partial(one_finding, "tie", 1)


def test_a_real_audit_of_short_sequences_passes_in_every_dtype(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kernels_audit, "LENGTHS", (8, 16, 24))
    rows = run(CPU, tmp_path, 4, 1, lambda line: None)
    assert [(r.cell.dtype, r.status) for r in rows] == [("fp16", "ok"), ("bf16", "ok"), ("fp32", "ok")]
    assert all(json.loads(r.extra or "")["cases"] == 4 and 0 < (r.max_rel_err or 0) < 1e-5 for r in rows)


def test_parts_together_find_what_the_library_finds_in_one_piece(monkeypatch) -> None:
    monkeypatch.setattr(kernels_audit, "LENGTHS", (8, 16, 24))
    whole = kernels_audit.audit([torch.float16], pairs=8, seed=0, device="cpu", backward="torch")
    fp16 = [part for part in parts(list(jobs(CPU, 8)), 3) if part.jobs[0].cell.dtype == "fp16"]
    assert len(fp16) == 3
    here = merged([audited(part, lambda name: None)["train_fused"] for part in fp16])
    assert (here.cases, here.worst, here.counts) == (whole.cases, whole.worst, whole.counts)
    assert sorted(here.findings, key=repr) == sorted(whole.findings, key=repr)


def test_parts_hold_every_pair_of_a_dtype_once_by_every_path_with_equal_shapes_together() -> None:
    cut = parts(list(jobs(CARD, 128)))
    assert [part.jobs[0].cell.dtype for part in cut] == ["fp16"] * PARTS + ["bf16"] * PARTS + ["fp32"] * PARTS
    drawn = kernels_audit.shapes(128, 0)
    for dtype in ("fp16", "bf16", "fp32"):
        own = [part for part in cut if part.jobs[0].cell.dtype == dtype]
        assert sorted(number for part in own for number in part.numbers) == list(range(128))
        assert all([job.path for job in part.jobs] == ["csr", "csr_sort", "onehot"] for part in own)
        homes = {shape: {i for i, part in enumerate(own) for n in part.numbers if drawn[n] == shape} for shape in drawn}
        assert {len(home) for home in homes.values()} == {1}


def test_few_variants_of_the_gradient_kernels_are_compiled_by_more_than_one_part(monkeypatch) -> None:
    """What made a run on an H200 slow: a random length is a new variant, and every process met them all in a row."""
    from maxsim.training import csr
    from maxsim.training.backward import gradients
    from maxsim.training.geometry import geometry

    seen: set[object] = set()

    def launched(name, programs, pointers, sized, plain, constants, warps, registers=None) -> None:
        types = tuple(None if p is None else p.dtype for p in pointers)
        seen.add((name, constants, warps, registers, types, tuple(x % 16 == 0 for x in sized)))

    monkeypatch.setattr(csr, "launch", launched)
    monkeypatch.setattr(kernels_audit.fused, "forward", lambda *args, **options: None)
    drawn, compiled = kernels_audit.shapes(128, 0), []
    for part in parts(list(jobs(CARD, 128)))[:PARTS]:
        seen.clear()
        for Lq, Ld, ragged in {drawn[number] for number in part.numbers}:
            q, d, g = kernels_audit.inputs(Lq, Ld, ragged, torch.float16, "cpu", 0)
            geo = geometry(q, d, "all")
            winner = torch.zeros((geo.Nq, geo.K, geo.Lq), dtype=torch.int16)
            for job in part.jobs:
                gradients(job.path, q, d, winner, g, geo, query=True, document=True)
        compiled.append(set(seen))
    assert len(set.union(*compiled)) > 50
    assert max(len(found) for found in compiled) < len(set.union(*compiled)) / 2
    assert sum(len(found) for found in compiled) < 2 * len(set.union(*compiled))


def test_processes_are_bounded_by_processors_and_by_the_memory_of_the_device() -> None:
    assert processes_of(CARD) == 16
    assert processes_of(Machine("cuda", "a100-40gb", "a card", 40 << 30, 64)) == 6
    assert processes_of(Machine("cpu", "cpu", "a processor", 1 << 30, 4)) == 1


def test_a_bug_is_an_incorrect_row_that_lists_it(tmp_path: Path) -> None:
    rows = run(CPU, tmp_path, 4, 1, lambda line: None, bug)
    assert {r.status for r in rows} == {"incorrect"}
    assert "60 discrepancies" in (rows[0].error or "")
    told = json.loads(rows[0].extra or "")
    assert (told["cases"], told["counts"]) == (4, {"dD: bug": 60})
    assert len(told["findings"]) == LISTED
    assert rows[0].max_rel_err == 2e-6


def test_ties_and_roundings_pass_and_are_counted(tmp_path: Path) -> None:
    said: list[str] = []
    rows = run(CPU, tmp_path, 4, 1, said.append, tie)
    assert {r.status for r in rows} == {"ok"}
    assert said[0] == "fp16 train_fused: ok, 4 shapes; score 1.0e-07, dD 2.0e-06; 1 dD: tie"


def test_what_is_there_is_not_audited_again(tmp_path: Path) -> None:
    asked: list[Job] = []

    def make(part: Part, note: Note) -> dict[str, Report]:
        asked.extend(part.jobs)
        return tie(part, note)

    rows = run(CPU, tmp_path, 1, 1, lambda line: None, make)
    assert run(CPU, tmp_path, 1, 1, lambda line: None, make) == rows
    assert len(asked) == len(rows) == 3


def test_a_stop_costs_the_dtype_that_it_was_at_and_no_other_as_the_help_says(tmp_path: Path, capsys) -> None:
    stopped = False
    asked: list[tuple[str | None, tuple[int, ...]]] = []

    def make(part: Part, note: Note) -> dict[str, Report]:
        nonlocal stopped
        asked.append((part.jobs[0].cell.dtype, part.numbers))
        if len(asked) == len(bf16) + len(fp16) and not stopped:  # at the last part of the second dtype
            stopped = True
            raise KeyboardInterrupt
        return tie(part, note)

    fp16, bf16, fp32 = (
        [(dtype, part.numbers) for part in parts(list(jobs(CPU, 8))) if part.jobs[0].cell.dtype == dtype]
        for dtype in ("fp16", "bf16", "fp32")
    )
    assert len(bf16) > 1
    with pytest.raises(KeyboardInterrupt):
        run(CPU, tmp_path, 8, 1, lambda line: None, make)
    assert [row.cell.dtype for row in Store(tmp_path / "gradient_audit_float64.csv").rows()] == ["fp16"]
    run(CPU, tmp_path, 8, 1, lambda line: None, make)
    assert asked == fp16 + bf16 + bf16 + fp32
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "begins the dtype that it was at from its first pair" in capsys.readouterr().out


def test_every_deterministic_path_is_audited_on_a_gpu() -> None:
    found = {(job.cell.dtype, job.path) for job in jobs(CARD, 128)}
    assert found == {(d, p) for d in ("fp16", "bf16", "fp32") for p in ("csr", "csr_sort", "onehot")}


def test_processes_side_by_side_give_the_rows_of_one(tmp_path: Path) -> None:
    alone, together = (run(CPU, tmp_path / str(n), 8, n, lambda line: None, bug) for n in (1, 3))
    of_one, of_three = ({r.cell: (r.extra, r.error) for r in rows} for rows in (alone, together))
    assert of_three == of_one
    assert len(of_one) == 3


def slow_beyond_fp16(part: Part, note: Note) -> dict[str, Report]:
    if part.jobs[0].cell.dtype != "fp16":
        note(f"{part.jobs[0].cell.dtype} #{part.numbers[0]}")
        time.sleep(600)
    return tie(part, note)


def test_a_dtype_is_a_row_as_soon_as_it_is_done_and_what_lasts_is_named(tmp_path: Path) -> None:
    """And the processes that were still at it end with whoever asked."""

    class Enough(Exception):  # noqa: N818  # a signal to this test, no error
        pass

    def say(line: str) -> None:
        if "1 of 3 parts are done" in line and "bf16 #" in line:
            raise Enough

    began = time.monotonic()
    with pytest.raises(Enough):
        run(CPU, tmp_path, 1, 2, say, slow_beyond_fp16, tell_every_s=1.0)
    assert time.monotonic() - began < 200
    assert [row.cell.dtype for row in Store(tmp_path / "gradient_audit_float64.csv").rows()] == ["fp16"]


def broken(part: Part, note: Note) -> dict[str, Report]:
    note("bf16 #3")
    raise ValueError("no such path")


def gone(part: Part, note: Note) -> dict[str, Report]:
    note("bf16 #3")
    os._exit(7)


@pytest.mark.parametrize(("make", "told"), [(broken, "no such path"), (gone, "exit status 7")])
def test_a_part_that_fails_says_at_which_pair_and_why(tmp_path: Path, make, told: str) -> None:
    with pytest.raises(AuditError, match="bf16 #3") as failed:
        run(CPU, tmp_path, 4, 2, lambda line: None, make)
    assert told in str(failed.value)


@pytest.mark.parametrize(("processes", "seconds"), [(1, 2.0), (2, 0.4), (2, 3.0)])
def test_ctrl_c_ends_it_at_once_with_one_line(tmp_path: Path, processes: int, seconds: float) -> None:
    """As a terminal sends it: to every process of the group, while they start and while they are at a pair.

    A pair of full length takes a processor seconds.
    """
    command = [
        sys.executable, "-m", "maxsim_bench.gradient_audit", "--into", str(tmp_path), "--processes", str(processes),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (tmp_path / "environment.json").exists():
        time.sleep(0.05)
    time.sleep(seconds)
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=60)  # far less than the whole audit takes
    assert running.returncode in (1, -signal.SIGINT)  # the latter where Python was in an `exec` of text, of an import
    assert told == "Stopped. Every finished row is kept; the same command goes on from there.\n"


def test_the_command_exits_with_1_after_a_bug(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gradient_audit, "this_machine", lambda: CPU)
    monkeypatch.setattr(gradient_audit, "_reports", lambda cut, *_: ((part, bug(part, print)) for part in cut))
    with pytest.raises(SystemExit) as end:
        main(["--into", str(tmp_path), "--pairs", "4"])
    assert end.value.code == 1
