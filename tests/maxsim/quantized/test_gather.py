"""Documents fetched for rescoring are the documents that were asked for, wherever and however they lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from maxsim import tokens
from maxsim.tokens import TokenBatch


def fetched(source: TokenBatch, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Padded documents with what lies beyond a document set to 0, and which tokens are real."""
    from maxsim.quantized.gather import gathered

    x, valid = gathered(source, numbers).padded()
    return torch.where(valid[..., None], x, 0.0).cpu(), valid.cpu()


@pytest.fixture(params=["interpreted", pytest.param("gpu", marks=pytest.mark.gpu)])
def fetch(request: pytest.FixtureRequest) -> Any:
    """Both places where the kernel runs; on a GPU it reads pinned host memory."""
    if request.param == "interpreted":
        pool = request.getfixturevalue("interpreter")
        return lambda source, numbers: pool.submit(fetched, source, numbers).result(timeout=240)

    def from_host(source: TokenBatch, numbers: Tensor) -> tuple[Tensor, Tensor]:
        from dataclasses import replace

        return fetched(replace(source, values=source.values.pin_memory()), numbers.cuda())

    return from_host


@pytest.mark.parametrize("layout", ["dense", "masked", "packed"])
def test_documents_arrive_whole_in_the_order_asked_for_with_repeats(fetch, layout):
    D, lengths = torch.randn(9, 21, 20, generator=torch.Generator().manual_seed(0)), torch.arange(9) * 21 // 8
    if layout == "dense":
        source = tokens(D)
    elif layout == "masked":
        source = tokens(D, lengths=lengths)
    else:
        rows = torch.cat([D[n, :length] for n, length in enumerate(lengths)])
        source = tokens(rows, cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]))
    numbers = torch.tensor([8, 0, 3, 3, 7])
    x, valid = fetch(source, numbers)
    want, real = source.select(numbers).padded()
    assert torch.equal(valid, real)
    assert torch.equal(x, torch.where(real[..., None], want, 0.0))


def test_nothing_asked_for_is_an_empty_batch(fetch):
    x, _ = fetch(tokens(torch.ones(2, 3, 4)), torch.zeros(0, dtype=torch.int64))
    assert x.shape[0] == 0
