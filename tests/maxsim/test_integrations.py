"""PyLate and colpali-engine score and train through `maxsim` with the numbers they would have computed themselves.

The packages are not part of the default environment (pylate pins versions that exclude the pinned torch): run
`make test-integrations`, which gives each an environment of its own.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator

import pytest
import torch

from maxsim import integrations

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def pylate() -> Iterator[types.ModuleType]:
    """The real package, restored afterwards."""
    module = pytest.importorskip("pylate.scores", reason="pylate is not installed: make test-integrations")
    yield module
    integrations.unpatch("pylate")


@pytest.fixture
def colpali() -> Iterator[types.ModuleType]:
    """The real package's losses, restored afterwards."""
    try:
        from colpali_engine.loss import late_interaction_losses
    except (ImportError, RuntimeError) as error:  # torchvision raises RuntimeError beside a torch it was not built for
        pytest.skip(f"colpali-engine is not usable here ({error}): make test-integrations")
    yield late_interaction_losses
    integrations.unpatch("colpali_engine")


def _tokens(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return torch.nn.functional.normalize(x, dim=-1).to(DEVICE)


def test_pylate_scores_are_the_same_with_and_without_masks(pylate: types.ModuleType) -> None:
    """Masked tokens score 0 in PyLate, and still do."""
    Q, D = _tokens(3, 5, 16), _tokens(4, 7, 16)
    q_mask, d_mask = torch.ones(3, 5, device=DEVICE), torch.ones(4, 7, device=DEVICE)
    q_mask[0, 3:], d_mask[1, 2:] = 0, 0
    cases: list[Callable[[], torch.Tensor]] = [
        lambda: pylate.colbert_scores(Q, D, backend="torch"),
        lambda: pylate.colbert_scores(Q, D, q_mask, d_mask, backend="torch"),
        lambda: pylate.colbert_kd_scores(Q, D.expand(3, -1, -1, -1), q_mask, d_mask.expand(3, -1, -1), backend="torch"),
        lambda: pylate.colbert_scores_pairwise(list(Q), [d[: 3 + i] for i, d in enumerate(D[:3])], backend="torch"),
    ]  # fmt: skip
    want = [case() for case in cases]
    before = pylate.colbert_scores
    assert integrations.patch_pylate() >= 3
    assert pylate.colbert_scores is not before
    for case, expected in zip(cases, want, strict=True):
        torch.testing.assert_close(case(), expected, rtol=1e-5, atol=1e-6)
    integrations.unpatch("pylate")
    assert pylate.colbert_scores is before


def test_colpali_losses_and_gradients_are_the_same(colpali: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step through the real loss modules moves by rounding only."""
    monkeypatch.setenv("COLPALI_SCORES_BACKEND", "torch")  # its "auto" would answer in a peer's lower precision
    losses = [colpali.ColbertLoss(), colpali.ColbertPairwiseCELoss(), colpali.ColbertNegativeCELoss()]

    def step(loss: torch.nn.Module) -> list[torch.Tensor]:
        Q, D, N = (t.clone().requires_grad_() for t in (_tokens(4, 6, 16), _tokens(4, 9, 16), _tokens(4, 2, 9, 16)))
        value = loss(Q, D, N) if "Negative" in type(loss).__name__ else loss(Q, D)
        value.backward()
        return [value.detach(), *(t.grad for t in (Q, D) if t.grad is not None)]

    want = [step(loss) for loss in losses]
    assert integrations.patch_colpali_engine() >= 2
    for loss, expected in zip(losses, want, strict=True):
        for a, b in zip(step(loss), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_captures_inside_a_package_are_replaced_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss module that imported the scoring function by name is patched too; unpatching puts everything back."""

    def original(query: torch.Tensor, doc: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the original must not run while patched")

    root, home, user = (types.ModuleType(n) for n in ("fakeengine", "fakeengine.utils.maxsim", "fakeengine.loss"))
    root.__path__ = []  # type: ignore[attr-defined]
    for module in (root, home, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    home.maxsim_inbatch = user.maxsim_inbatch = original  # type: ignore[attr-defined]
    monkeypatch.setattr(integrations, "_loaded_modules", lambda package: [root, home, user])
    count = integrations._patch("fakeengine", home.__name__, {"maxsim_inbatch": integrations._colpali_scores})
    assert count == 2
    assert user.maxsim_inbatch(_tokens(1, 1, 4), _tokens(1, 1, 4)).shape == (1, 1)  # type: ignore[attr-defined]
    integrations.unpatch("fakeengine")
    assert user.maxsim_inbatch is original  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("candidates", [False, True])
def test_colpali_scores_take_its_keywords_and_have_its_dtype(candidates, dtype) -> None:
    """`maxsim_inbatch(query, doc)` and `maxsim_kd(query, doc)` of its PyTorch code, written out."""
    query = _tokens(3, 5, 16).to(dtype)
    doc = (_tokens(3, 4, 7, 16) if candidates else _tokens(4, 7, 16)).to(dtype)
    each = "bnd,bksd->bkns" if candidates else "bnd,csd->bcns"
    expected = torch.einsum(each, query, doc).amax(dim=3).sum(dim=2)
    scores = integrations._colpali_scores(query=query, doc=doc)
    tolerance = 4 * torch.finfo(dtype).eps * 5
    torch.testing.assert_close(scores, expected, rtol=tolerance, atol=tolerance)  # the dtype, too
