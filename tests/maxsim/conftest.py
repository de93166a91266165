"""Every way of scoring this machine can run, behind one signature, so that a case is written once and holds for all.

The portable kernel also runs in Triton's interpreter. That is chosen when triton is imported, so it lives in a worker
process of its own and the other tests keep the compiler.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import maxsim
from maxsim import baselines, fused

PATHS = ("reference", "torch", "eager", "chunked", "interpreted", "portable", "chosen")
GPU_PATHS = ("portable", "chosen")


@dataclass(frozen=True)
class Scorer:
    """One way of scoring; called like `maxsim.maxsim`.

    Attributes:
        name: of the path.
        device: where it runs; tensors given to it are moved there, views keeping their strides.
        fused: whether SEMANTICS promises its bits, and not only its values.
        call: the implementation.
    """

    name: str
    device: str
    fused: bool
    call: Callable[..., Any]

    def __call__(self, Q: Any, D: Any, **options: Any) -> Tensor:
        """Scores on the CPU."""
        moved = {key: self.move(value) for key, value in options.items()}
        return self.call(self.move(Q), self.move(D), **moved).cpu()

    def argmax(self, Q: Any, D: Any, **options: Any) -> Tensor:
        """int32 winning positions on the CPU; skips where the path records none."""
        if self.name in ("eager", "chunked"):
            pytest.skip("baselines do not say which token won")
        moved = {key: self.move(value) for key, value in options.items()}
        return self.call(self.move(Q), self.move(D), argmax=True, **moved)[1].cpu()

    def move(self, value: Any) -> Any:
        """`value` on the scorer's device; a view stays the same view of a moved storage."""
        if not isinstance(value, Tensor) or self.device == "cpu":
            return value
        if value.is_contiguous():
            return value.to(self.device)
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        return whole.to(self.device).as_strided(value.shape, value.stride(), value.storage_offset())


def _operator(path: str | None) -> Callable[..., Any]:
    def call(Q: Any, D: Any, *, argmax: bool = False, **options: Any) -> Any:
        return (maxsim.maxsim_argmax if argmax else maxsim.maxsim)(Q, D, path=path, **options)

    return call


def _baseline(function: Callable[..., Tensor], **fixed: Any) -> Callable[..., Tensor]:
    def call(Q: Any, D: Any, *, pairing: str = "all", **options: Any) -> Tensor:
        if pairing != "all":
            pytest.skip("baselines score every query with every document")
        precision = options.pop("precision", "ieee")
        given = {role: {k[2:]: v for k, v in options.items() if k.startswith(f"{role}_")} for role in "qd"}
        q, d = maxsim.tokens(Q, **given["q"], role="Q"), maxsim.tokens(D, **given["d"])
        (x, _), (y, _) = q.padded(), d.padded()
        scores = function(x, y, d.row_lengths(), q.row_lengths(), tf32=precision == "tf32", **fixed)
        single = isinstance(Q, Tensor) and Q.ndim == 2 and "cu_seqlens" not in given["q"]
        return scores.squeeze(0) if single else scores

    return call


@pytest.fixture(scope="session")
def interpreter(can_interpret: None) -> Iterator[ProcessPoolExecutor]:
    """A process in which `path="portable"` is simulated on the CPU. In this process kernels stay what is compiled."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(torch.set_num_threads, 1).result()  # starts it
        yield pool


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.gpu] if name in GPU_PATHS else []) for name in PATHS])
def score(request: pytest.FixtureRequest) -> Scorer:
    """Every scorer in turn; a test that takes this fixture holds for all of them."""
    name = request.param
    if name == "interpreted":
        pool: ProcessPoolExecutor = request.getfixturevalue("interpreter")

        def call(Q: Any, D: Any, *, argmax: bool = False, **options: Any) -> Any:
            function = maxsim.maxsim_argmax if argmax else maxsim.maxsim
            return pool.submit(function, Q, D, path="portable", **options).result(timeout=240)

        return Scorer(name, "cpu", True, call)
    if name == "eager":
        return Scorer(name, "cpu", False, _baseline(baselines.eager))
    if name == "chunked":
        return Scorer(name, "cpu", False, _baseline(baselines.chunked, chunk=2))
    if name in GPU_PATHS:
        return Scorer(name, "cuda", True, _operator(None if name == "chosen" else name))
    return Scorer(name, "cpu", False, _operator(name))


@pytest.fixture
def fused_score(score: Scorer) -> Scorer:
    """The scorers whose bits are promised."""
    if not score.fused:
        pytest.skip(f"{score.name} is only held to values")
    return score


@pytest.fixture
def simulate(interpreter: ProcessPoolExecutor) -> Callable[..., Any]:
    """`fused.forward` in the interpreter."""
    return lambda *args, **options: interpreter.submit(fused.forward, *args, **options).result(timeout=240)
