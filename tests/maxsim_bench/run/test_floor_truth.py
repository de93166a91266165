"""A backend that scores nothing is checked for what it says it gives: the sums of all that it was given, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from maxsim_bench.backends import registry
from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.backends.floor import Read
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.run import floor_truth
from maxsim_bench.run.check import ResultError
from maxsim_bench.run.floor_truth import NothingTruth, SumsTruth
from maxsim_bench.run.protocol import CellRequest
from maxsim_bench.run.session import CellSession
from maxsim_bench.run.truth import ScoreTruth, truths_of

REFERENCE = registry.get("reference")
QUICK = TimingBudget(seconds=0.02, min_samples=8, max_samples=60, warmup_seconds=0.01, check_seconds=0.005)
BLOCK = 64  # words


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell(variant="against=floor", dtype="fp16")


def blocks(inputs: Inputs) -> torch.Tensor:
    """[N] float64: the sum of every block of words of Q, then of D."""
    parts = [part for x in (inputs.Q, inputs.D) for part in x.reshape(-1).view(torch.int32).split(BLOCK)]
    return torch.stack([part.sum() for part in parts]).double()


def test_a_block_left_out_read_twice_or_never_written_shows(cell: Cell) -> None:
    inputs = make_inputs(cell, "cpu")
    truth, sums = SumsTruth(cell, inputs, REFERENCE), blocks(inputs)
    assert truth.judge(sums, 0.0).wrong is None
    assert truth.judge(sums.flip(0), 0.0).errors.exact
    for i in range(len(sums)):
        assert "did not read what it was given" in str(truth.judge(sums[torch.arange(len(sums)) != i], 1.0).wrong)
    assert "once" in str(truth.judge(torch.cat([sums, sums[3:4]]), 1.0).wrong)
    for never in (float("nan"), float("inf"), 0.5, 2.0**60):
        sums[2] = never
        assert "never written" in str(truth.judge(sums, 1.0).wrong)


def test_sums_wrap_as_words_do(cell: Cell) -> None:
    inputs = make_inputs(cell, "cpu")
    sums = blocks(inputs)
    wrapped = (sums + 2**31) % 2**32 - 2**31
    assert SumsTruth(cell, inputs, REFERENCE).judge(wrapped, 0.0).wrong is None


def test_sums_are_added_up_exactly_where_float64_would_round(cell: Cell) -> None:
    inputs = make_inputs(cell, "cpu")
    large = torch.tensor([2.0**53, 2.0**53, 1.0, 2.0**32 - 1], dtype=torch.float64)  # 0 modulo 2^32
    truth, sums = SumsTruth(cell, inputs, REFERENCE), torch.cat([large, blocks(inputs)])
    assert truth.judge(sums, 0.0).wrong is None
    sums[2] += 1
    assert "did not read what it was given" in str(truth.judge(sums, 0.0).wrong)


def test_operands_are_widened_a_piece_at_a_time(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch copies what it adds to int64: of a corpus that fills half a card there would be no room for that."""
    inputs, added = make_inputs(cell, "cpu"), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name().startswith("aten::sum"):
                added.append(args[0].numel())
            return func(*args, **(kwargs or {}))

    whole = SumsTruth(cell, inputs, REFERENCE).total
    monkeypatch.setattr(floor_truth, "_PIECE", 100)
    with Watch():
        assert SumsTruth(cell, inputs, REFERENCE).total == whole
    assert max(added) == 100
    assert sum(added) == (inputs.Q.nbytes + inputs.D.nbytes) // 4


def test_scores_and_single_precision_are_no_sums_of_words(cell: Cell) -> None:
    truth = SumsTruth(cell, make_inputs(cell, "cpu"), REFERENCE)
    for output, told in ((torch.zeros(1, 20, dtype=torch.float64), r"\[1, 20\]"), (torch.zeros(3), "float32")):
        with pytest.raises(ResultError, match=told):
            truth.judge(output, 1.0)
    with pytest.raises(ResultError, match="2 tensors"):
        truth.judge((torch.zeros(3), torch.zeros(3)), 1.0)


def test_an_empty_launch_gives_nothing(cell: Cell) -> None:
    truth = NothingTruth(cell, make_inputs(cell, "cpu"), REFERENCE)
    assert truth.judge(torch.empty(0), 0.0).wrong is None
    with pytest.raises(ResultError, match="returns 1 numbers"):
        truth.judge(torch.zeros(1), 0.0)


def test_each_is_judged_by_what_it_gives_and_one_truth_serves_all_of_a_kind(cell: Cell) -> None:
    named = {
        name: registry.get(name) for name in ("fused", "eager", "read_streaming", "read_persistent", "empty_launch")
    }
    truths = truths_of(cell, make_inputs(cell, "cpu"), REFERENCE, named)
    assert truths["fused"] is truths["eager"]
    assert truths["read_streaming"] is truths["read_persistent"]
    kinds = [type(truths[name]) for name in ("fused", "read_streaming", "empty_launch")]
    assert kinds == [ScoreTruth, SumsTruth, NothingTruth]


def test_a_backend_that_gives_what_nobody_can_judge_is_refused(cell: Cell) -> None:
    odd: Backend = Read("odd", "streaming", gives="applause")
    with pytest.raises(KeyError, match="applause"):
        truths_of(cell, make_inputs(cell, "cpu"), REFERENCE, {"odd": odd})


@dataclass(frozen=True)
class Skips(Read):
    """Leaves one block of the documents out."""

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        return lambda: torch.cat([blocks(inputs)[:5], blocks(inputs)[6:]])


@dataclass(frozen=True)
class Remembers(Read):
    """Reads once and hands the same sums out ever after."""

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        sums = blocks(inputs)
        return lambda: sums


def test_in_a_run_a_reader_that_cheats_gets_no_time_and_the_others_theirs(cell: Cell) -> None:
    def resolve(name: str) -> Any:
        return {"skips": Skips("skips", "streaming"), "remembers": Remembers("remembers", "streaming")}.get(
            name
        ) or registry.get(name)

    names = ("fused", "read_streaming", "read_persistent", "empty_launch", "skips", "remembers")
    request = CellRequest(cell, names, dict.fromkeys(names, "1"), "fused", budget=QUICK, ceilings=None)
    rows = {row.backend: row for row in CellSession("cpu", resolve).measure(request, lambda step: None).rows}
    assert {name: row.status for name, row in rows.items()} == {
        "fused": "ok", "read_streaming": "ok", "read_persistent": "ok", "empty_launch": "ok",
        "skips": "incorrect", "remembers": "incorrect",
    }  # fmt: skip
    assert "did not read what it was given" in str(rows["skips"].error)
    assert "stale answer" in str(rows["remembers"].error)
    assert rows["skips"].latency_ms is None
    assert rows["read_streaming"].flops == 0.0
    assert rows["read_streaming"].bytes_min == (8 + 20 * 12) * 16 * 2
    assert rows["read_persistent"].speedup_baseline == "fused"
