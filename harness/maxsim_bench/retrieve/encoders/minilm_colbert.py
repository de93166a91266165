"""minilm-colbert-128: all-MiniLM-L6-v2 tokens through a projection to 128 dimensions that was trained for MaxSim.

Room: `retrieve`. May import: record, backends. The projection (fp16 [128, 384], beside this file) is the one that
`python -m maxsim_bench.parity` writes: trained on SciFact's training queries with in-batch negatives, so
SciFact's own numbers are those of a model that has seen the corpus; other sets are out of domain.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.encoders import minilm
from maxsim_bench.retrieve.encoders.base import Encoder, Identity
from maxsim_bench.retrieve.encoders.registry import EncoderKind

if TYPE_CHECKING:
    import torch

NAME, DIMENSION = "minilm-colbert-128", 128
WEIGHTS = "minilm_colbert_128.safetensors"


class MiniLMColBERT:
    """The encoder on one device: another encoder's tokens, projected and normalised again."""

    def __init__(self, base: Encoder, options: str, device: str) -> None:
        self.base, self.options, self.device = base, options, device

    @functools.cached_property
    def identity(self) -> Identity:
        with as_file(files(__package__) / WEIGHTS) as path:
            projection = minilm.weights_hash(path)
        base = self.base.identity
        return replace(
            base,
            name=f"{NAME}:{self.options}" if self.options else NAME,
            model=f"{base.model}, projected",
            revision=f"{base.revision}; projection {projection}",
            d=DIMENSION,
        )

    def on(self, device: str) -> MiniLMColBERT:
        return MiniLMColBERT(self.base.on(device), self.options, device)

    def queries(self, texts: Sequence[str]) -> Embeddings:
        """[T, 128] fp16 on the CPU; an empty text has no tokens."""
        return self._projected(self.base.queries(texts))

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        """As `queries`, over title and text."""
        return self._projected(self.base.documents(documents))

    def _projected(self, tokens: Embeddings) -> Embeddings:
        from maxsim_bench.retrieve.contrastive import project

        values = project(self._weight.to(self.device), tokens.values.to(self.device))
        return Embeddings(values.half().cpu(), tokens.lengths)

    @functools.cached_property
    def _weight(self) -> torch.Tensor:
        """[128, 384] fp32."""
        from safetensors.torch import load_file

        with as_file(files(__package__) / WEIGHTS) as path:
            return load_file(path)["weight"].float()


def _make(options: str, device: str) -> MiniLMColBERT:
    return MiniLMColBERT(minilm.ENCODER.make(options, device), options, device)


ENCODER = EncoderKind(NAME, f"{NAME}[:TOKENS]", _make)
