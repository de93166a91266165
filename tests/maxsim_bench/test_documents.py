"""What the documents name exists, and what they show runs: paths, links, commands, make targets, Python."""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from maxsim_bench.cli import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# Where a path in a document may start: the checkout, a source root, or a room that the sentence is about.
ROOTS = (
    "",
    "harness/maxsim_bench",
    "harness/maxsim_bench/retrieve",
    "kernels",
    "kernels/maxsim",
    "kernels/maxsim/fused",
)
PATH = re.compile(r"(?:[\w.*-]+/)+[\w.*-]*|[\w*-]+\.(?:py|toml|md)")


def text_of(document: Path) -> str:
    """The document without the block that `make report` writes; `make check` is the test of that."""
    return re.sub(r"<!-- results:begin.*?results:end -->", "", document.read_text("utf-8"), flags=re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(document), re.DOTALL | re.MULTILINE)


def quoted(document: Path) -> list[str]:
    """What stands in backticks outside of code blocks."""
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", prose)


def commands(document: Path) -> Iterator[str]:
    """Every complete command line: in backticks, or a line of a code block without a language."""
    for line in [*quoted(document), *"".join(blocks(document, "")).splitlines()]:
        yield line.partition(" #")[0].strip()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_path_a_document_names_is_there(document: Path) -> None:
    named = [n for n in quoted(document) if PATH.fullmatch(n)]
    assert [n for n in named if not any(list((ROOT / root).glob(n.rstrip("/"))) for root in ROOTS)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_module_a_document_runs_is_there(document: Path) -> None:
    named = re.findall(r"python -m ([\w.]+)", text_of(document))
    assert [n for n in named if importlib.util.find_spec(n) is None] == []


def test_every_variant_that_a_cell_may_have_is_explained() -> None:
    """Captions name them, and a reader has nowhere else to look."""
    told = (ROOT / "docs" / "measurement.md").read_text("utf-8").split("## Words of a cell")[1]
    declared = [tomllib.loads(path.read_text("utf-8")) for path in sorted((ROOT / "experiments").glob("*.toml"))]
    keys = {key for one in declared for key in one["axes"].get("variant", {})}
    assert keys >= {"loss", "stage", "study"}
    assert [key for key in sorted(keys) if f"`{key}`" not in told] == []


def test_every_element_of_the_paper_is_listed() -> None:
    """But those that the authors replaced altogether, and the abstract, which repeats the tables."""
    text = (ROOT / "docs" / "paper.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE))
    with (ROOT / "experiments" / "paper" / "claims.csv").open(newline="", encoding="utf-8") as file:
        asked = {c["paper_element"] for c in csv.DictReader(file) if c["superseded"] == "no"}
    assert sorted(e for e in asked - listed if not e.startswith("abstract")) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", text_of(document))
    assert [t for t in targets if "://" not in t and not (document.parent / t).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_every_command_a_document_shows_is_understood(document: Path) -> None:
    """Parsed by the program's own commands; a make target must be one of the Makefile's."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for line in commands(document):
        if not line.startswith(("make ", "maxsim-bench ")):
            continue
        program, *arguments = shlex.split(line)
        if program == "make":
            assert arguments[0] in targets, line
        else:
            assert arguments[0] in main.commands, line
            command = main.commands[arguments[0]]
            # below the program, as it is run: a command keeps its help option, which is named by the program
            above = click.Context(main, **main.context_settings)
            context = click.Context(command, parent=above, resilient_parsing=True)
            command.make_parser(context).parse_args(arguments[1:])


def test_a_document_that_names_what_is_not_there_is_seen(tmp_path: Path) -> None:
    """The checks themselves."""
    page = tmp_path / "page.md"
    page.write_text("See [x](gone.md) and `kernels/maxsim/gone.py`; run `make gone` and `python -m maxsim.gone`.\n")
    for check in (
        test_every_path_a_document_names_is_there,
        test_every_link_leads_somewhere,
        test_every_module_a_document_runs_is_there,
        test_every_command_a_document_shows_is_understood,
    ):
        with pytest.raises(AssertionError):
            check(page)


def test_understanding_a_command_leaves_its_help_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never ran, so that it has not named its help option yet: the page of commands shows that name."""
    command = click.Command("plan")
    monkeypatch.setitem(main.commands, "plan", command)
    page = tmp_path / "page.md"
    page.write_text("Run `maxsim-bench plan`.\n")
    test_every_command_a_document_shows_is_understood(page)
    context = click.Context(command, parent=click.Context(main, **main.context_settings))
    assert "-h, --help" in command.get_help(context)


def _training() -> dict[str, Any]:
    Q, D = torch.randn(3, 5, 8, requires_grad=True), torch.randn(3, 7, 8, requires_grad=True)
    import maxsim

    return {"torch": torch, "maxsim": maxsim, "Q": Q, "D": D, "target": torch.arange(3)}


def _quantised() -> dict[str, Any]:
    embeddings = torch.randn(20, 7, 8)
    return {
        "embeddings": embeddings,
        "lengths": torch.full((20,), 6),
        "queries": torch.randn(2, 5, 8),
        "blocks": [([str(i) for i in range(20)], embeddings)],
    }


def _bundle() -> dict[str, Any]:
    Path("bundle").mkdir()
    return {"texts": ["a", "b"], "ids": ["1", "2"], "model": lambda text: torch.randn(3, 8).numpy()}


@pytest.mark.parametrize(
    ("name", "given"),
    [("README.md", dict), ("docs/training.md", _training), ("docs/int8.md", _quantised), ("docs/encoders.md", _bundle)],
)
def test_the_python_that_a_document_shows_runs(
    name: str, given: Callable[[], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / name, "python")
    exec(compile(code, name, "exec"), given())


def test_no_document_shows_python_that_is_not_run() -> None:
    shown = {d.relative_to(ROOT).as_posix() for d in DOCUMENTS if blocks(d, "python")}
    assert shown == {"README.md", "docs/training.md", "docs/int8.md", "docs/encoders.md"}
