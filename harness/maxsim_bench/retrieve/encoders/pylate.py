"""Text encoders of PyLate: ColBERTv2, answerai-colbert-small, GTE-ModernColBERT and any other model of its format.

Room: `retrieve`. May import: record, backends. "pylate:MODEL[@REVISION]"; MODEL is a name of the hub or a local folder.
Prefixes, lengths and query expansion are the model's own and are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError, Identity, model_revision, named_model, reachable
from maxsim_bench.retrieve.encoders.registry import EncoderKind

# The models that published numbers use.
MODELS = (
    "colbert-ir/colbertv2.0",
    "lightonai/colbertv2.0",
    "answerdotai/answerai-colbert-small-v1",
    "lightonai/GTE-ModernColBERT-v1",
)
BATCH = 32


class PyLate:
    """A `pylate.models.ColBERT` on one device."""

    def __init__(self, model: str, revision: str | None, device: str) -> None:
        self.model, self.revision, self.device = model, revision, device

    @functools.cached_property
    def identity(self) -> Identity:
        own = self._model
        expansion = "queries filled up with [MASK]" if own.do_query_expansion else "no query expansion"
        return Identity(
            name="pylate",
            model=named_model(self.model),
            revision=model_revision(self.model, self.revision),
            query_prefix=own.query_prefix or "",
            document_prefix=own.document_prefix or "",
            query_length=own.query_length,
            document_length=own.document_length,
            masking=f"{expansion}; document tokens of the model's skip list are dropped ({len(own.skiplist)} of them)",
            d=int(own.get_sentence_embedding_dimension()),
            software=f"pylate {metadata.version('pylate')}",
        )

    def on(self, device: str) -> PyLate:
        return PyLate(self.model, self.revision, device)

    def queries(self, texts: Sequence[str]) -> Embeddings:
        """[T, d] fp16 on the CPU."""
        return self._encode(list(texts), is_query=True)

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        """As `queries`, over title and text."""
        return self._encode([d.content for d in documents], is_query=False)

    def _encode(self, texts: list[str], *, is_query: bool) -> Embeddings:
        import torch

        found = self._model.encode(
            texts,
            is_query=is_query,
            batch_size=BATCH,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        tokens = [torch.from_numpy(one).to(torch.float16) for one in found]
        return Embeddings.of(tokens, int(self._model.get_sentence_embedding_dimension()))

    @functools.cached_property
    def _model(self) -> Any:
        from pylate import models

        with reachable(self.model, "pylate"):
            return models.ColBERT(self.model, revision=self.revision, device=self.device)


def _make(options: str, device: str) -> PyLate:
    model, _, revision = options.partition("@")
    if not model:
        raise EncoderError(f"pylate: which model? Write pylate:MODEL, for example {', '.join(MODELS)}.")
    try:
        import pylate  # noqa: F401  # only whether it can be imported beside this torch
    except (ImportError, RuntimeError) as error:
        raise EncoderError(
            f"pylate:{model}: the package pylate cannot be used here ({error}). "
            "pip install pylate, in an environment of its own: its 1.6.0 pins torch 2.11 through "
            "fast-plaid. Encode there and bring the embeddings (docs/encoders.md)."
        ) from error
    return PyLate(model, revision or None, device)


ENCODER = EncoderKind("pylate", "pylate:MODEL[@REVISION]", _make)
