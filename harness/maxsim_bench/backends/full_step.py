"""A complete training step, encoder included: encode both sides of a batch, score, differentiate, update.

Room: `backends`. May import: declare, `maxsim`. Cells under variant `encoder=NAME`: an encoder of that size with random
weights, trained as its recipe says (`full_step_recipe`), with AdamW. Time and memory of a step do not depend on what
the weights are, so no pretrained ones are needed; quality is another experiment's question. A learning rate of 0 leaves
the weights as they are, so that every step can be checked; the update does all of its work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from maxsim_bench.backends import full_step_bert, full_step_colpali
from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.full_step_recipe import ROUNDING, Recipe
from maxsim_bench.backends.identity import installed_version, missing, source_hash
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

RECIPES = {**full_step_bert.RECIPES, **full_step_colpali.RECIPES}
_PEERS = "pip install 'maxsim-bench[peers]'"
_HALF_UNIT = 2.0**-9  # of a bf16 number, relative


@dataclass(frozen=True)
class FullStep:
    """One scorer in the step: autograd through the materialised similarities, ours, or flash-maxsim."""

    name: str
    scorer: Literal["eager", "fused", "flash"]
    exact: bool = False
    install: str | None = "pip install 'maxsim-bench[offline]'"
    about: str = ""

    def version(self) -> str:
        if self.scorer == "flash":
            return installed_version("flash-maxsim")
        return source_hash("baselines.py") if self.scorer == "eager" else source_hash("tokens.py", "fused", "training")

    def supports(self, cell: Cell, device: str) -> str | None:
        encoder = variant_of(cell, "encoder", "")
        if cell.op != "training_step" or not encoder:
            return "measures complete steps only (variant encoder=NAME)"
        if encoder not in RECIPES:
            return f"has the encoders {', '.join(RECIPES)}, not {encoder}"
        if cell.layout not in (None, "dense") or cell.pairing not in (None, "all"):
            return "takes dense sequences, and scores every query with every document"
        refused = RECIPES[encoder].refusal(cell)
        if refused is not None:
            return refused
        if self.scorer == "flash":
            if device != "cuda":
                return "needs an NVIDIA GPU"
            return missing("flash_maxsim", _PEERS) or missing("transformers", f"{self.install}")
        return missing("transformers", f"{self.install}")

    def tolerance(self, cell: Cell) -> float:
        """That of the encoder; eager's 16-bit scores move the loss by more where a temperature magnifies them.

        A similarity and the sum over them are rounded by half a unit each, of a mean cosine of at most 1; the loss
        follows the scores with slopes whose absolute values add up to 2 at most, and is about log B.
        """
        recipe = recipe_of(cell)
        if self.scorer != "eager" or not recipe.mean:
            return ROUNDING
        return ROUNDING + 2 * 2 * _HALF_UNIT / recipe.tau / math.log(max(cell.B or 2, 2))

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import torch

        recipe, score = recipe_of(cell), _SCORERS[self.scorer]
        model = recipe.model(cell, inputs.Q.device)
        learnt = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(learnt, lr=0.0, weight_decay=0.0)
        queries, documents = recipe.batch(cell, inputs)

        def call() -> tuple[torch.Tensor]:
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of_batch(recipe, model, queries, documents, score)
            loss.backward()
            optimiser.step()
            return (loss.detach(),)

        call()  # the optimiser makes its state in its first step; afterwards it is there, as in training
        optimiser.zero_grad(set_to_none=True)
        return call


def recipe_of(cell: Cell) -> Recipe:
    """The recipe of the cell's encoder."""
    return RECIPES[variant_of(cell, "encoder", "")]


def loss_of_batch(
    recipe: Recipe, model: Any, queries: Any, documents: Any, score: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Cross-entropy of every query against its positive and all other documents of the batch, fp32."""
    import torch

    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.autocast):
        q, d = model(queries), model(documents)
        scores = score(q.bfloat16(), d.bfloat16())
    logits = scores.float() / ((q.shape[1] if recipe.mean else 1) * recipe.tau)
    return torch.nn.functional.cross_entropy(logits, torch.arange(logits.shape[0], device=device))


def reference_loss(cell: Cell, inputs: Inputs) -> Callable[[], object]:
    """The loss by the FP32 reference over the same encoder's embeddings."""
    import torch

    import maxsim
    from maxsim.reference import blocked_fp32

    recipe = recipe_of(cell)
    model = recipe.model(cell, inputs.Q.device)
    queries, documents = recipe.batch(cell, inputs)

    def score(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return blocked_fp32(maxsim.tokens(q), maxsim.tokens(d), pairing="all")

    def call() -> tuple[torch.Tensor]:
        with torch.no_grad():
            return (loss_of_batch(recipe, model, queries, documents, score),)

    return call


def _eager(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    from maxsim import baselines

    return baselines.eager(q, d)


def _fused(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    import maxsim

    return maxsim.maxsim(q, d)


def _flash(q: torch.Tensor, d: torch.Tensor) -> Any:
    from flash_maxsim import flash_maxsim_batched_train

    return flash_maxsim_batched_train(q, d, True)


_SCORERS: dict[str, Callable[..., torch.Tensor]] = {"eager": _eager, "fused": _fused, "flash": _flash}

BACKENDS = [
    FullStep("full_step_eager", "eager", about="a whole training step, encoder included, scored by eager"),
    FullStep("full_step_fused", "fused", about="a whole training step, encoder included, scored by ours"),
    FullStep("full_step_flash", "flash", about="a whole training step, encoder included, scored by flash-maxsim"),
]
