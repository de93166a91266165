"""Every registered backend: names itself, refuses in words, and scores like the float64 reference where it can run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import maxsim
from maxsim.reference import float64
from maxsim_bench.backends import registry
from maxsim_bench.backends.base import Backend
from maxsim_bench.backends.fused import Fused, token_batches
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare.cell import Cell

ROOT = Path(__file__).parents[3]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = list(registry.backends().values())
CELLS = [
    Cell(experiment="t", gpu="any", op="forward", Nq=nq, B=7, Lq=9, Ld=21, d=24, dtype=dtype, layout=layout)
    for nq in (1, 3)
    for dtype in ("fp16", "bf16", "fp32")
    for layout in ("dense", "masked", "packed")
] + [
    Cell(experiment="t", gpu="any", op="forward", Nq=3, B=n, Lq=9, Ld=21, d=24, dtype="fp16", layout="dense", pairing=p)
    for p, n in (("pairs", 3), ("candidates", 4))
]


def _name(value: object) -> str:
    if isinstance(value, Cell):
        return f"{value.dtype}-{value.layout}-{value.pairing}-Nq{value.Nq}"
    return value.name if hasattr(value, "name") else str(value)


@pytest.mark.parametrize("backend", BACKENDS, ids=_name)
@pytest.mark.parametrize("cell", CELLS, ids=_name)
def test_scores_equal_the_reference_within_the_declared_tolerance(backend: Backend, cell: Cell) -> None:
    """A backend that accepts a cell computes it; one that does not says why."""
    reason = backend.supports(cell, DEVICE)
    if reason is not None:
        assert len(reason.split()) >= 3, "a refusal is a sentence"
        pytest.skip(reason)
    if "compiled" in backend.name:
        pytest.skip("compiled baselines take minutes; the forward experiment checks them before it times them")
    inputs = make_inputs(cell, DEVICE)
    q, d = token_batches(inputs)
    want, _ = float64(q, d, pairing=cell.pairing or "all")
    got = backend.prepare(cell, inputs)()
    assert isinstance(got, torch.Tensor)
    assert got.shape == want.shape
    error = ((got.double() - want).abs() / want.abs()).max().item()
    assert error <= max(backend.tolerance(cell), 1e-6)


def test_every_backend_says_in_one_line_of_its_own_what_it_is() -> None:
    """One class may be several backends. The two readers share theirs: every byte of their files is their version."""
    told = {backend.name: registry.about(backend) for backend in BACKENDS}
    readers = {told.pop("read_streaming"), told.pop("read_persistent")}
    assert len({*told.values(), *readers}) == len(told) + 1
    for line in (*told.values(), *readers):
        assert 20 <= len(line) <= 120, line
        assert not line.endswith((".", ",")), line


def test_what_a_backend_says_of_its_peer_names_the_version_that_is_installed() -> None:
    """And the depth of a rescored search is the operator's own."""
    pinned = (ROOT / "constraints.txt").read_text()
    told = [found for b in BACKENDS for found in re.findall(r"([a-z][a-z-]+) (\d+\.[\d.]*\d)", registry.about(b))]
    assert len({package for package, _ in told}) >= 2
    for package, version in told:
        assert f"\n{package}=={version}\n" in pinned, package
    rescored = registry.about(registry.get("search_int8_rescored"))
    assert f"best k · {inspect.signature(maxsim.search).parameters['depth'].default} " in rescored


@pytest.mark.parametrize("backend", BACKENDS, ids=_name)
def test_every_backend_has_a_version_and_refuses_what_it_does_not_do(backend: Backend) -> None:
    """A version identifies the rows of a backend; a training step is not a forward backend's business."""
    assert backend.version()
    assert backend.name == registry.get(backend.name).name
    accepted = [op for op in ("forward", "training_step", "search", "fidelity")
                if backend.supports(CELLS[0].model_copy(update={"op": op}), DEVICE) is None]  # fmt: skip
    assert len(accepted) < 4


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A typo costs one look, not a search."""
    with pytest.raises(registry.UnknownBackendError, match="Did you mean 'flash_maxsim'"):
        registry.get("flash_maxsin")


@pytest.mark.parametrize("cell", CELLS, ids=_name)
def test_a_fused_row_says_which_launch_was_measured(cell: Cell) -> None:
    """The column `kernel_config`: a kernel on a GPU, torch and the reason for it without one."""
    backend = registry.get("fused")
    assert isinstance(backend, Fused)
    told = backend.kernel_config(cell, make_inputs(cell, DEVICE))
    if DEVICE == "cpu":
        assert told == "torch (no fused kernel for cpu)"
    else:
        assert told.startswith(("hopper: tile", "portable: tile"))
