"""`torch.compile` around the operator: no graph break, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maxsim
from maxsim.training import maxsim_autograd
from maxsim.training.autograd import SAVES


@pytest.mark.parametrize("save", ["argmax", "recompute"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_compiled_loss_has_one_graph_and_the_gradients_of_the_uncompiled_one(save, ragged):
    lengths = torch.tensor([9, 0, 4, 7], dtype=torch.int32) if ragged else None

    def loss(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
        d = maxsim.TokenBatch(D.reshape(-1, 8), count=4, pitch=9, max_length=9, lengths=lengths, dense_shape=(4, 9))
        scores = maxsim_autograd(maxsim.tokens(Q), d, save=save)
        return torch.nn.functional.softplus(scores).sum()

    Q, D = torch.randn(3, 5, 8, requires_grad=True), torch.randn(4, 9, 8, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for x, y in zip(torch.autograd.grad(compiled(Q, D), (Q, D)), torch.autograd.grad(loss(Q, D), (Q, D)), strict=True):
        assert torch.equal(x, y)


def test_only_the_documents_can_be_trained_under_the_compiler():
    Q, D = torch.randn(3, 5, 8), torch.randn(4, 9, 8, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: maxsim.maxsim(Q, D).sum(), backend="aot_eager")
    (dd,) = torch.autograd.grad(compiled(), D)
    (expected,) = torch.autograd.grad(maxsim.maxsim(Q, D).sum(), D)
    assert torch.equal(dd, expected)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_compiled_loss_on_the_reference_knows_that_its_scores_are_float64(dtype, save):
    def loss(Q: torch.Tensor, D: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        scores = maxsim_autograd(maxsim.tokens(Q), maxsim.tokens(D), path="reference", save=save)
        # a cast to the dtype that the compiler believes in is left out of the graph
        return torch.nn.functional.softplus(scores.float()).sum(), scores.dtype

    Q, D = (torch.randn(n, 5, 8).to(dtype).requires_grad_() for n in (3, 4))
    torch._dynamo.reset()
    (got, wide), (wanted, _) = torch.compile(loss, backend="aot_eager", fullgraph=True)(Q, D), loss(Q, D)
    assert wide == torch.float64
    assert got.dtype == torch.float32
    assert torch.equal(got, wanted)
    gradients = (torch.autograd.grad(x, (Q, D)) for x in (got, wanted))
    assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("path", ["", "torch", "reference"])
@pytest.mark.parametrize(
    ("dtype", "pairing", "ragged"),
    [
        (torch.float32, "all", False),
        (torch.float32, "all", True),
        (torch.float32, "pairs", False),
        (torch.float32, "candidates", True),
        (torch.bfloat16, "all", False),
        (torch.float64, "all", False),
        (torch.float64, "candidates", False),
    ],
)
def test_the_custom_ops_pass_the_checks_of_torch_library(dtype, pairing, ragged, path, save):
    from maxsim.training import compiled

    count = 2 if pairing == "pairs" else 4
    shape = {"all": [2, 4], "pairs": [2], "candidates": [2, 2]}[pairing]
    q, d = (torch.randn(rows, 8).to(dtype).requires_grad_() for rows in (6, 5 * count))
    lengths = torch.tensor([5, 0, 3, 1], dtype=torch.int32) if ragged else None
    sides = (q, None, None, [2, 3, 3, -1, 2, 3], d, None, lengths, [count, 5, 5, -1, count, 5])
    choices = f"{pairing},ieee,{path},torch,{save}"
    torch.library.opcheck(compiled._scores, (*sides, shape, choices))
    plain: list[Any] = [x.detach() if isinstance(x, torch.Tensor) else x for x in sides]
    scores, winner = compiled._scores(*plain, shape, choices)
    for query, document in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(compiled._gradients, (torch.randn_like(scores), winner, *plain, choices, query, document))
