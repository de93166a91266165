"""The contrastive run on small random embeddings: both scorers learn the same thing."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.retrieve import contrastive
from maxsim_bench.retrieve.contrastive import Settings, project, start, train
from maxsim_bench.retrieve.embeddings import Embeddings


def made(count: int, seed: int) -> Embeddings:
    generator = torch.Generator().manual_seed(seed)
    items = [
        torch.nn.functional.normalize(torch.randn(3 + i % 4, 12, generator=generator), dim=-1) for i in range(count)
    ]
    return Embeddings.of([x.half() for x in items], 12)


SMALL = {"d": 4, "batch": 8, "epochs": 3, "held_out": 8, "learning_rate": 1e-2}


def test_fused_and_eager_curves_part_by_rounding_only():
    queries, documents = made(40, 0), made(40, 1)
    pairs = [(i, i) for i in range(40)]
    runs = [train(queries, documents, pairs, Settings(scorer, **SMALL)) for scorer in ("fused", "eager")]
    assert len(runs[0].losses) == 3 * 4
    torch.testing.assert_close(torch.tensor(runs[0].losses), torch.tensor(runs[1].losses), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(runs[0].weight, runs[1].weight, rtol=1e-2, atol=1e-3)
    assert runs[0].losses[-1] < runs[0].losses[0]


def test_the_weights_kept_are_those_of_the_epoch_with_the_lowest_held_out_loss(monkeypatch):
    real, given, seen = contrastive._loss, iter([3.0, 1.0, 2.0]), []

    def loss(weight, *arguments):
        found = real(weight, *arguments)
        if torch.is_grad_enabled():
            return found
        seen.append(weight.clone())
        return found * 0 + next(given)

    monkeypatch.setattr(contrastive, "_loss", loss)
    run = train(made(40, 0), made(40, 1), [(i, i) for i in range(40)], Settings(**SMALL))
    assert run.held_out == [3.0, 1.0, 2.0]
    assert torch.equal(run.weight, seen[1])
    assert not torch.equal(run.weight, seen[2])


def test_a_batch_holds_no_document_and_no_query_twice():
    pairs = [(0, 0), (1, 0), (1, 1), (2, 2), (3, 1), (3, 3)]
    batches = list(contrastive._batches(pairs, 2))
    assert batches
    for batch in batches:
        assert len({q for q, _ in batch}) == len({d for _, d in batch}) == 2


def test_the_start_keeps_products_as_well_as_a_projection_of_that_width_can():
    documents = made(60, 2)
    weight = start(documents, 12)
    tokens = documents.values.float()
    torch.testing.assert_close(
        project(weight, tokens) @ project(weight, tokens).T, tokens @ tokens.T, atol=2e-3, rtol=0
    )


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="10 pairs do not fill a batch of 8 beside 8 held out"):
        train(made(10, 0), made(10, 1), [(i, i) for i in range(10)], Settings(**SMALL))
