"""The step of a BERT of the published size: positives and hard negatives, all weights trained under bf16 autocast.

Room: `backends`. May import: declare, `maxsim`. Token numbers are made of the cell's inputs: a query of each row of Q,
a positive and a hard negative of each row of D, every token real.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.full_step_recipe import Recipe, checkpoint_layers, numbers_below
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

ENCODERS: dict[str, dict[str, Any]] = {  # what differs from `transformers.BertConfig`, which is bert-base-uncased
    "bert-base": {},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
_NUMBERS = 30_000  # below BERT's vocabulary of 30 522


def make_model(cell: Cell, device: torch.device) -> Any:
    """A BERT and a projection [hidden → d] with weights of seed 0, in training mode without dropout.

    It takes token numbers [n, L] and returns unit vectors [n, L, d].
    """
    drawn = _drawn(variant_of(cell, "encoder", ""), variant_of(cell, "checkpoint", "false") == "true", cell.d or 128)
    return copy.deepcopy(drawn).to(device).train()


@cache
def _drawn(encoder: str, checkpoint: bool, d: int) -> Any:
    """The model on the processor, drawn once: drawing takes a second, a cell needs two dozen copies."""
    import torch
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(**ENCODERS[encoder], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
            self.bert = BertModel(config, add_pooling_layer=False)
            if checkpoint:
                checkpoint_layers(self.bert)
            self.project = torch.nn.Linear(config.hidden_size, d, bias=False)

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            tokens = self.project(self.bert(input_ids=numbers).last_hidden_state)
            return torch.nn.functional.normalize(tokens, dim=-1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder()


def token_numbers(cell: Cell, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [Nq, Lq] and documents [2 B, Ld], positives first: int64 numbers below BERT's vocabulary of 30 522."""
    import torch

    sides = [numbers_below(x, _NUMBERS) for x in (inputs.Q[..., 0], inputs.D[..., 0], inputs.D[..., 1])]
    return sides[0], torch.cat(sides[1:])


RECIPES = {name: Recipe(make_model, token_numbers, autocast=True) for name in ENCODERS}
