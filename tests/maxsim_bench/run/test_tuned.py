"""Choices of tuners: what one process decided, another launches without tuning again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = """
import triton

@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((16, 2), (32, 4), (64, 8))], key=["n"])
@triton.jit
def tuned_kernel(x, n, BLOCK: triton.language.constexpr):
    pass
"""
PRELUDE = "import json, sys; from maxsim_bench.run import tuned; "


@pytest.fixture
def module(tmp_path: Path) -> str:
    pytest.importorskip("triton")
    (tmp_path / "kernels_of_a_peer.py").write_text(KERNELS)
    return "kernels_of_a_peer"


def run(folder: Path, code: str, *given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *given], cwd=folder, capture_output=True, text=True, check=False
    )


def test_what_one_process_chose_another_launches(tmp_path: Path, module: str) -> None:
    """By way of JSON, to a process that has not even imported the kernels."""
    made = run(
        tmp_path,
        f"import {module} as m; m.tuned_kernel.cache[(128, 'torch.float16')] = m.tuned_kernel.configs[1]; "
        "print(json.dumps(tuned.choices()))",
    )
    told = json.loads(made.stdout)
    assert told == [[module, "tuned_kernel", [128, "torch.float16"], 1]], made.stderr
    taken = run(
        tmp_path,
        "tuned.choose([tuned.Choice(*one) for one in json.loads(sys.argv[1])]); "
        f"import {module} as m; print({{k: str(c) for k, c in m.tuned_kernel.cache.items()}})",
        json.dumps(told),
    )
    assert "(128, 'torch.float16'): 'BLOCK: 32, num_warps: 4" in taken.stdout, taken.stderr


def test_two_tuners_of_one_function_are_left_to_tune(tmp_path: Path, module: str) -> None:
    """They have one name, so a place in the list of one could be looked up in the list of the other."""
    made = run(
        tmp_path,
        f"import triton, {module} as m; m.tuned_kernel.cache[(1,)] = m.tuned_kernel.configs[2]; "
        "other = triton.autotune(configs=[triton.Config({'BLOCK': 7})], key=['n'])(m.tuned_kernel.fn); "
        "other.cache[(1,)] = other.configs[0]; print(json.dumps(tuned.choices()))",
    )
    assert json.loads(made.stdout) == [], made.stderr


def test_a_choice_outside_of_the_tuners_list_is_left_out(tmp_path: Path, module: str) -> None:
    made = run(
        tmp_path,
        f"import triton, {module} as m; m.tuned_kernel.cache[(1,)] = triton.Config({{'BLOCK': 7}}); "
        "print(json.dumps(tuned.choices()))",
    )
    assert json.loads(made.stdout) == [], made.stderr


@pytest.mark.parametrize(
    "choice",
    [
        ["no_such_module", "f", [1], 0],
        ["kernels_of_a_peer", "no_such_kernel", [1], 0],
        ["kernels_of_a_peer", "tuned_kernel", [1], 9],
    ],
    ids=["module", "kernel", "configuration"],
)
def test_a_choice_of_other_sources_is_refused(tmp_path: Path, module: str, choice: list[object]) -> None:
    taken = run(tmp_path, "tuned.choose([tuned.Choice(*one) for one in json.loads(sys.argv[1])])", json.dumps([choice]))
    assert taken.returncode == 1
    assert any(name in taken.stderr for name in ("ModuleNotFoundError", "KeyError", "IndexError"))


def test_a_process_without_triton_has_chosen_nothing(tmp_path: Path) -> None:
    made = run(tmp_path, "assert 'triton' not in sys.modules; print(json.dumps(tuned.choices()))")
    assert json.loads(made.stdout) == [], made.stderr
