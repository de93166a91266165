"""Embeddings on disk, found by what they are: content hash of the texts and identity of the encoder.

Room: `retrieve`. May import: record, backends. One folder an entry: `manifest.json` and safetensors shards of some
hundred
items each. A shard is in the manifest only once it is whole on the disk, with its SHA-256, so an interrupted run goes
on
where it stopped and a damaged shard is noticed and made again.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from maxsim_bench.record.files import hold, replace_file
from maxsim_bench.record.provenance import file_hash
from maxsim_bench.retrieve.dataset import Dataset, Document
from maxsim_bench.retrieve.embeddings import Corpus, EmbeddingError, Embeddings
from maxsim_bench.retrieve.encoders.base import Encoder, Role
from maxsim_bench.retrieve.paths import cache_dir

if TYPE_CHECKING:
    import torch

SHARD_ITEMS = 512
Progress = Callable[[int, int], None]


@runtime_checkable
class Holder(Protocol):
    """An encoder that holds embeddings by id instead of making them from text."""

    def stored(self, dataset: Dataset, role: Role) -> Corpus: ...


@dataclass(frozen=True)
class Shard:
    """One file of an entry."""

    file: str
    first: int
    items: int
    sha256: str


@dataclass(frozen=True)
class EmbeddingStore:
    """A finished entry: items in the order of their source, read shard by shard.

    Attributes:
        folder: of the entry.
        shards: in order; together they hold `count` items.
        lengths: [count] int32, tokens of every item.
        d: embedding dimension.
    """

    folder: Path
    shards: tuple[Shard, ...]
    lengths: torch.Tensor
    d: int

    def __len__(self) -> int:
        return int(self.lengths.shape[0])

    def parts(self) -> Iterator[tuple[int, Embeddings]]:
        """(index of the first item, embeddings) of every shard; one shard in memory at a time."""
        for shard in self.shards:
            yield shard.first, _read(self.folder / shard.file)

    def load(self) -> Embeddings:
        """Everything at once."""
        return Embeddings.concatenate([part for _, part in self.parts()])

    def select(self, items: Sequence[int]) -> Embeddings:
        """The named items, in the order given; reads only the shards that hold them."""
        found: dict[int, Embeddings] = {}
        for shard in self.shards:
            here = [i for i in dict.fromkeys(items) if shard.first <= i < shard.first + shard.items]
            if here:
                part = _read(self.folder / shard.file)
                found.update({i: part.select([i - shard.first]) for i in here})
        return Embeddings.concatenate([found[i] for i in items])


def document_embeddings(
    dataset: Dataset, encoder: Encoder, devices: Sequence[str] = ("cpu",), progress: Progress | None = None
) -> Corpus:
    """Embeddings of every document: what the encoder holds itself, from the cache, or encoded now on all `devices`."""
    if isinstance(encoder, Holder):
        return encoder.stored(dataset, "document")
    count = len(dataset.document_ids)
    return embed("document", dataset.documents(), count, dataset.corpus_hash, encoder, devices, progress)


def query_embeddings(dataset: Dataset, encoder: Encoder, devices: Sequence[str] = ("cpu",)) -> Embeddings:
    """Embeddings of every query, in the order of `dataset.queries`."""
    if isinstance(encoder, Holder):
        return encoder.stored(dataset, "query").select(range(len(dataset.queries)))
    texts = dataset.queries.values()
    return embed("query", iter(texts), len(texts), dataset.queries_hash, encoder, devices).load()


def embed(
    role: Role,
    items: Iterator[Document] | Iterator[str],
    count: int,
    content_hash: str,
    encoder: Encoder,
    devices: Sequence[str] = ("cpu",),
    progress: Progress | None = None,
    *,
    folder: Path | None = None,
    shard_items: int = SHARD_ITEMS,
) -> EmbeddingStore:
    """The entry of these items under this encoder, encoding what it does not hold yet.

    Args:
        items: a fresh stream over all items, read once; items of shards that are there already are skipped.
        content_hash: of the items; with the encoder's identity it names the entry.
        devices: encoders run on all of them at once, a shard each.
        folder: of all entries; default below `cache_dir()`.

    Raises:
        EmbeddingError: if the encoder returns another number of items than it was given.
        StoreError: if the disk is full. Where another process writes the same entry, it is waited for.
    """
    identity = encoder.identity
    entry = (folder or cache_dir() / "embeddings") / f"{role}-{content_hash[:16]}-{identity.hash()}"
    about = {"role": role, "content_hash": content_hash, "count": count, "encoder": asdict(identity)}
    with hold(entry / "lock", what=str(entry), wait=True):  # a second process finds it finished
        writer = _Writer(entry, {**about, "shard_items": shard_items})
        writer.encode(role, items, encoder, devices, progress)
    return open_entry(entry)


def open_entry(entry: Path) -> EmbeddingStore:
    """A finished entry; EmbeddingError if it is not finished or a shard is not what was written."""
    manifest = _read_manifest(entry)
    if manifest is None:
        raise EmbeddingError(f"{entry}: holds no manifest.json of embeddings. Encode them again.")
    shards = tuple(sorted((Shard(**s) for s in manifest["shards"]), key=lambda s: s.first))
    if sum(s.items for s in shards) != manifest["count"]:
        raise EmbeddingError(
            f"{entry}: holds {sum(s.items for s in shards)} of {manifest['count']} items. Encode again."
        )
    import torch

    lengths = []
    for shard in shards:
        if not _whole(entry, shard):
            raise EmbeddingError(f"{entry / shard.file}: its checksum is not that of what was written. Encode again.")
        lengths.append(_read(entry / shard.file).lengths)
    all_lengths = torch.cat(lengths) if lengths else torch.zeros(0, dtype=torch.int32)
    return EmbeddingStore(entry, shards, all_lengths, manifest["encoder"]["d"])


class _Writer:
    """Fills one entry, shard by shard, under its lock."""

    def __init__(self, entry: Path, about: dict[str, Any]) -> None:
        self.entry, self.about = entry, about
        known = _read_manifest(entry)
        self.shards: dict[int, Shard] = {}
        if known is not None and known["shard_items"] == about["shard_items"] and known["count"] == about["count"]:
            for shard in (Shard(**s) for s in known["shards"]):
                if _whole(entry, shard):
                    self.shards[shard.first] = shard
                else:
                    warnings.warn(f"{entry / shard.file}: damaged, and encoded again", stacklevel=4)

    def encode(
        self,
        role: Role,
        items: Iterator[Any],
        encoder: Encoder,
        devices: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Encode the shards that are missing, one at a time on each device."""
        count, size = self.about["count"], self.about["shard_items"]
        missing = [first for first in range(0, count, size) if first not in self.shards]
        if not missing:
            self._save()
            return
        free: SimpleQueue[Encoder] = SimpleQueue()
        for device in devices:
            free.put(encoder.on(device))

        def one(first: int, batch: list[Any]) -> tuple[int, Embeddings]:
            replica = free.get()
            try:
                return first, replica.queries(batch) if role == "query" else replica.documents(batch)
            finally:
                free.put(replica)

        with ThreadPoolExecutor(len(devices)) as pool:
            running: set[Future[tuple[int, Embeddings]]] = set()
            for first in range(0, count, size):
                batch = list(islice(items, size))
                if len(batch) != min(size, count - first):
                    raise EmbeddingError(f"{self.entry}: the stream ended at item {first + len(batch)} of {count}.")
                if first not in missing:
                    continue
                running.add(pool.submit(one, first, batch))
                if len(running) > len(devices):  # one shard waits, so no device does
                    running = self._collect(running, progress)
            while running:
                running = self._collect(running, progress)

    def _collect(
        self, running: set[Future[tuple[int, Embeddings]]], progress: Progress | None
    ) -> set[Future[tuple[int, Embeddings]]]:
        done, rest = wait(running, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda f: f.exception() is not None):  # what succeeded is kept before one raises
            self._write(*future.result())
        if progress is not None:
            progress(sum(s.items for s in self.shards.values()), self.about["count"])
        return rest

    def _write(self, first: int, embeddings: Embeddings) -> None:
        from safetensors.torch import save

        expected = min(self.about["shard_items"], self.about["count"] - first)
        if len(embeddings) != expected or embeddings.d != self.about["encoder"]["d"]:
            raise EmbeddingError(
                f"the encoder returned {len(embeddings)} items of width {embeddings.d} for {expected} items of width "
                f"{self.about['encoder']['d']}"
            )
        path = self.entry / f"shard-{first:08d}.safetensors"
        replace_file(path, save({"values": embeddings.values.contiguous(), "lengths": embeddings.lengths}))
        self.shards[first] = Shard(path.name, first, expected, file_hash(path))
        self._save()

    def _save(self) -> None:
        text = json.dumps({**self.about, "shards": [asdict(self.shards[f]) for f in sorted(self.shards)]}, indent=1)
        replace_file(self.entry / "manifest.json", text.encode())


def _read_manifest(entry: Path) -> dict[str, Any] | None:
    path = entry / "manifest.json"
    if not path.exists():
        return None
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def _whole(entry: Path, shard: Shard) -> bool:
    path = entry / shard.file
    return path.is_file() and file_hash(path) == shard.sha256


def _read(path: Path) -> Embeddings:
    from safetensors.torch import load_file

    tensors = load_file(path)
    return Embeddings(tensors["values"], tensors["lengths"])
