"""The container, the cluster script and the artifact appendix name only commands, targets and files that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from maxsim_bench.cli import main

ROOT = Path(__file__).parents[1]
FILES = ("Dockerfile", "examples/slurm/reproduce.sbatch", "docs/artifact.md")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_every_make_target_that_is_named_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|&& |^|# |bench )make ([a-z-]+)", text_of(name), re.MULTILINE))
    assert named <= targets
    assert named, "no target is named: the pattern fits nothing any more"


@pytest.mark.parametrize("name", FILES[1:])
def test_every_command_and_option_that_is_named_exists(name: str) -> None:
    found = re.findall(r"maxsim-bench ([a-z]+)((?: [^`\n#]*)?)", text_of(name))
    assert found
    for command, rest in found:
        assert command in main.commands, command
        known = {o for p in main.commands[command].params if isinstance(p, click.Option) for o in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, f"{command}{rest}"


def test_links_of_the_appendix_lead_to_files_and_the_readme_leads_to_it() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", text_of("docs/artifact.md")):
        assert (ROOT / "docs" / link).is_file(), link
    assert "(docs/artifact.md)" in text_of("README.md")


def test_elements_and_folders_that_are_named_exist() -> None:
    elements = text_of("experiments/paper/elements.toml")
    for name in FILES:
        for element in re.findall(r"ELEMENT=([a-z]+:\w+)", text_of(name)):
            assert f'["{element}"]' in elements
    assert (ROOT / "results" / "h200").is_dir()
    assert "COPY . ." in text_of("Dockerfile")
    assert not re.search(r"^(results/h200|figures|experiments)$", text_of(".dockerignore"), re.MULTILINE)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_the_cluster_script_is_valid_shell_and_refuses_a_checkout_without_an_environment(tmp_path: Path) -> None:
    script = ROOT / "examples" / "slurm" / "reproduce.sbatch"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    environment = {"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "USER": "someone"}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "make setup" in done.stderr
