"""ColPali's step: the published size, adapters by their formula, pages of the inputs, gradients by every scorer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maxsim_bench.backends.full_step import loss_of_batch, recipe_of
from maxsim_bench.backends.full_step_colpali import (
    ADAPTED,
    ENCODERS,
    PAGE_TEXT,
    RANK,
    adapt,
    batch_of,
    make_base,
    make_model,
)
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare import encoders as declared
from maxsim_bench.declare.cell import Cell

pytest.importorskip("transformers", reason="the encoder is transformers' ColPali")

CPU = torch.device("cpu")
# Parameters that keras-hub lists for PaliGemma 3B at 448 px; `transformers` holds 64 more rows of word embeddings.
PALIGEMMA = 2_924_220_144 + 64 * 2048


def cell(Lq: int = 4, **changes: Any) -> Cell:
    usual = {
        "experiment": "t", "gpu": "cpu", "op": "training_step", "Nq": 3, "B": 3, "Lq": Lq, "Ld": 10, "d": 16,
        "dtype": "bf16", "layout": "dense", "pairing": "all", "variant": "checkpoint=true;encoder=colpali-tiny",
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


def test_the_encoder_has_as_many_weights_as_published_all_of_them_bf16() -> None:
    base = make_base("colpali-v1.2", 128, torch.device("meta"))
    weights = list(base.parameters())
    assert sum(w.numel() for w in weights) == PALIGEMMA + 128 * (2048 + 1)
    assert {w.dtype for w in weights} == {torch.bfloat16}
    assert base.vlm.vision_tower.embeddings.num_patches == 1024


@pytest.mark.parametrize("name", list(ENCODERS))
def test_a_plan_counts_the_weights_that_the_encoder_has(name: str) -> None:
    base = make_base(name, 128, torch.device("meta"))
    matrices = {k: w.numel() for k, w in base.vlm.named_parameters() if w.dim() > 1}
    looked_up = [k for k in matrices if "embed_tokens" in k or "position_embedding" in k]
    text = sum(n for k, n in matrices.items() if "language_model" in k and k not in looked_up)
    image = sum(n for k, n in matrices.items() if "language_model" not in k and k not in looked_up)
    size = declared.ENCODERS[name]
    assert (size.weights, size.image_weights) == (text, image)
    assert size.image_tokens + PAGE_TEXT == ENCODERS[name].page


def test_only_adapters_of_the_language_models_attention_learn() -> None:
    meta = torch.device("meta")
    base = make_base("colpali-v1.2", 128, meta).requires_grad_(False)
    adapt(base, meta)
    learns = {name: weight for name, weight in base.named_parameters() if weight.requires_grad}
    assert len(learns) == 18 * len(ADAPTED) * 2
    assert all("language_model" in name and ".self_attn." in name for name in learns)
    widths = {"q_proj": 2048 + 2048, "k_proj": 2048 + 256, "v_proj": 2048 + 256, "o_proj": 2048 + 2048}
    assert sum(weight.numel() for weight in learns.values()) == 18 * RANK * sum(widths.values())
    assert {weight.dtype for weight in learns.values()} == {torch.float32}


def test_an_adapter_adds_its_low_rank_product_and_a_fresh_one_nothing() -> None:
    base = make_base("colpali-tiny", 16, CPU)
    frozen = base.vlm.language_model.layers[0].self_attn.q_proj
    adapt(base, CPU)
    adapter = base.vlm.language_model.layers[0].self_attn.q_proj
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(adapter(x), frozen(x))
    with torch.no_grad():
        adapter.B.normal_(generator=torch.Generator().manual_seed(2))
        want = x.double() @ (frozen.weight.double() + adapter.B.double() @ adapter.A.double()).T
    torch.testing.assert_close(adapter(x).double(), want, rtol=2e-2, atol=2e-2)


def test_two_models_have_the_same_weights_and_drawing_them_leaves_the_generator_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, two = make_model(cell(), CPU), make_model(cell(), CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("Lq", [4, 10])
def test_pages_are_image_tokens_then_words_and_a_query_as_long_as_a_page_is_one(Lq: int) -> None:
    c = cell(Lq, B=2)
    inputs = make_inputs(c, "cpu")
    queries, pages = batch_of(c, inputs)
    assert (queries.numbers.shape, pages.numbers.shape) == ((3, Lq), (2, 10))
    assert (queries.pixels is not None) == (Lq == 10)
    assert bool((pages.numbers[:, :4] == 120).all())
    assert bool((pages.numbers[:, 4:] < 120).all())
    assert pages.pixels is not None
    assert pages.pixels.shape == (2, 3, 28, 28)
    # the upper right patch is token 1 of the page, component after component
    patch = pages.pixels[0, :, :14, 14:].flatten()
    torch.testing.assert_close(patch[:16], inputs.D[0, 1].float() * 4)
    assert 0.5 < float(pages.pixels.std()) < 2


@pytest.mark.parametrize("Lq", [4, 10])
def test_fused_scores_give_every_adapter_the_gradient_that_eager_ones_do(Lq: int) -> None:
    """In fp32, where the two differ by the order of their sums only; B is drawn, or the gradient of A would be 0."""
    import maxsim
    from maxsim import baselines

    c = cell(Lq)
    recipe = recipe_of(c)
    batch = recipe.batch(c, make_inputs(c, "cpu"))
    model = recipe.model(c, CPU).float()
    learns = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for name, weight in learns.items():
            if name.endswith(".B"):
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    found = []
    for score in (baselines.eager, maxsim.maxsim):
        loss = loss_of_batch(recipe, model, *batch, score=lambda q, d, by=score: by(q.float(), d.float()))
        found.append(torch.autograd.grad(loss, list(learns.values())))
    for name, eager, fused in zip(learns, *found, strict=True):
        assert float(eager.abs().max()) > 0, name
        torch.testing.assert_close(fused, eager, rtol=1e-3, atol=1e-5 * float(eager.abs().max()), msg=name)


def test_checkpointing_recomputes_layers_and_changes_no_gradient() -> None:
    import maxsim

    found = []
    for checkpoint in ("true", "false"):
        c = cell(variant=f"checkpoint={checkpoint};encoder=colpali-tiny")
        recipe = recipe_of(c)
        model = recipe.model(c, CPU)
        calls: list[int] = []
        mlp = model.base.vlm.language_model.layers[1].mlp
        mlp.register_forward_pre_hook(lambda *_, seen=calls: seen.append(1))
        loss_of_batch(recipe, model, *recipe.batch(c, make_inputs(c, "cpu")), score=maxsim.maxsim).backward()
        found.append([w.grad for w in model.parameters() if w.requires_grad])
        assert len(calls) == {"true": 4, "false": 2}[checkpoint]
    for a, b in zip(*found, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b)
