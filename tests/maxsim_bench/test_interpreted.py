"""The fused kernel equals the reference under the interpreter, and a check that fails says so."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from maxsim_bench import interpreted
from maxsim_bench.interpreted import SHAPES, InterpreterError, check_shape, interpreter_check


@pytest.mark.slow
@pytest.mark.usefixtures("can_interpret")
def test_every_shape_agrees_with_the_reference() -> None:
    checks = interpreter_check()
    assert len(checks) == len(SHAPES) >= 20
    assert [c for c in checks if c.problem] == []
    assert all(c.error is not None and c.error < 1e-6 for c in checks)


def test_a_wrong_score_is_a_problem_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import maxsim

    def scores(*_: Any, path: str, **__: Any) -> torch.Tensor:
        return torch.tensor([[1.0, 2.5 if path == "portable" else 2.0, float("-inf")]])

    monkeypatch.setattr(maxsim, "maxsim", scores)
    told = check_shape(1, 4, 3, 5, 2, "float32", "full")
    assert told == {"shape": "Nq=1 Lq=4 B=3 Ld=5 d=2 float32 full", "error": 0.125, "problem": "1 of 3 scores differ"}


def test_a_process_that_fails_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, stdout="", stderr="no triton here")

    monkeypatch.setattr(interpreted.subprocess, "run", failing)
    with pytest.raises(InterpreterError, match="ended with 1:\nno triton here"):
        interpreter_check()


def test_a_process_that_hangs_is_given_up() -> None:
    with pytest.raises(InterpreterError, match="took longer than 0 s"):
        interpreter_check(timeout_s=0.01)
