"""Variants of the paper's ablations: roundings of inputs, casts inside a call, a peer held to one of its kernels."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from maxsim_bench.backends import flash_maxsim as adapter
from maxsim_bench.backends import registry
from maxsim_bench.backends.inputs import InputError, make_inputs
from maxsim_bench.backends.training_peers import _by
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.truth import truth_of

ROUNDED = "query_lengths=half;reference=unrounded"


def cell(**changes: object) -> Cell:
    usual: dict[str, object] = {
        "experiment": "t", "gpu": "cpu", "op": "forward", "Nq": 4, "B": 4, "Lq": 8, "Ld": 24, "d": 16, "dtype": "fp16",
        "layout": "masked", "length_distribution": "uniform:12:24", "pairing": "all", "variant": ROUNDED,
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_unrounded_inputs_are_kept_and_round_to_what_backends_get(dtype: str) -> None:
    inputs = make_inputs(cell(dtype=dtype), "cpu")
    assert inputs.exact is not None
    for given, exact in zip((inputs.Q, inputs.D), inputs.exact, strict=True):
        assert exact.dtype == torch.float32
        assert torch.equal(exact.to(given.dtype), given)
        assert not torch.equal(exact, given.float())
    assert all(t is not e for t in inputs.tensors() for e in inputs.exact)


def test_half_the_query_at_least_is_valid_and_its_padding_is_garbage() -> None:
    inputs = make_inputs(cell(Nq=50), "cpu")
    assert inputs.q_lengths is not None
    assert 4 <= int(inputs.q_lengths.min()) < int(inputs.q_lengths.max()) <= 8
    assert (inputs.Q[torch.arange(8) >= inputs.q_lengths[:, None]] == 9.0).all()
    with pytest.raises(InputError, match="query_lengths=third: only 'half'"):
        make_inputs(cell(variant="query_lengths=third"), "cpu")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["eager_pylate", "fused"])
def test_rounding_the_inputs_is_an_error_that_is_measured_and_admitted(name: str, dtype: str) -> None:
    c = cell(dtype=dtype)
    backend, inputs = registry.get(name), make_inputs(c, "cpu")
    assert backend.supports(c, "cpu") is None
    verdict = truth_of(c, inputs, registry.get("reference")).judge(backend.prepare(c, inputs)(), backend.tolerance(c))
    assert verdict.wrong is None
    assert verdict.errors.max_rel > {"fp16": 1e-5, "bf16": 1e-4}[dtype]


def test_pylates_masks_are_refused_where_a_padded_zero_could_win() -> None:
    assert "negative" in str(registry.get("eager_pylate").supports(cell(variant=None), "cpu"))


def test_a_cast_inside_the_call_gives_what_one_before_it_gives() -> None:
    c = cell(layout="dense", length_distribution=None, variant=None)
    inputs = make_inputs(c, "cpu")
    inside, before = (registry.get(n).prepare(c, inputs)() for n in ("eager_tf32_cast", "eager_tf32"))
    assert isinstance(inside, torch.Tensor)
    assert isinstance(before, torch.Tensor)
    assert torch.equal(inside, before)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for flash-maxsim that notes how it is called; the real one needs a GPU."""
    calls: list[tuple[int | None, int]] = []
    module, splitd = ModuleType("flash_maxsim"), ModuleType("flash_maxsim.flash_maxsim_splitd")
    splitd._SPLITD_THRESH = 512  # type: ignore[attr-defined]

    def flash_maxsim(q: torch.Tensor, D: torch.Tensor, lengths: object, query_chunk_size: int | None) -> torch.Tensor:
        calls.append((query_chunk_size, splitd._SPLITD_THRESH))
        return torch.zeros(D.shape[0])

    module.flash_maxsim = flash_maxsim  # type: ignore[attr-defined]
    module.flash_maxsim_splitd = splitd  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_maxsim", module)
    monkeypatch.setitem(sys.modules, "flash_maxsim.flash_maxsim_splitd", splitd)
    return SimpleNamespace(calls=calls, splitd=splitd)


@pytest.mark.parametrize(
    ("variant", "seen"),
    [(None, (128, 512)), ("query_chunk=64", (64, 512)), ("query_chunk=off", (None, 512)),
     ("kernel=split_d", (128, 0)), ("kernel=one_shot", (128, 1 << 30))],
)  # fmt: skip
def test_flash_maxsim_is_called_as_the_variant_says_and_left_as_it_was(
    package: SimpleNamespace, variant: str | None, seen: tuple[int | None, int]
) -> None:
    c = cell(Nq=1, layout="dense", length_distribution=None, variant=variant)
    adapter.FlashMaxSim().prepare(c, make_inputs(c, "cpu"))()
    assert package.calls == [seen]
    assert package.splitd._SPLITD_THRESH == 512


def test_a_backward_path_is_named_in_the_environment_for_the_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASH_BWD_PATH", raising=False)
    assert _by("invgrid", lambda: os.environ["FLASH_BWD_PATH"]) == "invgrid"
    assert "FLASH_BWD_PATH" not in os.environ
    monkeypatch.setenv("FLASH_BWD_PATH", "sparse")
    with pytest.raises(ZeroDivisionError):
        _by("atomic", lambda: 1 // 0)
    assert os.environ["FLASH_BWD_PATH"] == "sparse"
