"""A complete step: the same loss by every scorer, gradients in every weight, and weights that stay as they are."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.backends.full_step import loss_of_batch, make_model, reference_loss, token_numbers
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare.cell import Cell

pytest.importorskip("transformers", reason="the encoder is transformers' BERT")


def cell(variant: str = "checkpoint=false;encoder=tiny", **changes: object) -> Cell:
    usual: dict[str, object] = {
        "experiment": "t", "gpu": "cpu", "op": "training_step", "Nq": 3, "B": 3, "Lq": 4, "Ld": 6, "d": 8,
        "dtype": "bf16", "layout": "dense", "pairing": "all", "variant": variant,
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


@pytest.mark.parametrize("checkpoint", ["false", "true"])
@pytest.mark.parametrize("name", ["full_step_eager", "full_step_fused"])
def test_every_step_has_the_loss_of_the_reference_and_so_has_the_next(name: str, checkpoint: str) -> None:
    c = cell(f"checkpoint={checkpoint};encoder=tiny")
    backend, inputs = registry.get(name), make_inputs(c, "cpu")
    assert backend.supports(c, "cpu") is None
    (want,) = reference_loss(c, inputs)()  # type: ignore[misc]
    call = backend.prepare(c, inputs)
    for _ in range(2):
        (loss,) = call()  # type: ignore[misc]
        torch.testing.assert_close(loss, want, rtol=backend.tolerance(c), atol=0.0)


def test_there_are_as_many_hard_negatives_as_positives_and_they_differ() -> None:
    queries, documents = token_numbers(make_inputs(cell(), "cpu"))
    assert (queries.shape, documents.shape) == ((3, 4), (6, 6))
    assert not torch.equal(documents[:3], documents[3:])
    assert 0 <= int(documents.min()) <= int(documents.max()) < 30_522


def test_gradients_reach_every_weight_through_the_fused_scores() -> None:
    import maxsim

    c = cell()
    model = make_model(c, torch.device("cpu"))
    loss_of_batch(model, *token_numbers(make_inputs(c, "cpu")), maxsim.maxsim).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_cells_without_an_encoder_and_unknown_encoders_are_refused_in_words() -> None:
    backend = registry.get("full_step_fused")
    assert "encoder=NAME" in str(backend.supports(cell("loss=sum"), "cpu"))
    assert "bert-base, tiny, not bert-huge" in str(backend.supports(cell("encoder=bert-huge"), "cpu"))
    assert "full_step_" in str(registry.get("train_fused").supports(cell(), "cpu"))
