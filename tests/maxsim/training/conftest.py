"""What the tests of `training` share: gradients by an independent float64 route, and every backward path here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import maxsim
from maxsim import reference
from maxsim.tokens import TokenBatch
from maxsim.training.backward import gradients
from maxsim.training.geometry import as_grid, geometry

KERNELS = ("csr", "csr_sort", "onehot", "atomic")


def truth(q: TokenBatch, d: TokenBatch, g: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """dQ and dD in float64 by torch's own autograd, through the products of the reference's winners."""
    q = replace(q, values=q.values.detach().double().requires_grad_())
    d = replace(d, values=d.values.detach().double().requires_grad_())
    _, won = reference.float64(q, d, pairing=pairing)
    won = as_grid(won, 3)
    scores = torch.zeros((), dtype=torch.float64)
    for n, k, i in (won >= 0).nonzero().tolist():
        m = k if pairing == "all" else n * won.shape[1] + k
        row = int(d.row_starts()[m]) + int(won[n, k, i])
        best = q.values[int(q.row_starts()[n]) + i] @ d.values[row]
        scores = scores + best * as_grid(g, 2)[n, k].double()
    if not scores.requires_grad:
        return torch.zeros_like(q.values), torch.zeros_like(d.values)
    dq, dd = torch.autograd.grad(scores, (q.values, d.values), allow_unused=True, materialize_grads=True)
    return dq, dd


@dataclass(frozen=True)
class Backward:
    """One backward path, called with winners and upstream gradients; tensors go to its device and come back."""

    name: str
    deterministic: bool
    device: str
    call: Callable[..., Any]

    def __call__(
        self, q: TokenBatch, d: TokenBatch, g: Tensor, pairing: str = "all", won: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """dQ and dD on the CPU."""
        geo = geometry(q, d, pairing)
        if won is None:
            won = reference.float64(q, d, pairing=pairing)[1][..., : geo.Lq].to(torch.int16)
        q, d, won, g = (self._move(x) for x in (q, d, as_grid(won, 3), as_grid(g, 2)))
        dq, dd = self.call(self.name, q, d, won, g, geo, query=True, document=True)
        return dq.cpu(), dd.cpu()

    def _move(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.detach().to(self.device)
        fields = ("values", "starts", "lengths")
        return replace(x, **{f: None if getattr(x, f) is None else self._move(getattr(x, f)) for f in fields})


# Every layout, width and dtype is a kernel variant of its own, which a GPU compiles in a second or two; and a CPU adds
# up the expected gradients entry by entry. `-m "gpu and not slow"` runs these of the default path, of
# others the first.
FEW_LAYOUTS = ("lengths", "packed", "candidates", "one hub")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compiled paths on the layouts beyond a few are slow tests."""
    for item in items:
        given = getattr(item, "callspec", None)
        if given is None or not str(given.params.get("backward", "")).startswith("gpu-"):
            continue
        few = FEW_LAYOUTS if given.params["backward"] == "gpu-csr" else FEW_LAYOUTS[:1]
        if given.params.get("batches", few[0]) not in few or given.params.get("dtype") == torch.bfloat16:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def poisoned_interpreter(interpreter: ProcessPoolExecutor) -> ProcessPoolExecutor:
    """The interpreter's process, where uninitialised memory is NaN too."""
    interpreter.submit(torch.use_deterministic_algorithms, True, warn_only=True).result()
    return interpreter


@pytest.fixture(params=["torch", *(f"interpreted-{k}" for k in KERNELS)] + [
    pytest.param(f"gpu-{k}", marks=pytest.mark.gpu) for k in KERNELS
])  # fmt: skip
def backward(request: pytest.FixtureRequest) -> Backward:
    """Every backward path in turn: in torch, in Triton's interpreter, and compiled where there is a GPU."""
    where, _, name = request.param.partition("-")
    if where == "torch":
        return Backward("torch", True, "cpu", gradients)
    if where == "gpu":
        return Backward(name, name != "atomic", "cuda", gradients)
    pool: ProcessPoolExecutor = request.getfixturevalue("poisoned_interpreter")
    return Backward(name, name != "atomic", "cpu", lambda *a, **k: pool.submit(gradients, *a, **k).result(timeout=240))


@pytest.fixture
def expected() -> Callable[..., tuple[Tensor, Tensor]]:
    return truth


def random_batches(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[TokenBatch, TokenBatch, str]:
    """Queries, documents and pairing of a named layout."""
    gen = torch.Generator().manual_seed(seed)

    def x(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen).to(dtype)

    if name == "dense":
        return maxsim.tokens(x(3, 5, 24)), maxsim.tokens(x(4, 7, 24)), "all"
    if name == "lengths":
        q_lengths, d_lengths = torch.tensor([5, 0, 3]), torch.tensor([70, 0, 33, 1])
        return maxsim.tokens(x(3, 6, 17), lengths=q_lengths), maxsim.tokens(x(4, 72, 17), lengths=d_lengths), "all"
    if name == "holes":
        mask = torch.rand((4, 40), generator=gen) < 0.5
        return maxsim.tokens(x(2, 3, 8)), maxsim.tokens(x(4, 40, 8), mask=mask), "all"
    if name == "left padding":
        mask = torch.arange(9) >= torch.tensor([[0], [4], [9]])
        return maxsim.tokens(x(2, 3, 8)), maxsim.tokens(x(3, 9, 8), mask=mask), "all"
    if name == "packed":
        q = maxsim.tokens(x(9, 16), cu_seqlens=torch.tensor([0, 4, 4, 9]))
        return q, maxsim.tokens(x(60, 16), cu_seqlens=torch.tensor([0, 20, 20, 33, 60])), "all"
    if name == "candidates":
        return maxsim.tokens(x(2, 33, 8)), maxsim.tokens(x(6, 41, 8)), "candidates"
    if name == "pairs":
        return maxsim.tokens(x(4, 9, 128)), maxsim.tokens(x(4, 11, 128)), "pairs"
    if name == "pairs of one token":  # whose argmax [Nq, 1] has the sizes of a grid
        return maxsim.tokens(x(4, 1, 8)), maxsim.tokens(x(4, 11, 8)), "pairs"
    if name == "wide":
        return maxsim.tokens(x(2, 3, 700)), maxsim.tokens(x(2, 5, 700)), "all"
    if name == "few queries":  # so few that programs share the documents of a query
        return maxsim.tokens(x(1, 3, 8)), maxsim.tokens(x(70, 4, 8), lengths=torch.arange(70) % 5), "all"
    if name == "one hub":
        hub = x(2, 1, 8).expand(2, 40, 8).contiguous()
        return maxsim.tokens(x(8, 32, 8)), maxsim.tokens(hub), "all"
    raise AssertionError(name)


LAYOUTS = (
    "dense", "lengths", "holes", "left padding", "packed", "candidates", "pairs", "pairs of one token", "wide",
    "few queries", "one hub",
)  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def batches(request: pytest.FixtureRequest) -> tuple[TokenBatch, TokenBatch, str]:
    return random_batches(request.param)


@pytest.fixture
def make_batches() -> Callable[..., tuple[TokenBatch, TokenBatch, str]]:
    return random_batches
