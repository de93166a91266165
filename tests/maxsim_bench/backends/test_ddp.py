"""Steps over several ranks: two processes over gloo give what one process gives over everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from maxsim_bench.backends import ddp_ranks, registry
from maxsim_bench.backends.ddp import STEPS, reference_rank_0
from maxsim_bench.backends.ddp_ranks import RankError, ranks_for
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare.cell import Cell

NAMES = ("ddp_conventional", "ddp_tiled", "ddp_sharded")


def cell(**changes: object) -> Cell:
    usual: dict[str, object] = {
        "experiment": "t", "gpu": "cpu", "op": "training_step", "Nq": 3, "B": 6, "Lq": 5, "Ld": 12, "d": 16,
        "dtype": "fp32", "layout": "dense", "pairing": "all", "variant": "over=ranks;tau=0.02",
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


@pytest.fixture(scope="module")
def two() -> Iterator[ddp_ranks.Ranks]:
    """One group for all tests: starting a process that imports torch takes seconds."""
    ranks = ranks_for(2, "cpu")
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("B", [3, 6])
def test_rank_0_gets_the_loss_and_gradients_of_the_whole_batch(name: str, B: int, two: ddp_ranks.Ranks) -> None:
    c = cell(B=B)
    backend, inputs = registry.get(name), make_inputs(c, "cpu")
    assert backend.supports(c, "cpu") is None
    call = backend.prepare(c, inputs)
    expected = reference_rank_0(c, inputs)()
    for _ in range(2):  # the second step computes anew from inputs left as they were
        got = call()
        assert isinstance(got, tuple)
        assert isinstance(expected, tuple)
        for g, w in zip(got, expected, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)


def test_tiles_smaller_than_the_batch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    c = cell(Nq=7, B=7)
    inputs = make_inputs(c, "cpu")
    whole = registry.get("ddp_tiled").prepare(c, inputs)()
    monkeypatch.setattr("maxsim_bench.backends.ddp_steps.TILE", 3)
    tiled = registry.get("ddp_tiled").prepare(c, inputs)()
    assert isinstance(whole, tuple)
    assert isinstance(tiled, tuple)
    for a, b in zip(whole, tiled, strict=True):
        torch.testing.assert_close(a, b)


def test_cells_that_are_not_spread_over_ranks_are_refused_and_so_are_unequal_shards() -> None:
    for name in STEPS:
        backend = registry.get(name)
        assert "over=ranks" in str(backend.supports(cell(variant=None), "cpu"))
        if name in NAMES:
            assert "cannot be dealt out" in str(backend.supports(cell(B=7), "cpu"))
    for name, backend in registry.backends().items():
        if name.startswith("train_"):
            assert backend.supports(cell(), "cuda") is not None, name


def test_more_ranks_than_gpus_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert registry.get("ddp_tiled").supports(cell(), "cuda") == "needs 2 GPUs of one host, here are 1"


@pytest.mark.slow
def test_a_step_that_fails_on_rank_0_ends_the_others_and_the_next_cell_starts_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = ranks_for(2, "cpu")
    c = cell()
    inputs = make_inputs(c, "cpu")

    def fails(*_: object) -> object:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setitem(STEPS, "ddp_tiled", fails)
    call = ranks.prepare("ddp_tiled", 0.02, inputs.Q, inputs.D)
    with pytest.raises(torch.OutOfMemoryError):
        call()
    assert not ranks.open
    with pytest.raises(RankError, match="ended after a failed step"):
        call()
    again = ranks_for(2, "cpu")
    try:
        assert again is not ranks
        result = again.prepare("ddp_conventional", 0.02, inputs.Q, inputs.D)()
        assert torch.isfinite(result[0])
    finally:
        again.close()
