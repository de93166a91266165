"""What an encoder is: texts or page images in, token embeddings out, and all that decides them on record.

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.embeddings import Embeddings

Role = Literal["query", "document"]


class EncoderError(RuntimeError):
    """An encoder that cannot be used here; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class Identity:
    """Everything that decides the embeddings of one text. Two equal identities give the same embeddings.

    Attributes:
        name: of the encoder, with its options ("minilm:512").
        model: as its publisher names it.
        revision: commit of the hub, or hash of the weights.
        query_prefix, document_prefix: put before the text.
        query_length, document_length: tokens kept at most, None for all that the model takes.
        masking: which tokens of the model's output are kept, and what queries are padded with, in words.
        normalisation: "l2" or "none".
        d: embedding dimension.
        dtype: of the stored values.
        software: versions that decide rounding.
    """

    name: str
    model: str
    revision: str
    query_prefix: str = ""
    document_prefix: str = ""
    query_length: int | None = None
    document_length: int | None = None
    masking: str = ""
    normalisation: str = "l2"
    d: int = 0
    dtype: str = "fp16"
    software: str = ""

    def hash(self) -> str:
        """Sixteen hex digits of SHA-256 over every field but `software`, which only rounds differently."""
        fields = {k: v for k, v in asdict(self).items() if k != "software"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


class Encoder(Protocol):
    """One encoder on one device.

    It may also have `labels(text) -> list[str]`, a name for each token that it embeds of a text, for heat maps.
    """

    @property
    def identity(self) -> Identity:
        """What decides the embeddings."""
        ...

    def on(self, device: str) -> Encoder:
        """The same encoder with its weights on `device` ("cpu", "cuda:1")."""
        ...

    def queries(self, texts: Sequence[str]) -> Embeddings:
        """Embeddings of query texts, in their order."""
        ...

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        """Embeddings of documents, in their order."""
        ...


def named_model(model: str) -> str:
    """How results call a model: its hub name, or the last part of a local folder."""
    return Path(model).name if Path(model).is_dir() else model


def model_revision(model: str, revision: str | None) -> str:
    """What fixes the weights: hash of a local folder's weight files, else the hub's commit behind `revision`.

    Raises:
        EncoderError: if the hub cannot be asked.
    """
    folder = Path(model)
    if folder.is_dir():
        digest = hashlib.sha256()
        for file in sorted(f for f in folder.rglob("*") if f.suffix in (".safetensors", ".bin", ".json")):
            digest.update(file.relative_to(folder).as_posix().encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return "sha256:" + digest.hexdigest()[:12]
    from huggingface_hub import HfApi, try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json", revision=revision or "main")
    if isinstance(cached, str):
        return Path(cached).parent.name  # the cache's folder of a commit is called by it
    with reachable(model, "huggingface_hub"):
        return str(HfApi().model_info(model, revision=revision).sha)


@contextmanager
def reachable(model: str, package: str) -> Iterator[None]:
    """Turns what loading a model raises, where its files cannot be had, into one clear message."""
    try:
        yield
    except OSError as error:  # of the hub, of the network, of the disk: all are OSErrors
        raise EncoderError(
            f"{model}: its weights cannot be had by {package}: {str(error).splitlines()[0]}. Download the model where "
            "there is a network, and name its folder instead; or bring embeddings made there (docs/encoders.md)."
        ) from error


def batches_by_length(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices grouped so that a padded batch holds at most `tokens` tokens, similar lengths together, longest first.

    An item longer than `tokens` is a batch of its own. The longest come first, so running out of memory shows at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    out: list[list[int]] = []
    for i in order:
        widest = lengths[out[-1][0]] if out else 0
        if out and widest * (len(out[-1]) + 1) <= tokens:
            out[-1].append(i)
        else:
            out.append([i])
    return out
