"""Bring your own: token embeddings that somebody computed elsewhere, in a folder with a small documented format.

Room: `retrieve`. May import: record, backends. "precomputed:FOLDER". The format is in docs/encoders.md:

    encoder.json                 the fields of `Identity`: name, model, revision and d are required
    documents.ids.txt            one document id a line; line i is item i
    documents.safetensors        tensors `values` [T, d] (fp16, bf16 or fp32) and `lengths` [n] (integers that sum to
    T),
                                 or several: documents-*.safetensors, read in the order of their names
    documents.npy                instead: the values as a numpy array, with documents.lengths.npy beside it (or
                                 documents-*.npy with documents-*.lengths.npy)
    queries.*                    the same for queries
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxsim_bench.retrieve.dataset import Dataset, Document
from maxsim_bench.retrieve.embeddings import EmbeddingError, Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError, Identity, Role
from maxsim_bench.retrieve.encoders.registry import EncoderKind

if TYPE_CHECKING:
    import torch

PART_ITEMS = 512
_NORM_TOLERANCE = 1e-2  # of unit length, wide enough for bf16


@dataclass(frozen=True)
class Bundle:
    """Embeddings of a folder in the order of a data set, read item by item.

    Attributes:
        values: one [T_i, d] tensor a file, mapped, not read.
        starts: [n] first row of every item of the data set within its file.
        files: [n] index into `values`.
        lengths: [n] int32.
        d: embedding dimension.
    """

    values: list[torch.Tensor]
    starts: np.ndarray
    files: np.ndarray
    lengths: torch.Tensor
    d: int

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, items: Sequence[int]) -> Embeddings:
        """The named items, in the order given."""
        rows = []
        for i in items:
            start = int(self.starts[i])
            rows.append(self.values[int(self.files[i])][start : start + int(self.lengths[i])])
        return Embeddings.of(rows, self.d)

    def parts(self) -> Iterator[tuple[int, Embeddings]]:
        """(index of the first item, embeddings) of some hundred items at a time."""
        for first in range(0, len(self), PART_ITEMS):
            yield first, self.select(range(first, min(first + PART_ITEMS, len(self))))


class Precomputed:
    """The folder as an encoder: it answers for the ids it holds, and encodes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = _identity(folder)

    def on(self, device: str) -> Precomputed:
        return self

    def queries(self, texts: Sequence[str]) -> Embeddings:
        raise EncoderError(f"{self.folder}: holds embeddings by id, and encodes no new text.")

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        raise EncoderError(f"{self.folder}: holds embeddings by id, and encodes no new document.")

    def stored(self, dataset: Dataset, role: Role) -> Bundle:
        """The embeddings of the data set's documents or queries, in its order.

        Raises:
            EmbeddingError: if an id of the data set has none, or what is there is not as the format says.
        """
        stem, wanted = ("documents", dataset.document_ids) if role == "document" else ("queries", list(dataset.queries))
        values, lengths = _read(self.folder, stem, self.identity.d)
        ids = _ids(self.folder / f"{stem}.ids.txt")
        counts = [len(x) for x in lengths]
        if len(ids) != sum(counts):
            raise EmbeddingError(f"{self.folder}: {len(ids)} ids in {stem}.ids.txt for {sum(counts)} embeddings.")
        place = {name: i for i, name in enumerate(ids)}
        absent = [name for name in wanted if name not in place]
        if absent:
            raise EmbeddingError(
                f"{self.folder}: embeddings do not belong to {dataset.name}: {len(absent)} of {len(wanted)} {stem} "
                f"have none ({', '.join(map(repr, absent[:3]))}); it holds ids like {ids[0] if ids else None!r}."
            )
        files = np.repeat(np.arange(len(counts)), counts)
        starts = np.concatenate([np.cumsum(x) - x for x in lengths]) if lengths else np.zeros(0, dtype=np.int64)
        order = np.array([place[name] for name in wanted], dtype=np.int64)
        import torch

        every = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
        found = Bundle(
            values, starts[order], files[order], torch.from_numpy(every[order].astype(np.int32)), self.identity.d
        )
        _require_unit(self.folder, stem, self.identity, found)
        return found


def _identity(folder: Path) -> Identity:
    path = folder / "encoder.json"
    try:
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EncoderError(
            f"{path}: cannot be read: {error.strerror}. docs/encoders.md says what belongs there."
        ) from None
    except ValueError as error:
        raise EncoderError(f"{path}: not JSON: {error}.") from None
    known = [f.name for f in fields(Identity)]
    unknown = [k for k in given if k not in known]
    absent = [k for k in ("name", "model", "revision", "d") if not given.get(k)]
    if unknown or absent:
        told = [f"unknown: {', '.join(unknown)}"] if unknown else []
        told += [f"missing: {', '.join(absent)}"] if absent else []
        raise EncoderError(f"{path}: {'; '.join(told)}. Fields are {', '.join(known)}.")
    return Identity(**given)


def _ids(path: Path) -> list[str]:
    try:
        ids = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise EmbeddingError(f"{path}: cannot be read: {error.strerror}. It names the items, one id a line.") from None
    ids = [line.removesuffix("\r") for line in (ids[:-1] if ids[-1] == "" else ids)]
    seen: dict[str, int] = {}
    for number, name in enumerate(ids, start=1):
        if name in seen:
            raise EmbeddingError(f"{path}:{number}: id {name!r} is there already, on line {seen[name]}.")
        seen[name] = number
    return ids


def _read(folder: Path, stem: str, d: int) -> tuple[list[torch.Tensor], list[np.ndarray]]:
    """([T, d] values, [n] lengths) of every file of a role, in the order of their names."""
    import torch
    from safetensors import safe_open

    tensors, arrays = _files(folder, stem, ".safetensors"), _files(folder, stem, ".npy")
    if bool(tensors) == bool(arrays):
        raise EmbeddingError(
            f"{folder}: needs {stem}.safetensors or {stem}.npy (one kind of them), as docs/encoders.md says."
        )
    values: list[torch.Tensor] = []
    lengths: list[np.ndarray] = []
    for path in tensors:
        with safe_open(path, framework="pt") as file:
            if not {"values", "lengths"} <= set(file.keys()):
                raise EmbeddingError(f"{path}: holds {', '.join(file.keys())}; needed are values and lengths.")
            values.append(file.get_tensor("values"))
            lengths.append(file.get_tensor("lengths").numpy().astype(np.int64))
    for path in arrays:
        beside = path.with_name(path.name.removesuffix(".npy") + ".lengths.npy")
        if not beside.exists():
            raise EmbeddingError(f"{path}: its lengths are missing, {beside.name}.")
        # copy-on-write: torch wants a writable array, and nothing reaches the file
        values.append(torch.from_numpy(np.load(path, mmap_mode="c")))
        lengths.append(np.load(beside).astype(np.int64))
    for path, value, length in zip(tensors or arrays, values, lengths, strict=True):
        if value.ndim != 2 or value.shape[1] != d or not value.is_floating_point():
            raise EmbeddingError(f"{path}: values are {value.dtype} {tuple(value.shape)}; needed are floats [T, {d}].")
        if length.ndim != 1 or (length < 0).any() or int(length.sum()) != value.shape[0]:
            raise EmbeddingError(f"{path}: lengths sum to {int(length.sum())} for {value.shape[0]} rows of values.")
    return values, lengths


def _files(folder: Path, stem: str, suffix: str) -> list[Path]:
    found = [*folder.glob(f"{stem}{suffix}"), *folder.glob(f"{stem}-*{suffix}")]
    return sorted(p for p in found if not p.name.endswith(".lengths.npy"))


def _require_unit(folder: Path, stem: str, identity: Identity, bundle: Bundle) -> None:
    """A folder that says "l2" must hold unit vectors, checked on up to 64 items from end to end."""
    if identity.normalisation != "l2" or len(bundle) == 0:
        return
    sample = bundle.select(np.unique(np.linspace(0, len(bundle) - 1, 64).astype(int)).tolist())
    norms = sample.values.float().norm(dim=-1)
    if norms.numel() and not bool(((norms - 1).abs() < _NORM_TOLERANCE).all()):
        raise EmbeddingError(
            f"{folder}: {stem} have norms from {float(norms.min()):.3g} to {float(norms.max()):.3g}, but "
            'encoder.json says they are normalised. Normalise them, or write "normalisation": "none".'
        )


def _make(options: str, device: str) -> Precomputed:
    if not options:
        raise EncoderError("precomputed: which folder? Write precomputed:FOLDER.")
    return Precomputed(Path(options))


ENCODER = EncoderKind("precomputed", "precomputed:FOLDER", _make)
