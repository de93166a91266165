"""The gate as a job of somebody else's repository runs it: two runs in, verdict, summary and exit code out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store

ROOT = Path(__file__).parents[3]
GATE = ROOT / ".github" / "actions" / "gate" / "gate.sh"
# A Python without what the gate does not install: importing that fails as it would there.
POORER = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "matplotlib", "psutil", "rich", "requests", "maxsim"):
            raise ImportError(f"{name} is not among the packages of the gate")

sys.meta_path.insert(0, Absent())
from maxsim_bench.cli import main
main()
"""


class Job:
    """A step in a folder of its own, with the variables that GitHub sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        interpreter = folder / "temp" / "maxsim-gate" / "venv" / "bin" / "python"
        interpreter.parent.mkdir(parents=True)
        # In place of the virtual environment that the first run would install.
        (folder / "poorer.py").write_text(POORER)
        interpreter.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{folder}/poorer.py" "$@"\n')
        interpreter.chmod(0o755)

    def run(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        """The script's exit code and output; `outputs` and `summary` hold the rest."""
        for name in ("output", "summary"):
            (self.folder / name).write_text("")
        environment = {
            "PATH": os.environ["PATH"], "RUNNER_TEMP": str(self.folder / "temp"), **inputs,
            "GITHUB_OUTPUT": str(self.folder / "output"), "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
        }  # fmt: skip
        return subprocess.run(["bash", GATE], cwd=self.folder, env=environment, capture_output=True, text=True)

    @property
    def outputs(self) -> dict[str, str]:
        """As a later step would read them."""
        return dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())

    @property
    def summary(self) -> str:
        return (self.folder / "summary").read_text()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def rows(made: Any) -> list[Row]:
    return list(made.sweep([made.cell(B=B) for B in (1000, 10_000)], ["eager", "fused"]))


def slower(rows: list[Row]) -> list[Row]:
    """Ours at B = 1000 takes a fifth longer."""
    lost = [row for row in rows if (row.backend, row.cell.B) == ("fused", 1000)]
    return [r.model_copy(update={"latency_ms": 1.2 * (r.latency_ms or 0)}) if r in lost else r for r in rows]


def test_equal_runs_pass_with_the_comparison_as_summary(job: Job, rows: list[Row], made: Any) -> None:
    made.written(job.folder / "base", rows)
    made.written(job.folder / "new", rows, seed=1)
    done = job.run(BASE="base", NEW="new")
    assert done.returncode == 0, done.stderr
    assert job.outputs["verdict"] == "passed"
    assert json.loads((Path(job.outputs["folder"]) / "comparison.json").read_text())["exit_code"] == 0
    assert job.summary.startswith("### new against base: 0 slower")


def test_a_slower_run_fails_unless_it_is_only_reported(job: Job, rows: list[Row], made: Any) -> None:
    made.written(job.folder / "base", rows)
    made.written(job.folder / "new", slower(rows), seed=1)
    done = job.run(BASE="base", NEW="new", FAIL_ON="slower")
    assert (done.returncode, job.outputs["verdict"]) == (1, "failed"), done.stderr
    assert "| SLOWER | latency_ms | fused (ours) |" in job.summary
    assert job.run(BASE="base", NEW="new", FAIL_ON="nothing").returncode == 0


@pytest.mark.parametrize(("lost", "code", "verdict"), [(False, 2, "refused"), (True, 1, "failed")])
def test_a_row_at_odds_with_its_samples_does_not_pass_and_the_summary_names_it(
    job: Job, rows: list[Row], made: Any, lost: bool, code: int, verdict: str
) -> None:
    made.written(job.folder / "base", rows)
    made.written(job.folder / "new", slower(rows) if lost else rows, seed=1)
    store = Store(job.folder / "new" / "h200" / "forward.csv")
    row = store.rows()[0]
    store.replace([row.model_copy(update={"latency_ms": 0.5 * (row.latency_ms or 0)})])
    done = job.run(BASE="base", NEW="new", FAIL_ON="slower")
    assert (done.returncode, job.outputs["verdict"]) == (code, verdict), done.stderr
    told = json.loads((Path(job.outputs["folder"]) / "comparison.json").read_text())
    assert (len(told["left_out"]), told["exit_code"]) == (1, code)
    assert "- new: h200/forward.csv: latency_ms is " in job.summary
    assert "left out, at odds with its own samples: new: h200/forward.csv: latency_ms is " in done.stderr


def test_rows_are_chosen_by_experiment_backend_and_cell(job: Job, rows: list[Row], made: Any) -> None:
    made.written(job.folder / "base", rows)
    made.written(job.folder / "new", slower(rows), seed=1)
    done = job.run(BASE="base", NEW="new", EXPERIMENT="forward", BACKENDS="eager fused", WHERE="B>=5000 Lq=32")
    assert done.returncode == 0, done.stderr
    told = json.loads((Path(job.outputs["folder"]) / "comparison.json").read_text())
    assert {(one["backend"], "B = 10K" in one["label"]) for one in told["decided"]} == {
        ("eager", True),
        ("fused", True),
    }


def test_thresholds_may_be_ones_own(job: Job, rows: list[Row], made: Any) -> None:
    """A loss of a fifth passes where a half is allowed."""
    made.written(job.folder / "base", rows)
    made.written(job.folder / "new", slower(rows), seed=1)
    (job.folder / "mine.toml").write_text(
        "false_discovery_rate = 0.01\nconfidence = 0.95\ninterleaved_percent = 1.0\n[[thresholds]]\n"
        'metric = "latency_ms"\nbetter = "lower"\npercent = 50.0\ntest = "samples"\nportable = false\n'
    )
    assert job.run(BASE="base", NEW="new", THRESHOLDS="mine.toml").returncode == 0


@pytest.mark.parametrize("base", ["nowhere", "--rev"])
def test_what_cannot_be_compared_is_refused_and_an_input_is_no_option(
    job: Job, base: str, rows: list[Row], made: Any
) -> None:
    made.written(job.folder / "new", rows)
    done = job.run(BASE=base, NEW="new")
    assert (done.returncode, job.outputs) == (2, {"verdict": "refused", "folder": ""})
    assert f"Error: {base}: neither a file nor a folder" in done.stderr
    assert job.summary == "The runs cannot be compared; the log of this step says why.\n"
