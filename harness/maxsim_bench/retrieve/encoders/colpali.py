"""Page-image encoders of colpali-engine: ColPali, ColQwen2, ColQwen2.5.

Room: `retrieve`. May import: record, backends. "colpali:MODEL[@REVISION]"; MODEL is a name of the hub or a local
folder.
A document is a page image; a query is text with the processor's own prefix and its augmentation tokens.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError, Identity, model_revision, named_model, reachable
from maxsim_bench.retrieve.encoders.registry import EncoderKind

if TYPE_CHECKING:
    import torch

# What a model is, by the type in its config or a part of its name → classes of `colpali_engine.models`.
FAMILIES = {
    "paligemma": ("ColPali", "ColPaliProcessor"),
    "qwen2_vl": ("ColQwen2", "ColQwen2Processor"),
    "qwen2_5_vl": ("ColQwen2_5", "ColQwen2_5_Processor"),
}
NAME_PARTS = {"colqwen2.5": "qwen2_5_vl", "colqwen2_5": "qwen2_5_vl", "colqwen2": "qwen2_vl", "colpali": "paligemma"}
MODELS = ("vidore/colpali-v1.2", "vidore/colpali-v1.3", "vidore/colqwen2-v1.0", "vidore/colqwen2.5-v0.2")
BATCH = {"cpu": 1, "cuda": 8}  # pages at a time: a page is about a thousand tokens through a model of billions


class ColPaliEngine:
    """A model of colpali-engine with its processor on one device."""

    def __init__(self, model: str, revision: str | None, device: str) -> None:
        self.model, self.revision, self.device = model, revision, device
        self.family = family_of(model)

    @functools.cached_property
    def identity(self) -> Identity:
        processor = self._processor
        return Identity(
            name="colpali",
            model=named_model(self.model),
            revision=model_revision(self.model, self.revision),
            query_prefix=processor.query_prefix,
            document_prefix=processor.visual_prompt_prefix,
            masking=f"all tokens that the model attends to; queries end in 10 x {processor.query_augmentation_token!r}",
            d=int(self._model.dim),
            software=f"colpali-engine {metadata.version('colpali-engine')}",
        )

    def on(self, device: str) -> ColPaliEngine:
        return ColPaliEngine(self.model, self.revision, device)

    def queries(self, texts: Sequence[str]) -> Embeddings:
        """[T, d] fp16 on the CPU, prompt and augmentation tokens included, padding left out."""
        return self._encode(list(texts), lambda some: self._processor.process_queries(some))

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        """One [tokens, d] block a page image.

        Raises:
            EncoderError: for a document without an image.
        """
        without = next((d.id for d in documents if d.image is None), None)
        if without is not None:
            raise EncoderError(f"colpali encodes page images, and document {without!r} has none. Use a text encoder.")
        return self._encode(list(documents), lambda some: self._processor.process_images([_image(d) for d in some]))

    def _encode(self, items: list[Any], process: Any) -> Embeddings:
        import torch

        out: list[torch.Tensor] = []
        step = BATCH[self.device.split(":")[0]]
        for first in range(0, len(items), step):
            batch = process(items[first : first + step]).to(self.device)
            with torch.inference_mode():
                tokens = self._model(**batch)
            valid = batch["attention_mask"].bool()
            out += [t[m].to("cpu", torch.float16) for t, m in zip(tokens, valid, strict=True)]
        return Embeddings.of(out, int(self._model.dim))

    @functools.cached_property
    def _model(self) -> Any:
        import torch
        from colpali_engine import models

        dtype = torch.bfloat16 if self.device.startswith("cuda") else torch.float32
        with reachable(self.model, "colpali-engine"):
            made = getattr(models, FAMILIES[self.family][0]).from_pretrained(
                self.model, revision=self.revision or "main", dtype=dtype
            )
        return complete(made, self.model).eval().to(self.device)

    @functools.cached_property
    def _processor(self) -> Any:
        from colpali_engine import models

        with reachable(self.model, "colpali-engine"):
            return getattr(models, FAMILIES[self.family][1]).from_pretrained(
                self.model, revision=self.revision or "main"
            )


def complete(model: Any, name: str) -> Any:
    """The model with every weight there.

    colpali-engine 0.3.18 under transformers 5 leaves ColPali's output layer without data, which is its input embedding
    (tied); to be removed when a release ties it. Any other weight that the checkpoint lacks is an EncoderError.
    """
    import torch

    absent = [n for n, p in model.named_parameters() if p.is_meta]
    if absent == ["model.lm_head.weight"]:
        model.model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight, requires_grad=False)
    elif absent:
        raise EncoderError(f"{name}: its files hold no {', '.join(absent[:3])}. Download the model again.")
    return model


def family_of(model: str) -> str:
    """Key of `FAMILIES`, from a local folder's config.json or from the name; EncoderError if neither tells."""
    config = Path(model) / "config.json"
    if config.is_file():
        kind = str(json.loads(config.read_text(encoding="utf-8")).get("model_type"))
        if kind in FAMILIES:
            return kind
        raise EncoderError(f"{config}: model_type is {kind!r}. Known: {', '.join(FAMILIES)}.")
    for part, family in NAME_PARTS.items():  # longer parts come first
        if part in model.lower():
            return family
    raise EncoderError(
        f"colpali:{model}: the name tells no family ({', '.join(NAME_PARTS)}). Known: {', '.join(MODELS)}."
    )


def _image(document: Document) -> Any:
    from PIL import Image

    assert document.image is not None
    return Image.open(io.BytesIO(document.image))


def _make(options: str, device: str) -> ColPaliEngine:
    model, _, revision = options.partition("@")
    if not model:
        raise EncoderError(f"colpali: which model? Write colpali:MODEL, for example {', '.join(MODELS)}.")
    try:
        import colpali_engine  # noqa: F401  # only whether it can be imported beside this torch
    except (ImportError, RuntimeError) as error:  # torchvision raises RuntimeError beside a torch of another build
        raise EncoderError(
            f"colpali:{model}: the package colpali-engine cannot be used here ({error}). "
            "pip install 'maxsim-bench[vision]'"
        ) from error
    return ColPaliEngine(model, revision or None, device)


ENCODER = EncoderKind("colpali", "colpali:MODEL[@REVISION]", _make)
