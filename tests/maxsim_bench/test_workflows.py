"""The workflows and the gate: pinned, running the commands that everybody runs, clean by the linters for actions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GATE = ROOT / ".github" / "actions" / "gate"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def linter(name: str, install: str = "make setup") -> str:
    """The program beside this interpreter or on the path; skips aloud without it."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {install}")
    return found


def passes(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_workflow_for_a_processor_and_one_for_a_gpu() -> None:
    assert [path.name for path in WORKFLOWS] == ["cpu.yml", "gpu.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_every_action_of_others_is_pinned_by_commit_with_its_version(path: Path) -> None:
    uses = re.findall(r"uses: (\S+)(?: # (\S+))?", path.read_text(encoding="utf-8"))
    assert uses
    for action, version in uses:
        if action.startswith("./"):
            assert (ROOT / action / "action.yml").is_file()
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r"v\d+\.\d+\.\d+", version)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_workflow_runs_nothing_but_targets_of_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    for command in commands:
        made = re.fullmatch(r'make ([a-z-]+)(?: [A-Z]+="\$[A-Z]+")*', command)
        assert made, command
        assert made[1] in targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_a_workflow_may_read_and_no_more_and_keeps_no_token(path: Path) -> None:
    assert read(path)["permissions"] == {"contents": "read"}
    for step in steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_every_input_of_the_gate_reaches_its_script_as_a_variable() -> None:
    action = read(GATE / "action.yml")
    (step,) = action["runs"]["steps"]
    assert set(step["env"].values()) == {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]}
    assert "${{" not in step["run"]
    script = (GATE / "gate.sh").read_text(encoding="utf-8")
    assert [name for name in step["env"] if not re.search(rf"\${{?{name}\b", script)] == []
    assert [name for name in action["outputs"] if f"{name}=" not in script] == []


def test_the_gate_installs_pinned_packages_only() -> None:
    script = (GATE / "gate.sh").read_text(encoding="utf-8")
    found = re.search(r"pip install .*-c \"\$root/constraints\.txt\" \\\n((?:.*\\\n)*.*)", script)
    assert found
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(found[1].split()) <= {name.lower() for name in pinned}


def test_the_workflows_and_the_action_fit_their_schemas() -> None:
    program = linter("check-jsonschema")
    passes(program, "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS))
    passes(program, "--builtin-schema", "vendor.github-actions", str(GATE / "action.yml"))


def test_zizmor_finds_nothing_unsafe() -> None:
    passes(linter("zizmor"), "--offline", "--quiet", "--no-progress", ".github")


def test_zizmor_would_find_an_action_that_is_not_pinned(tmp_path: Path) -> None:
    """The linter is on: a workflow with a mistake in it fails."""
    text = WORKFLOWS[0].read_text(encoding="utf-8")
    unpinned = re.sub(r"actions/checkout@[0-9a-f]{40} # \S+", "actions/checkout@v4", text)
    assert unpinned != text
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    file = tmp_path / ".github" / "workflows" / "cpu.yml"
    file.write_text(unpinned, encoding="utf-8")
    done = subprocess.run([linter("zizmor"), "--offline", "--no-progress", str(file)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout + done.stderr


def test_actionlint_finds_nothing() -> None:
    passes(linter("actionlint", "go install github.com/rhysd/actionlint/cmd/actionlint@latest"), *map(str, WORKFLOWS))


def test_the_gates_script_is_valid_shell() -> None:
    passes("bash", "-n", str(GATE / "gate.sh"))
