"""Data sets by their `ir_datasets` id, where that package is installed: "ir_datasets:beir/scifact/test".

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

from maxsim_bench.retrieve.dataset import DataError, Dataset, Document, build
from maxsim_bench.retrieve.datasets.registry import Request

PREFIX = "ir_datasets:"


class IrDatasets:
    """Loader of `ir_datasets:<id>`; the id names the split itself."""

    order = 20

    def claims(self, request: Request) -> bool:
        return request.name.startswith(PREFIX)

    def load(self, request: Request) -> Dataset:
        try:
            import ir_datasets
        except ImportError as error:
            raise DataError(f"{request.name}: needs the package ir_datasets: pip install ir-datasets.") from error
        identifier = request.name.removeprefix(PREFIX)
        try:
            source = ir_datasets.load(identifier)
        except KeyError:
            raise DataError(
                f"{request.name}: ir_datasets {metadata.version('ir_datasets')} knows no {identifier!r}. "
                "Its catalogue is at ir-datasets.com."
            ) from None
        return from_source(source, request)


LOADER = IrDatasets()


def from_source(source: Any, request: Request) -> Dataset:
    """A `Dataset` over any object with `docs_iter`, `queries_iter` and `qrels_iter` (ir_datasets' own interface)."""
    absent = [part for part in ("docs", "queries", "qrels") if not hasattr(source, f"{part}_iter")]
    if absent:
        raise DataError(
            f"{request.name}: has no {' and no '.join(absent)}. Name a part that has (a split, for example)."
        )

    def documents() -> Iterator[Document]:
        for record in source.docs_iter():
            yield Document(str(record.doc_id), getattr(record, "title", None) or "", _text(record, "doc"))

    grades: dict[str, dict[str, int]] = {}
    duplicates = 0
    for judged in source.qrels_iter():
        query, document, grade = str(judged.query_id), str(judged.doc_id), int(judged.relevance)
        known = grades.setdefault(query, {})
        duplicates += document in known
        if known.setdefault(document, grade) != grade:
            raise DataError(
                f"{request.name}: query {query!r}, document {document!r} is judged {known[document]} and {grade}."
            )
    queries = {str(q.query_id): _text(q, "query") for q in source.queries_iter()}
    return build(
        request.name,
        request.split or "as named",
        documents,
        queries,
        grades,
        manifest={"format": "ir_datasets", "id": request.name, "fields": ["title", "text"]},
        strict=request.strict,
        drop_own_id=any(part in ("arguana", "quora") for part in request.name.split("/")),
        duplicate_judgements=duplicates,
    )


def _text(record: Any, kind: str) -> str:
    """The record's `text`, or what ir_datasets itself takes for it (`default_text`)."""
    text = getattr(record, "text", None)
    if text is None and hasattr(record, "default_text"):
        text = record.default_text()
    if text is None:
        raise DataError(f"{kind} {record!r} has no text.")
    return str(text)
