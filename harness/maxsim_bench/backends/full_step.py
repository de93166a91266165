"""A complete training step, encoder included: encode queries, positives and negatives, score, differentiate, update.

Room: `backends`. May import: declare, `maxsim`. Cells under variant `encoder=NAME`: a BERT of that size with random
weights and a projection to d dimensions, under bf16 autocast, with AdamW. Time and memory of a step do not depend on
what the weights are, so no pretrained ones are needed; quality is another experiment's question. Token numbers are made
of the cell's inputs: a query of each row of Q, a positive and a hard negative of each row of D, every token real. A
learning rate of 0 leaves the weights as they are, so that every step can be checked; the update does all of its work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing, source_hash
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

ENCODERS: dict[str, dict[str, Any]] = {  # what differs from `transformers.BertConfig`, which is bert-base-uncased
    "bert-base": {},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
_TAU = 1.0  # PyLate's default
_PEERS = "pip install 'maxsim-bench[peers]'"
# bf16 activations through twelve layers: kernels of other batch shapes round otherwise; the loss moves by this at most.
_AUTOCAST = 2e-2


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
        if encoder not in ENCODERS:
            return f"has the encoders {', '.join(ENCODERS)}, not {encoder}"
        if cell.layout not in (None, "dense") or cell.pairing not in (None, "all"):
            return "takes dense sequences, and scores every query with every document"
        if self.scorer == "flash":
            if device != "cuda":
                return "needs an NVIDIA GPU"
            return missing("flash_maxsim", _PEERS) or missing("transformers", f"{self.install}")
        return missing("transformers", f"{self.install}")

    def tolerance(self, cell: Cell) -> float:
        return _AUTOCAST

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import torch

        model = make_model(cell, inputs.Q.device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
        queries, documents = token_numbers(inputs)
        score = _SCORERS[self.scorer]

        def call() -> tuple[torch.Tensor]:
            optimiser.zero_grad(set_to_none=True)
            loss = loss_of_batch(model, queries, documents, score)
            loss.backward()
            optimiser.step()
            return (loss.detach(),)

        call()  # the optimiser makes its state in its first step; afterwards it is there, as in training
        optimiser.zero_grad(set_to_none=True)
        return call


def make_model(cell: Cell, device: torch.device) -> Any:
    """A BERT and a projection [hidden → d] with weights of seed 0, in training mode without dropout."""
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
                self.bert.gradient_checkpointing_enable()
            self.project = torch.nn.Linear(config.hidden_size, d, bias=False)

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            tokens = self.project(self.bert(input_ids=numbers).last_hidden_state)
            return torch.nn.functional.normalize(tokens, dim=-1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder()


def token_numbers(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [Nq, Lq] and documents [2 B, Ld], positives first: int64 numbers below BERT's vocabulary of 30 522."""
    import torch

    def numbers(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1e6).long().remainder(30_000)

    return numbers(inputs.Q[..., 0]), torch.cat([numbers(inputs.D[..., 0]), numbers(inputs.D[..., 1])])


def loss_of_batch(
    model: Any, queries: torch.Tensor, documents: torch.Tensor, score: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Cross-entropy of every query against its positive and all other documents, 2 B - 1 negatives."""
    import torch

    with torch.autocast(queries.device.type, dtype=torch.bfloat16):
        q, d = model(queries), model(documents)
        scores = score(q.bfloat16(), d.bfloat16())
    target = torch.arange(queries.shape[0], device=queries.device)
    return torch.nn.functional.cross_entropy(scores.float() / _TAU, target)


def reference_loss(cell: Cell, inputs: Inputs) -> Callable[[], object]:
    """The loss by the FP32 reference over the same encoder's embeddings."""
    import torch

    import maxsim
    from maxsim.reference import blocked_fp32

    model = make_model(cell, inputs.Q.device)
    queries, documents = token_numbers(inputs)

    def score(q: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return blocked_fp32(maxsim.tokens(q), maxsim.tokens(d), pairing="all")

    def call() -> tuple[torch.Tensor]:
        with torch.no_grad():
            return (loss_of_batch(model, queries, documents, score),)

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
