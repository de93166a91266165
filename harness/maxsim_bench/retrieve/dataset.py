"""What a retrieval data set is here: documents as a stream, queries, judgements, and where all of it came from.

Room: `retrieve`. May import: record, backends. Loaders in `retrieve/datasets/` build it; nothing else of the room
knows formats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Qrels = Mapping[str, Mapping[str, int]]


class DataError(ValueError):
    """Data that cannot be read as it stands; the message says which file and line, and what to do."""


@dataclass(frozen=True)
class Document:
    """One document: text, or a page image, or both.

    Attributes:
        id: as the judgements name it.
        title, text: "" where the source has none.
        image: encoded bytes (PNG, JPEG) of a page, or None.
    """

    id: str
    title: str = ""
    text: str = ""
    image: bytes | None = None

    @property
    def content(self) -> str:
        """Title and text joined by one space; the text alone where there is no title."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


@dataclass(frozen=True)
class Checks:
    """What was found while reading, all of it counted and none of it hidden.

    Attributes:
        unknown_documents: judged ids that no document has.
        unknown_queries: judged ids that no query has.
        without_relevant: queries whose judgements are all <= 0; left out of every mean.
        duplicate_judgements: judgements given more than once with the same grade, collapsed.
        repeated_texts: queries whose text another query has too (they are kept, by id).
    """

    unknown_documents: tuple[str, ...] = ()
    unknown_queries: tuple[str, ...] = ()
    without_relevant: tuple[str, ...] = ()
    duplicate_judgements: int = 0
    repeated_texts: int = 0


@dataclass(frozen=True)
class Dataset:
    """One split of a data set.

    Attributes:
        name, split: as asked for.
        document_ids: every document in the order of the stream.
        documents: returns a fresh stream over the documents; the corpus is never held as a whole.
        queries: id → text of the judged queries of this split, in the order of the source.
        qrels: query id → document id → grade; only pairs that exist on both sides.
        drop_own_id: whether a query that is itself a document loses its own id before the cut (ArguAna, Quora).
        corpus_hash, queries_hash: SHA-256 over ids and content, whatever file they came in.
        manifest: files with their hashes, revision, split, fields, rephrase level, versions: what a result records.
        checks: see `Checks`.
    """

    name: str
    split: str
    document_ids: list[str]
    documents: Callable[[], Iterator[Document]]
    queries: dict[str, str]
    qrels: Qrels
    corpus_hash: str
    queries_hash: str
    drop_own_id: bool = False
    manifest: dict[str, Any] = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks)

    @property
    def dataset_hash(self) -> str:
        """Sixteen hex digits over documents, queries and judgements: equal hashes are the same evaluation."""
        judged = json.dumps({q: dict(sorted(d.items())) for q, d in sorted(self.qrels.items())}, ensure_ascii=False)
        text = f"{self.corpus_hash}\n{self.queries_hash}\n{judged}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def build(
    name: str,
    split: str,
    documents: Callable[[], Iterator[Document]],
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    manifest: dict[str, Any],
    strict: bool = True,
    drop_own_id: bool | None = None,
    duplicate_judgements: int = 0,
) -> Dataset:
    """Check what a loader read and make it a `Dataset`; reads the documents once and keeps their ids.

    Args:
        queries: every query the source has; those without a judgement are left out.
        strict: an id in the judgements that no document or query has is an error; otherwise it is counted.
        drop_own_id: None takes the default of the name (`drops_own_id`).

    Raises:
        DataError: for duplicate documents, judgements that name ids which are nowhere (strict), or no overlap at all.
    """
    ids, corpus_hash = _scan(name, documents())
    known = set(ids)
    unknown_queries = tuple(q for q in qrels if q not in queries)
    unknown_documents = tuple(dict.fromkeys(d for judged in qrels.values() for d in judged if d not in known))
    kept = {q: {d: grade for d, grade in judged.items() if d in known} for q, judged in qrels.items() if q in queries}
    _require_overlap(name, kept, ids, queries, qrels)
    if strict and (unknown_queries or unknown_documents):
        raise DataError(
            f"{name} ({split}): judgements name {_some('queries', unknown_queries)} and "
            f"{_some('documents', unknown_documents)} that are in no file. Get the files that belong together, or pass "
            "strict=False to leave these judgements out and have them counted."
        )
    texts = {q: queries[q] for q in queries if q in kept}
    checks = Checks(
        unknown_documents=unknown_documents,
        unknown_queries=unknown_queries,
        without_relevant=tuple(q for q, judged in kept.items() if not any(g > 0 for g in judged.values())),
        duplicate_judgements=duplicate_judgements,
        repeated_texts=len(texts) - len(set(texts.values())),
    )
    return Dataset(
        name=name,
        split=split,
        document_ids=ids,
        documents=documents,
        queries=texts,
        qrels=kept,
        corpus_hash=corpus_hash,
        queries_hash=content_hash([q, text] for q, text in texts.items()),
        drop_own_id=drops_own_id(name) if drop_own_id is None else drop_own_id,
        manifest={"name": name, "split": split, **manifest},
        checks=checks,
    )


def drops_own_id(name: str) -> bool:
    """Whether queries of this collection are documents of it, which BEIR evaluates without the query's own id."""
    last = name.lower().replace("\\", "/").rstrip("/").split("/")[-1].split(".")[0]
    return last in ("arguana", "quora")


def content_hash(records: Iterable[Iterable[str | bytes]]) -> str:
    """SHA-256 over records of strings and bytes, each with its length in front, so that no two lists look alike."""
    digest = hashlib.sha256()
    for record in records:
        parts = [p if isinstance(p, bytes) else p.encode("utf-8", "surrogatepass") for p in record]
        digest.update(len(parts).to_bytes(8, "little"))
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _scan(name: str, documents: Iterator[Document]) -> tuple[list[str], str]:
    """Ids in order and the content hash; DataError for an id that comes twice."""
    ids: list[str] = []
    seen: set[str] = set()

    def records() -> Iterator[Iterable[str | bytes]]:
        for document in documents:
            if document.id in seen:
                raise DataError(f"{name}: document {document.id!r} is there twice. Remove one of them.")
            seen.add(document.id)
            ids.append(document.id)
            yield [document.id, document.title, document.text, document.image or b""]

    digest = content_hash(records())
    return ids, digest


def _require_overlap(name: str, kept: Qrels, ids: list[str], queries: Mapping[str, str], given: Qrels) -> None:
    """Judgements, queries and documents that share nothing are the wrong files, never a score of 0."""
    if any(kept.values()):
        return
    judged_query = next(iter(given), None)
    judged_document = next((d for judged in given.values() for d in judged), None)
    raise DataError(
        f"{name}: no judgement names both a query and a document of this collection: judged are {judged_query!r} and "
        f"{judged_document!r}, there are queries like {next(iter(queries), None)!r} and documents like "
        f"{next(iter(ids), None)!r}. These files do not belong together."
    )


def _some(what: str, ids: tuple[str, ...]) -> str:
    shown = ", ".join(repr(i) for i in ids[:3])
    return f"{len(ids)} {what}" + (f" ({shown}{', ...' if len(ids) > 3 else ''})" if ids else "")
