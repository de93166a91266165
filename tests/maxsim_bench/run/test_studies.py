"""Studies: what a cell is asked beside its time, and the counters that one of them reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run import cell_inputs, counters
from maxsim_bench.run.counters import dram_bytes, parse
from maxsim_bench.run.studies import REPEATS, StudyError, studied
from maxsim_bench.run.tuned import Choice

EAGER = registry.get("eager")

# The raw page of ncu 2025.3 as CSV, cut to the columns that are read.
PAGE = """==PROF== Connected to process 412
==PROF== Profiling "gemm" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 412
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","byte","byte"
"0","412","gemm","1,048,576","2048"
"1","412","reduce","1000.5","24"
"""


def test_a_cell_without_a_study_has_no_figures_and_an_unknown_one_is_refused(make_cell: Callable[..., Cell]) -> None:
    assert studied(make_cell(), EAGER, lambda: None, "cpu") == {}
    with pytest.raises(StudyError, match="study=speed: not one of repeat, traffic, first_call"):
        studied(make_cell(variant="study=speed"), EAGER, lambda: None, "cpu")


def test_repeats_count_distinct_results_bit_by_bit(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(variant="study=repeat")
    same = studied(cell, EAGER, lambda: torch.ones(2, 3), "cpu")
    assert same == {"calls": REPEATS, "distinct_results": 1}
    drift = iter(range(REPEATS))
    answers = [torch.zeros(2), torch.zeros(2), torch.tensor([0.0, -0.0])]  # equal numbers, other bits
    three = studied(cell, EAGER, lambda: answers[next(drift) % 3], "cpu")
    assert three["distinct_results"] == 2


def test_traffic_is_computed_as_published_and_says_so_without_counters(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(Nq=1, B=1000, Lq=128, Ld=1024, d=128, dtype="fp16", variant="study=traffic")
    eager = studied(cell, registry.get("eager_tf32"), lambda: None, "cpu")
    ours = studied(cell, registry.get("fused"), lambda: None, "cpu")
    assert eager["hbm_gb_computed"] == pytest.approx(1.31, abs=0.005)  # tab:traffic, medium
    assert ours["hbm_gb_computed"] == pytest.approx(0.262, abs=0.0005)
    assert eager["hbm_source"] == "computed: a processor has no such counters"
    assert "hbm_gb_counted" not in eager


def test_a_raw_page_is_summed_over_its_kernels_and_its_row_of_units_is_not_one() -> None:
    assert parse(PAGE) == (1048576 + 1000.5, 2072.0)
    assert parse("==ERROR== The user does not have permission") is None
    assert parse('"ID","Kernel Name"\n"",""\n') is None


def test_what_keeps_counters_from_being_read_is_told(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "_denials", [])
    monkeypatch.setattr(counters.shutil, "which", lambda name, path=None: None)
    assert dram_bytes(make_cell(), "eager", "cuda") == ("ncu is neither on the path nor in /usr/local/cuda/bin")
    monkeypatch.setattr(counters.shutil, "which", lambda name, path=None: None if path is None else f"{path}/{name}")
    commands: list[list[str]] = []

    def output(command: list[str]) -> tuple[str, str]:
        commands.append(command)
        return "", "starting\nERR_NVGPUCTRPERM\n"

    monkeypatch.setattr(counters, "_output", output)
    assert dram_bytes(make_cell(), "eager", "cuda") == "ncu counted nothing: ERR_NVGPUCTRPERM"
    assert Cell.model_validate_json(commands[0][-3]) == make_cell()
    assert commands[0][-2] == "eager"
    assert commands[0][0] == "/usr/local/cuda/bin/ncu", "which CUDA's toolkit puts on no path"
    assert dram_bytes(make_cell(), "fused", "cuda") == "ncu counted nothing: ERR_NVGPUCTRPERM"
    assert len(commands) == 1, "who may not read counters for one backend may not for the next"
    monkeypatch.setattr(counters, "_denials", [])
    monkeypatch.setattr(counters, "_output", lambda command: (PAGE, ""))
    assert dram_bytes(make_cell(), "eager", "cuda") == parse(PAGE)
    monkeypatch.setattr(counters, "_output", lambda command: None)
    assert dram_bytes(make_cell(), "eager", "cuda") == "ncu took more than 120 s"


def test_a_profiler_that_hangs_is_ended_with_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process that is profiled holds the pipes as well as the card."""
    monkeypatch.setattr(counters, "_TIMEOUT_S", 1.0)
    child = tmp_path / "child"
    began = time.monotonic()
    assert counters._output(["sh", "-c", f"sleep 120 & echo $! > {child}; wait"]) is None
    assert time.monotonic() - began < 100  # it would last 120 s
    pid = int(child.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "change", [("dram__bytes_write", "dram__other"), ('"2048"', '"n/a"')], ids=["column", "figure"]
)
def test_a_counter_that_a_card_has_not_gives_no_sum(change: tuple[str, str]) -> None:
    assert change[0] in PAGE
    assert parse(PAGE.replace(*change)) is None


def test_the_counted_call_launches_what_this_process_tuned(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def output(command: list[str]) -> tuple[str, str]:
        told.append(Path(command[-1]).read_text())
        return PAGE, ""

    monkeypatch.setattr(counters, "_denials", [])
    monkeypatch.setattr(counters.shutil, "which", lambda name, path=None: "ncu")
    monkeypatch.setattr(counters, "_output", output)
    monkeypatch.setattr(counters.tuned, "choices", lambda: [Choice("peer", "kernel", (128, "torch.float16"), 1)])
    assert dram_bytes(make_cell(), "flash_maxsim", "cuda") == parse(PAGE)
    assert json.loads(told[0]) == [["peer", "kernel", [128, "torch.float16"], 1]]


def test_the_process_that_is_counted_takes_over_the_choices_before_its_first_call(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the first call a tuner has decided by itself."""

    class TakenOver(Exception):  # noqa: N818  # it ends the process of this test before it needs a GPU
        pass

    def choose(told: list[Choice]) -> None:
        raise TakenOver(told)

    file = tmp_path / "tuned.json"
    file.write_text(json.dumps([Choice("peer", "kernel", (128, "torch.float16"), 1)]))
    monkeypatch.setattr(counters.tuned, "choose", choose)
    monkeypatch.setattr(counters.sys, "argv", ["counters", make_cell().model_dump_json(), "eager", str(file)])
    with pytest.raises(TakenOver) as ended:
        counters.main()
    ((told,),) = ended.value.args
    assert (told.module, told.name, tuple(told.key), told.config) == ("peer", "kernel", (128, "torch.float16"), 1)


def test_a_counted_process_that_tunes_anew_counts_nothing(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would count another launch than the one that was timed."""
    told = Choice("peer", "kernel", (128, "torch.float16"), 1)
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps([told]))
    monkeypatch.setattr(counters.tuned, "choose", lambda told: None)
    monkeypatch.setattr(counters.tuned, "choices", lambda: [told, told._replace(name="another")])
    monkeypatch.setattr(counters.sys, "argv", ["counters", make_cell().model_dump_json(), "eager", str(file)])
    monkeypatch.setattr(cell_inputs, "draw_inputs", lambda cell, device, index: None)
    monkeypatch.setattr(registry, "get", lambda name: SimpleNamespace(prepare=lambda cell, inputs: lambda: None))
    with pytest.raises(SystemExit, match=r"^another: tuned anew"):
        counters.main()
