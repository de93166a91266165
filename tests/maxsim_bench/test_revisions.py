"""Two revisions of the kernels in one process: a slower one is found, equal ones are the same, nothing stays behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from maxsim_bench import revisions
from maxsim_bench.cli import main
from maxsim_bench.declare.cell import Cell
from maxsim_bench.revisions import RevisionError, both_revisions, rename_package

ROOT = Path(__file__).parents[2]
CELL = Cell(
    experiment="tiny", gpu="cpu", op="forward", Nq=1, B=20, Lq=16, Ld=64, d=64, dtype="fp32", layout="dense",
    pairing="all", inputs="random", timing_policy="host",
)  # fmt: skip
SLOWER = """
_once = maxsim


def maxsim(*arguments, **options):
    for _ in range(3):
        _once(*arguments, **options)
    return _once(*arguments, **options)
"""
WRONG = """
_right = maxsim


def maxsim(*arguments, **options):
    return _right(*arguments, **options) + 1
"""
Invoke = Callable[..., Result]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout tagged base, prose (a document), comment, slow and wrong; a third matters on this shared machine."""
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kernels" / "maxsim", folder / "kernels" / "maxsim", ignore=ignored)
    shutil.copytree(ROOT / "experiments" / "compare", folder / "experiments" / "compare")
    declared = folder / "experiments" / "compare" / "thresholds.toml"
    declared.write_text(declared.read_text().replace("interleaved_percent = 1.0", "interleaved_percent = 33.0"))
    git(folder, "init", "--quiet")
    main_file = folder / "kernels" / "maxsim" / "__init__.py"
    for tag, addition in (("base", ""), ("comment", "\n# nothing new\n"), ("slow", SLOWER), ("wrong", WRONG)):
        main_file.write_text(main_file.read_text() + addition)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", tag)
        git(folder, "tag", tag)
        if tag == "base":
            (folder / "README").write_text("prose")
            git(folder, "add", ".")
            git(folder, "commit", "--quiet", "-m", "prose")
            git(folder, "tag", "prose")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # locks of other runs are none of these tests' business
    monkeypatch.setattr(revisions, "headline_cells", lambda machine: [CELL])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return folder


@pytest.fixture
def invoke(repository: Path) -> Invoke:
    return lambda *arguments: CliRunner().invoke(main, ["compare", "--rev", *arguments], catch_exceptions=False)


def decided_as(wanted: str, invoke: Invoke, *revisions: str) -> tuple[int, dict[str, Any]]:
    """Exit code and decision of the first of three comparisons that decides so; what else runs here may hide it."""
    for _ in range(3):
        done = invoke(*revisions, "--format", "json")
        (decided,) = json.loads(done.output)["decided"]
        if decided["decision"] == wanted:
            break
    return done.exit_code, decided


def test_a_slowed_kernel_is_slower_and_leaves_nothing_behind(invoke: Invoke, repository: Path) -> None:
    code, decided = decided_as("SLOWER", invoke, "base", "slow")
    assert (code, decided["decision"]) == (1, "SLOWER"), decided
    assert 2 < decided["effect"]["ratio"] < 7, "four times the work"
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert not list(repository.parent.glob("maxsim-bench-revisions-*"))
    assert not [name for name in sys.modules if name.startswith(("maxsim_base", "maxsim_new"))]


def test_revisions_that_differ_in_a_comment_are_the_same_when_measured(invoke: Invoke) -> None:
    code, decided = decided_as("SAME", invoke, "base", "comment")
    assert (code, decided["decision"]) == (0, "SAME"), decided
    assert decided["effect"]["base_count"] >= 10


def test_revisions_with_identical_kernels_are_the_same_without_measuring(invoke: Invoke, repository: Path) -> None:
    base, new = (git(repository, "rev-parse", "--short", tag).strip() for tag in ("base", "prose"))
    done = invoke("base", "prose")
    assert (done.exit_code, done.output) == (
        0,
        f"### prose ({new}) against base ({base}): 0 slower, 0 faster, 0 undecided, 1 the same\n"
        "\nNothing moved.\n\nSlower and faster mean worse and better, for memory and quality too. "
        "The false-discovery rate over all 1 comparisons is controlled at 0.01.\n",
    )


def test_a_revision_that_scores_wrongly_has_no_time(invoke: Invoke) -> None:
    done = invoke("base", "wrong")
    assert done.exit_code == 2
    assert "new on Nq=1 B=20 Lq=16 Ld=64 d=64 dtype=fp32" in done.output


def test_an_unknown_revision_is_refused_with_what_to_do(invoke: Invoke) -> None:
    done = invoke("base", "nowhere")
    assert done.exit_code == 2
    assert done.output.startswith(
        "Error: `git rev-parse --verify --quiet nowhere:kernels/maxsim` finds nothing. Run in"
    )


def test_filters_that_leave_no_cell_are_refused(invoke: Invoke) -> None:
    done = invoke("base", "slow", "--where", "Lq=17")
    assert (done.exit_code, done.output) == (
        2,
        "Error: the headline cells: no forward cell for cpu passes these filters. "
        "See what there is with `maxsim-bench plan`, and loosen --where.\n",
    )


def test_backends_of_revisions_are_wrong_usage(repository: Path) -> None:
    done = CliRunner().invoke(main, ["compare", "--rev", "a", "b", "--backend", "eager"])
    assert done.exit_code == 2
    assert "--rev measures the kernels of revisions" in done.output


def test_both_revisions_are_packages_of_their_own_down_to_their_data(repository: Path) -> None:
    with both_revisions("base", "slow", repository) as packages:
        base, new = packages["base"], packages["new"]
        assert base.TokenBatch is not new.TokenBatch
        assert sys.modules["maxsim_base.fused.launch"].__file__ != sys.modules["maxsim_new.fused.launch"].__file__
        assert base.TokenBatch.__module__ == "maxsim_base.tokens"
        texts = [p.read_text() for p in Path(base.__file__).parent.rglob("*.py")]
        assert not [t for t in texts if 'files("maxsim.' in t or '"maxsim::' in t]


def test_an_import_that_cannot_be_renamed_is_refused_with_file_and_line(tmp_path: Path) -> None:
    package = tmp_path / "maxsim"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nimport maxsim.tokens\n")
    with pytest.raises(RevisionError, match=r"kernels/maxsim/__init__\.py:2 of HEAD"):
        rename_package(package, tmp_path / "maxsim_base", "HEAD")


def test_every_form_of_import_keeps_its_line_and_its_name(tmp_path: Path) -> None:
    package = tmp_path / "maxsim"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import maxsim\nimport maxsim.tokens as t\nfrom maxsim import x\n    \n"
        'NAME = "maxsim"\nfrom maxsim.a import b\n'
    )
    rename_package(package, tmp_path / "maxsim_new", "HEAD")
    assert (tmp_path / "maxsim_new" / "__init__.py").read_text() == (
        "import maxsim_new as maxsim\nimport maxsim_new.tokens as t\nfrom maxsim_new import x\n    \n"
        'NAME = "maxsim"\nfrom maxsim_new.a import b\n'
    )
