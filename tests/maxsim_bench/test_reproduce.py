"""Reproduce says what it will do, does it in order, and its exit code says whether everything was as declared."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxsim_bench import reproduce as reproduce_module
from maxsim_bench.backends import registry
from maxsim_bench.catalogue import experiments
from maxsim_bench.cli import main
from maxsim_bench.declare.experiment import DeclarationError
from maxsim_bench.declare.load import load
from maxsim_bench.machine import Machine
from maxsim_bench.record.files import HeldError, StoreError
from maxsim_bench.record.store import Store
from maxsim_bench.reporting import Places
from maxsim_bench.reproduce import FIDELITY_SECONDS, Step, announcement, reproduce, steps
from maxsim_bench.run.lock import DeviceBusyError
from maxsim_bench.training_curve import PROFILES, Curve

ROOT = Path(__file__).parents[2]
PLACES = Places(ROOT / "experiments", ROOT / "results", ROOT / "figures", ROOT / "README.md")
CPU = Machine("cpu", "cpu", "a processor", 8 * 10**9, 2)
H200 = Machine("cuda", "h200", "NVIDIA H200", 150 * 10**9, 16)


@pytest.fixture(scope="module")
def on_a_card() -> list[Step]:
    """The whole plan on an H200, expanded once for all tests here."""
    return steps(H200, PLACES)


def test_without_a_gpu_the_smoke_grid_the_interpreter_rankings_and_the_report_take_under_ten_minutes() -> None:
    planned = steps(CPU, PLACES)
    titles = [step.title.split(":")[0] for step in planned]
    assert {"smoke (smoke)", "nDCG@10 on real text (apidocs)"} <= set(titles)
    assert titles[-2:] == [
        "fused kernel under the Triton interpreter (correctness only)",
        "tables, figures, verdicts and the page",
    ]
    assert sum(step.seconds for step in planned) < 600


def test_with_a_gpu_the_full_grids_run_and_nothing_is_interpreted(on_a_card: list[Step]) -> None:
    titles = [step.title for step in on_a_card]
    assert any(title.startswith("forward (full): ") for title in titles)
    assert not any("interpreter" in title for title in titles)
    assert titles[-1] == "tables, figures, verdicts and the page"


@pytest.mark.parametrize(
    ("element", "begin"),
    [
        ("tab:fwd", ["compile_audit ", "forward "]),
        ("fig:scaling", ["memory_scaling "]),
        ("lengths", ["lengths "]),
        ("fig:training_parity", ["training_curve (paper): 3 training runs"]),
        ("training_curve", ["training_curve (paper): 3 training runs"]),
        ("tab:beir_ndcg", ["nDCG@10 on real text (apidocs, scifact, "]),
        (
            "abstract (v2)",  # what no experiment names and other elements' rows judge
            ["nDCG@10 on real text ", "forward ", "frontier_chunked ", "memory_audit ", "training_step "],
        ),
    ],
)
def test_an_element_keeps_what_answers_it_and_the_report(element: str, begin: list[str]) -> None:
    *measured, last = (step.title for step in steps(H200, PLACES, element))
    assert [title[: len(b)] for title, b in zip(measured, begin, strict=True)] == begin
    assert last == "tables, figures, verdicts and the page"


def test_an_element_without_a_cell_for_this_machine_says_so_instead_of_measuring_nothing_in_silence() -> None:
    nothing, last = steps(CPU, PLACES, "tab:varlen")
    assert nothing.title == (
        "varlen (smoke): nothing to measure, no cell is declared for cpu; there are cells for h200, a100-80gb"
    )
    assert announcement(CPU, [nothing, last])[1] == f"  1. {nothing.title}"
    assert nothing.run(print)
    assert all("nothing to measure" not in step.title for step in steps(CPU, PLACES)), "nobody asked for these"


def test_the_loss_curves_are_trained_small_without_a_gpu_into_this_machines_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(ROOT / "experiments", tmp_path, tmp_path, tmp_path / "README.md")
    curves, _ = steps(CPU, places, "fig:training_parity")
    monkeypatch.setitem(PROFILES, "smoke", Curve(batch=4, length=8, d=16, dtype="fp32", steps=2))
    said: list[str] = []
    assert (curves.title, curves.run(said.append)) == ("training_curve (smoke): 3 training runs", True)
    assert said[-1] == f"3 rows in {places.local / 'training_curve.csv'}"
    store = Store(places.local / "training_curve.csv")
    store.replace([row.model_copy(update={"environment_id": "elsewhere"}) for row in store.rows()])
    assert not curves.run(said.append)
    assert "was measured in environment elsewhere" in said[-1]
    assert "training_curve" in " ".join(step.title for step in steps(H200, PLACES))


def test_an_element_that_nothing_answers_is_refused_with_a_suggestion() -> None:
    with pytest.raises(DeclarationError, match=r"--element tab:fdw: nothing answers it\. Did you mean .tab:fwd.\?"):
        steps(H200, PLACES, "tab:fdw")


def test_every_element_of_the_paper_is_planned_for_or_says_why_not(on_a_card: list[Step]) -> None:
    """On a card: by experiments that the plan without an element has, all of them."""
    whole = " ".join(step.title for step in on_a_card)
    declared = experiments(PLACES.experiments)
    rankings = next(e for e in declared if e.op == "fidelity")  # its step is named otherwise, and is there
    assert "nDCG@10 on real text" in whole
    elements = tomllib.loads((PLACES.experiments / "paper" / "elements.toml").read_text("utf-8"))
    planned, refused = {}, {}
    for element in elements:
        try:
            planned[element] = reproduce_module._judges(element, declared, PLACES) - {rankings.name}
        except DeclarationError as error:
            refused[element] = str(error)
    assert [name for name in set().union(*planned.values()) if f"{name} (" not in whole] == []
    assert [e for e, names in planned.items() if not names and e not in rankings.elements] == []
    missing = {element for element, about in elements.items() if about.get("missing")} - planned.keys()
    assert {element for element, told in refused.items() if "not measured, because " in told} == missing
    why = re.compile(r"not measured, because |numbers follow from sizes alone|authors replaced every number of it")
    assert [told for told in refused.values() if not why.search(told)] == []


@pytest.mark.parametrize(
    ("element", "told"),
    [
        ("sec:background", "its numbers follow from sizes alone. See `maxsim-bench claims --element sec:background`."),
        ("tab:train (v1)", "its authors replaced every number of it. See `maxsim-bench claims --element 'tab:train "),
    ],
)
def test_an_element_without_anything_to_measure_is_refused_with_what_shows_it(element: str, told: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(f"--element {element}: nothing is measured for it: {told}")):
        steps(H200, PLACES, element)


def test_rankings_are_announced_by_the_collections_that_are_encoded(on_a_card: list[Step]) -> None:
    """Four levels of one data set are four, and so is one data set under four encoders."""
    rankings = next(step for step in on_a_card if step.title.startswith("nDCG@10 on real text"))
    grid = load(ROOT / "experiments" / "fidelity.toml", registry.backends()).plan("h200", "full").planned
    collections = {(p.cell.dataset, p.cell.split, p.cell.encoder) for p in grid}
    assert len(collections) > len({p.cell.dataset for p in grid})
    assert rankings.seconds == len(collections) * FIDELITY_SECONDS


def test_an_element_that_cannot_be_measured_is_refused_with_its_reason() -> None:
    with pytest.raises(
        DeclarationError, match=r"--element tab:batchquality: not measured, because the encoder's weights"
    ):
        steps(H200, PLACES, "tab:batchquality")


def test_the_announcement_names_steps_time_and_disk() -> None:
    planned = [Step("one", 60, 1e6, lambda _: True), Step("two", 300, 2e9, lambda _: True)]
    assert announcement(CPU, planned) == [
        "on a processor (cpu, 2 processors):",
        "  1. one, about 60 s",
        "  2. two, about 5 min",
        "together about 6 min and 2 GB of disk; what is finished is not done again",
    ]


def test_steps_run_in_order_and_those_not_as_declared_are_named() -> None:
    said: list[str] = []

    def good(say: object) -> bool:
        assert callable(say)
        say("fine")
        return True

    assert reproduce([Step("bad", 1, 0, lambda _: False), Step("good", 1, 0, good)], said.append) == [
        "not as declared: bad"
    ]
    assert said == ["1/2 bad", "2/2 good", "  fine"]


def smoke(places: Places) -> Step:
    """The smoke grid of a processor, into this machine's rows."""
    return next(step for step in steps(CPU, places) if step.title.startswith("smoke "))


def elsewhere(lock: str) -> subprocess.Popen[str]:
    """Another process that holds a lock until it is ended."""
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{lock}:\n    print('held', flush=True)\n    input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_step_whose_rows_another_process_writes_is_not_done_and_the_others_are(tmp_path: Path) -> None:
    places = Places(ROOT / "experiments", tmp_path, tmp_path, tmp_path / "README.md")
    store = places.local / "smoke.csv"
    done: list[str] = []
    said: list[str] = []

    def after(_: object) -> bool:
        done.append("after")
        return True

    held = smoke(places)
    holder = elsewhere(f"from maxsim_bench.record.store import Store\nwith Store({str(store)!r}).lock()")
    try:
        (told,) = reproduce([held, Step("after", 1, 0, after)], said.append)
    finally:
        holder.communicate("\n")
    why = re.escape(f"{store} is being written by process {holder.pid} on ") + r".*\. Wait for it, or stop it\."
    assert re.fullmatch(re.escape(f"not done: {held.title}. ") + why + r" Then run the same command again\.", told)
    assert re.fullmatch(f"  not done: {why}", said[1]), said
    assert (said[0], said[2:], done) == (f"1/2 {held.title}", ["2/2 after"], ["after"])
    assert Store(store).rows() == []


def test_a_step_whose_device_another_process_measures_on_is_not_done_and_the_others_are() -> None:
    def busy(_: object) -> bool:
        raise DeviceBusyError("a card is being measured on by process 7. Wait for it, or stop it.")

    said: list[str] = []
    assert reproduce([Step("one", 1, 0, busy), Step("two", 1, 0, lambda _: True)], said.append) == [
        "not done: one. a card is being measured on by process 7. Wait for it, or stop it. Then run the same command "
        "again."
    ]
    assert said[2:] == ["2/2 two"]


def test_what_no_waiting_helps_against_ends_it_at_once() -> None:
    """A full disk or a damaged file would be met by the next step, too."""

    def full(_: object) -> bool:
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        reproduce([Step("one", 1, 0, full), Step("two", 1, 0, lambda _: pytest.fail("went on"))], lambda _: None)


def test_the_command_names_a_step_that_was_not_done_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(_: object) -> bool:
        raise HeldError("x.csv is being written by process 7. Wait for it, or stop it.")

    monkeypatch.setattr("maxsim_bench.machine.this_machine", lambda: CPU)
    monkeypatch.setattr("maxsim_bench.reproduce.steps", lambda *_: [Step("one", 5, 1e6, held)])
    done = CliRunner().invoke(main, ["reproduce"])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("not done: one. x.csv is being written by process 7. ")


def test_the_command_announces_before_it_does_anything_and_tells_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("maxsim_bench.machine.this_machine", lambda: CPU)
    monkeypatch.setattr("maxsim_bench.reproduce.steps", lambda *_: [Step("one", 5, 1e6, lambda _: False)])
    dry = CliRunner().invoke(main, ["reproduce", "--dry-run"])
    head = "on a processor (cpu, 2 processors):\n  1. one, about 5 s\n"
    total = "together about 5 s and 1 MB of disk; what is finished is not done again\n"
    assert (dry.exit_code, dry.output) == (0, head + total)
    done = CliRunner().invoke(main, ["reproduce"])
    assert (done.exit_code, done.output) == (1, head + total + "1/1 one\nnot as declared: one\n")
