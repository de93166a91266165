"""The pytest-benchmark suite as a user runs it: saved, compared by pytest-benchmark, and read by `compare`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from maxsim_bench.cli import main

ROOT = Path(__file__).parents[2]


def suite(storage: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One cell of the suite, with our kernels and eager, on a processor."""
    command = [
        sys.executable, "-m", "pytest", "tests/benchmarks", "-q", "-p", "no:cacheprovider", "--benchmark-only",
        f"--benchmark-storage={storage}", "-k", "(fused or eager) and B50-Lq32-Ld180", *arguments,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("benchmarks")
    first = suite(storage, "--benchmark-save=one")
    assert first.returncode == 0, first.stdout + first.stderr
    second = suite(storage, "--benchmark-save=two", "--benchmark-compare=0001")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "test_forward[fused-B50-Lq32-Ld180] (0001_one)" in second.stdout, "pytest-benchmark sets both side by side"
    return storage


def records(storage: Path, name: str) -> dict[str, Any]:
    (path,) = storage.rglob(f"*_{name}.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return {one["extra_info"]["backend"]: one for one in found["benchmarks"]}


@pytest.mark.slow
def test_a_record_holds_the_timers_samples_and_what_they_are_of(saved: Path) -> None:
    one = records(saved, "one")
    assert set(one) == {"fused", "eager"}
    extra = one["fused"]["extra_info"]
    assert (extra["cell"]["Ld"], extra["gpu"], extra["policy"]) == (180, "cpu", "host")
    assert len(extra["ratios"]) == one["fused"]["stats"]["rounds"]
    assert min(extra["ratios"]) <= extra["speedup"] <= max(extra["ratios"])
    assert extra["environment"]["torch"]
    assert "speedup" not in one["eager"]["extra_info"], "a baseline has no ratio to itself"


@pytest.mark.slow
def test_compare_reads_what_the_suite_saved_and_tracks_the_ratio(saved: Path) -> None:
    base, new = (str(next(saved.rglob(f"*_{name}.json"))) for name in ("one", "two"))
    done = CliRunner().invoke(
        main, ["compare", base, new, "--experiments", str(ROOT / "experiments"), "--format", "json"]
    )
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"]
    assert {(d["backend"], d["metric"]) for d in told["decided"]} == {
        ("fused", "latency_ms"), ("fused", "speedup"), ("eager", "latency_ms"),
    }  # fmt: skip
    (ratio,) = (d for d in told["decided"] if d["metric"] == "speedup")
    assert ratio["effect"]["test"] == "Mann-Whitney U"
