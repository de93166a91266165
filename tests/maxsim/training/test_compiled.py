"""`torch.compile` around the operator: no graph break, the same bits."""

from __future__ import annotations

import pytest
import torch

import maxsim
from maxsim.training import maxsim_autograd


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


def test_the_custom_ops_pass_the_checks_of_torch_library():
    from maxsim.training import compiled

    q, d = torch.randn(6, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    sizes = ([2, 3, 3, -1, 2, 3], [4, 5, 5, -1, 4, 5])
    arguments = (q, None, None, sizes[0], d, None, None, sizes[1], [2, 4], "all,ieee,,torch,argmax")
    torch.library.opcheck(compiled._scores, arguments)
