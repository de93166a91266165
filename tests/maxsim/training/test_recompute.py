"""Finding the argmax again in the backward pass."""

from __future__ import annotations

import pytest
import torch

import maxsim
from maxsim.training import autograd, maxsim_autograd, recompute


def grads(save: str, lengths: bool, pairing: str = "all") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    Q = torch.randn(4, 5, 8, generator=generator, requires_grad=True)
    D = torch.randn(8, 6, 8, generator=generator, requires_grad=True)
    d = maxsim.tokens(D, lengths=torch.tensor([6, 0, 3, 1, 2, 6, 5, 4]) if lengths else None)
    scores = maxsim_autograd(maxsim.tokens(Q), d, pairing=pairing, save=save)
    return list(torch.autograd.grad(scores.nan_to_num(neginf=0.0).square().sum(), (Q, D)))


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("entries", [1, 60, 1 << 20])
def test_gradients_are_those_of_the_saved_argmax_however_the_documents_are_grouped(monkeypatch, entries, lengths):
    monkeypatch.setattr(autograd, "RECOMPUTE_ENTRIES", entries)
    (dq, dd), (eq, ed) = grads("recompute", lengths), grads("argmax", lengths)
    torch.testing.assert_close(dq, eq, rtol=1e-5, atol=1e-5)  # sums of a group, then of groups
    assert torch.equal(dd, ed)


@pytest.mark.parametrize("pairing", ["candidates"])
def test_documents_of_their_own_lists_are_one_group(monkeypatch, pairing):
    monkeypatch.setattr(autograd, "RECOMPUTE_ENTRIES", 1)
    for x, e in zip(grads("recompute", False, pairing), grads("argmax", False, pairing), strict=True):
        assert torch.equal(x, e)


def test_no_more_than_the_entries_allowed_are_alive_at_a_time(monkeypatch):
    seen = []
    find = recompute._argmax
    monkeypatch.setattr(autograd, "RECOMPUTE_ENTRIES", 60)
    monkeypatch.setattr(recompute, "_argmax", lambda q, d, plan: (w := find(q, d, plan), seen.append(w.numel()))[0])
    grads("recompute", False)
    assert seen == [60, 60, 40]  # documents of 20 entries, three at a time
