"""Properties that hold for any batch: the operator against float64, and what may not change a score."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import maxsim
from maxsim import fused, reference

# the interpreter starts once a session, which the first example pays for
RELAXED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def batches(draw: st.DrawFn) -> tuple[maxsim.TokenBatch, maxsim.TokenBatch]:
    """Queries and documents with ragged lengths, empty ones included, in any layout."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    d = draw(st.sampled_from([1, 3, 16, 40]))
    return tuple(_batch(draw, generator, n, d) for n in (draw(st.integers(0, 5)), draw(st.integers(0, 6))))  # type: ignore[return-value]


def _batch(draw: st.DrawFn, generator: torch.Generator, count: int, d: int) -> maxsim.TokenBatch:
    L = draw(st.integers(1, 70))
    x = torch.randn(count, L, d, generator=generator)
    layout = draw(st.sampled_from(["dense", "lengths", "mask", "packed"]))
    lengths = torch.randint(0, L + 1, (count,), generator=generator)
    if layout == "dense":
        return maxsim.tokens(x)
    if layout == "lengths":
        return maxsim.tokens(x, lengths=lengths)
    if layout == "mask":
        return maxsim.tokens(x, mask=torch.rand(count, L, generator=generator) > 0.3)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return maxsim.tokens(torch.randn(int(offsets[-1]), d, generator=generator), cu_seqlens=offsets)


def assert_same(scores: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-4)


@RELAXED
@given(batches())
def test_the_torch_path_agrees_with_float64(pair):
    q, d = pair
    assert_same(fused.forward(q, d), reference.float64(q, d)[0])


@RELAXED
@given(batches())
def test_the_portable_kernel_agrees_with_float64(simulate, pair):
    q, d = pair
    expected, winners = reference.float64(q, d)
    scores, won = simulate(q, d, argmax=True, path="portable")
    assert_same(scores, expected)
    best = won[..., : q.max_length].long()
    assert torch.equal(best < 0, winners[..., : q.max_length] < 0)


@RELAXED
@given(batches(), st.randoms(use_true_random=False))
def test_permuting_documents_permutes_scores(pair, random):
    q, d = pair
    order = list(range(d.count))
    random.shuffle(order)
    index = torch.tensor(order, dtype=torch.int64)
    assert_same(fused.forward(q, d.select(index)), fused.forward(q, d).double()[:, index])


@RELAXED
@given(batches())
def test_permuting_tokens_of_a_document_changes_nothing(pair):
    q, d = pair
    x, valid = d.padded()
    flipped = maxsim.tokens(x.flip(1), mask=valid.flip(1))
    assert_same(fused.forward(q, flipped), fused.forward(q, d).double())


@RELAXED
@given(batches(), st.integers(1, 40))
def test_padding_changes_nothing(pair, more):
    q, d = pair
    x, valid = d.padded()
    wide = torch.nn.functional.pad(x, (0, 0, 0, more), value=float("nan"))
    padded = maxsim.tokens(wide, mask=torch.nn.functional.pad(valid, (0, more)))
    assert_same(fused.forward(q, padded), fused.forward(q, d).double())
