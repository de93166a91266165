"""A complete step: the same loss by every scorer, gradients in every weight, and weights that stay as they are."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.backends import full_step_bert, registry
from maxsim_bench.backends.full_step import RECIPES, loss_of_batch, recipe_of, reference_loss
from maxsim_bench.backends.full_step_bert import token_numbers
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare import encoders as declared
from maxsim_bench.declare.cell import Cell

pytest.importorskip("transformers", reason="the encoders are those of transformers")

TINY = "checkpoint=false;encoder=tiny"
COLPALI = "checkpoint=true;encoder=colpali-tiny"
SIZES = {"experiment": "t", "gpu": "cpu", "op": "training_step", "Nq": 3, "B": 3, "d": 8, "dtype": "bf16"}


def cell(variant: str = TINY, **changes: object) -> Cell:
    usual: dict[str, object] = {"Lq": 4, "Ld": 6, "layout": "dense", "pairing": "all", "variant": variant}
    return Cell.model_validate(SIZES | usual | changes)


CELLS = [
    cell(),
    cell(TINY.replace("false", "true")),
    cell(COLPALI, Ld=10),
    cell(COLPALI, Lq=10, Ld=10),
    cell(COLPALI.replace("true", "false"), Ld=10),
]


def told(c: Cell) -> str:
    return f"{c.variant};Lq={c.Lq}"


@pytest.mark.parametrize("c", CELLS, ids=told)
@pytest.mark.parametrize("name", ["full_step_eager", "full_step_fused"])
def test_every_step_has_the_loss_of_the_reference_and_so_has_the_next(name: str, c: Cell) -> None:
    backend, inputs = registry.get(name), make_inputs(c, "cpu")
    assert backend.supports(c, "cpu") is None
    (want,) = reference_loss(c, inputs)()  # type: ignore[misc]
    call = backend.prepare(c, inputs)
    for _ in range(2):
        (loss,) = call()  # type: ignore[misc]
        torch.testing.assert_close(loss, want, rtol=backend.tolerance(c), atol=0.0)


def test_there_are_as_many_hard_negatives_as_positives_and_they_differ() -> None:
    queries, documents = token_numbers(cell(), make_inputs(cell(), "cpu"))
    assert (queries.shape, documents.shape) == ((3, 4), (6, 6))
    assert not torch.equal(documents[:3], documents[3:])
    assert 0 <= int(documents.min()) <= int(documents.max()) < 30_522


@pytest.mark.parametrize("c", CELLS, ids=told)
def test_gradients_reach_every_weight_that_learns_through_the_fused_scores(c: Cell) -> None:
    import maxsim

    recipe = recipe_of(c)
    model = recipe.model(c, torch.device("cpu"))
    loss_of_batch(recipe, model, *recipe.batch(c, make_inputs(c, "cpu")), maxsim.maxsim).backward()
    assert [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None] == []


def test_a_temperature_admits_more_of_the_scorer_that_rounds_its_scores_and_of_no_other() -> None:
    admitted = {
        (name, variant): registry.get(f"full_step_{name}").tolerance(cell(variant, B=64))
        for name in ("eager", "fused", "flash") for variant in (TINY, COLPALI)
    }  # fmt: skip
    assert admitted.pop(("eager", COLPALI)) == pytest.approx(0.02 + 4 * 2.0**-9 / 0.02 / 4.1589, rel=1e-4)
    assert set(admitted.values()) == {0.02}


def test_every_encoder_has_a_size_that_plans_count_and_berts_is_that_of_its_weights() -> None:
    assert declared.ENCODERS.keys() == RECIPES.keys()
    for name in full_step_bert.ENCODERS:
        model = full_step_bert.make_model(cell(f"encoder={name}"), torch.device("cpu")).bert
        matrices = [w.numel() for k, w in model.named_parameters() if w.dim() > 1 and "embeddings" not in k]
        assert declared.ENCODERS[name].weights == sum(matrices)


def test_cells_without_an_encoder_and_unknown_encoders_are_refused_in_words() -> None:
    backend = registry.get("full_step_fused")
    assert "encoder=NAME" in str(backend.supports(cell("loss=sum"), "cpu"))
    assert "bert-base, tiny, colpali-v1.2, colpali-tiny, not bert-huge" in str(
        backend.supports(cell("encoder=bert-huge"), "cpu")
    )
    assert "pages of 10 tokens with colpali-tiny, not documents of 6" in str(backend.supports(cell(COLPALI), "cpu"))
    assert "full_step_" in str(registry.get("train_fused").supports(cell(), "cpu"))


def test_the_next_inputs_are_another_batch() -> None:
    """Timing rotates over sets: a batch that did not depend on the inputs would be answered from a cache unseen."""
    for c in CELLS:
        losses = [float(reference_loss(c, make_inputs(c, "cpu", i))()[0]) for i in range(2)]  # type: ignore[index]
        assert losses[0] != losses[1], told(c)
