"""The audit as rows: one a dtype and path, resumed, and a bug is an `incorrect` row and exit code 1."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from maxsim.training import audit as kernels_audit
from maxsim.training.audit import Finding, Report
from maxsim_bench import gradient_audit
from maxsim_bench.gradient_audit import LISTED, Job, jobs, main, run
from maxsim_bench.machine import Machine

CPU = Machine("cpu", "cpu", "a processor", 1 << 33, 1)


def report(cause: str, many: int = 1) -> Report:
    findings = [Finding("fp16 #0", "dD", (i,), 1.0, 2.0, cause) for i in range(many)]  # type: ignore[arg-type]
    return Report(4, {"score": 1e-7, "dD": 2e-6}, findings, Counter({("dD", cause): many}))  # type: ignore[dict-item]


def test_a_real_audit_of_short_sequences_passes_in_every_dtype(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kernels_audit, "LENGTHS", (8, 16, 24))
    rows = run(CPU, tmp_path, 4, 1, lambda line: None)
    assert [(r.cell.dtype, r.status) for r in rows] == [("fp16", "ok"), ("bf16", "ok"), ("fp32", "ok")]
    assert all(json.loads(r.extra or "")["cases"] == 4 and 0 < (r.max_rel_err or 0) < 1e-5 for r in rows)


def test_a_bug_is_an_incorrect_row_that_lists_it(tmp_path: Path) -> None:
    rows = run(CPU, tmp_path, 4, 1, lambda line: None, lambda job: report("bug", 60))
    assert {r.status for r in rows} == {"incorrect"}
    assert "60 discrepancies" in (rows[0].error or "")
    told = json.loads(rows[0].extra or "")
    assert told["counts"] == {"dD: bug": 60}
    assert len(told["findings"]) == LISTED
    assert rows[0].max_rel_err == 2e-6


def test_ties_and_roundings_pass_and_are_counted(tmp_path: Path) -> None:
    said: list[str] = []
    rows = run(CPU, tmp_path, 4, 1, said.append, lambda job: report("tie"))
    assert {r.status for r in rows} == {"ok"}
    assert said[0] == "fp16 train_fused: ok, 4 shapes; score 1.0e-07, dD 2.0e-06; 1 dD: tie"


def test_what_is_there_is_not_audited_again(tmp_path: Path) -> None:
    asked: list[Job] = []

    def make(job: Job) -> Report:
        asked.append(job)
        return report("rounding")

    rows = run(CPU, tmp_path, 4, 1, lambda line: None, make)
    assert run(CPU, tmp_path, 4, 1, lambda line: None, make) == rows
    assert len(asked) == len(rows) == 3


def test_every_deterministic_path_is_audited_on_a_gpu() -> None:
    card = Machine("cuda", "h200", "a card", 1 << 37, 16)
    found = {(job.cell.dtype, job.path) for job in jobs(card, 128)}
    assert found == {(d, p) for d in ("fp16", "bf16", "fp32") for p in ("csr", "csr_sort", "onehot")}


def test_the_command_exits_with_1_after_a_bug(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gradient_audit, "this_machine", lambda: CPU)
    monkeypatch.setattr(gradient_audit, "_reports", lambda left, processes, make: [report("bug") for _ in left])
    with pytest.raises(SystemExit) as end:
        main(["--into", str(tmp_path), "--pairs", "4"])
    assert end.value.code == 1
