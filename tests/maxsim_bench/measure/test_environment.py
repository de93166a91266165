"""Capturing the environment, on machines where much of it is missing."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from maxsim_bench.measure import environment, nvml
from maxsim_bench.measure.environment import FINGERPRINT, capture, device_name, environment_id


def test_every_fact_is_there_or_says_why_not() -> None:
    facts = capture("cpu")
    assert set(FINGERPRINT) <= set(facts)
    assert all(value is not None and value != "" for value in facts.values())
    assert facts["torch"] != "not installed"
    json.dumps(facts)


def test_no_host_user_or_path_is_recorded() -> None:
    told = json.dumps(capture("cpu"))
    assert platform.node() not in told
    assert str(Path.home()) not in told
    assert f'"{getpass.getuser()}"' not in told


def test_a_tarball_without_git_is_a_fact_and_not_a_failure(tmp_path: Path) -> None:
    facts = capture("cpu", tmp_path)
    assert facts["git_commit"] == facts["git_dirty"] == "unknown: not a git checkout"


def test_a_machine_without_the_program_git_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture("cpu")["git_commit"] == "unknown: git is not installed"


def test_a_dirty_tree_says_so(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        name = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    os.utime(tmp_path / "a", (1, 1))  # what a plain `git status` would write into the index
    index = (tmp_path / ".git" / "index").read_bytes()
    assert capture("cpu", tmp_path)["git_dirty"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == index
    (tmp_path / "a").write_text("2")
    assert capture("cpu", tmp_path)["git_dirty"] is True


def test_a_driver_that_fails_is_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: (None, "the NVIDIA driver does not answer: broken"))
    assert capture("cpu")["driver"] == "unknown: the NVIDIA driver does not answer: broken"


def test_a_tool_that_raises_anything_is_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise OSError("disk on fire")

    monkeypatch.setattr(environment, "_cpu_name", broken)
    assert capture("cpu")["cpu"] == "unknown: disk on fire"


def test_the_fingerprint_moves_with_what_decides_comparability_and_with_nothing_else() -> None:
    facts = capture("cpu")
    same = {**facts, "git_commit": "other", "packages": {}, "python": "0"}
    assert environment_id(same) == environment_id(facts)
    for name in FINGERPRINT:
        assert environment_id({**facts, name: "other"}) != environment_id(facts)


def test_the_device_is_called_by_its_own_name() -> None:
    assert device_name({"device": "cuda", "gpu": "NVIDIA H200", "cpu": "x"}) == "NVIDIA H200"
    assert device_name({"device": "cpu", "gpu": "unknown: no CUDA device", "cpu": "x"}) == "x"


@pytest.mark.gpu
def test_a_gpu_tells_its_name_and_conditions() -> None:
    facts = capture("cuda")
    assert not str(facts["gpu"]).startswith("unknown")
    with nvml.Sampler(interval_s=0.01) as conditions:
        import torch

        torch.cuda._sleep(100_000_000)
        torch.cuda.synchronize()
    if nvml.why_silent() is None:
        assert conditions.sm_clock_mhz
        assert conditions.summary()["power_w"]
