"""REAL-MM-RAG in both published formats, from the hub at a pinned revision or from a local copy in parquet.

Room: `retrieve`. May import: record, backends. "realmmrag:FinSlides" (BEIR format) or "realmmrag-qa:FinSlides" (QA
format); the
page text of FinSlides by OCR is a BEIR archive of its own, "finslides". A rephrase level 0 to 3 picks the query column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxsim_bench.record.provenance import file_hash
from maxsim_bench.retrieve.dataset import DataError, Dataset, Document, build
from maxsim_bench.retrieve.datasets.registry import DATA_ENV, Request

# Revisions of the BEIR-format repositories that mteb pins. The QA-format ones have none that anybody pins: give one.
REVISIONS = {
    "FinReport": "e66ef8cc883d823483db7b5b71065eb7c1dae12c",
    "FinSlides": "41167605aed3ab0ff342ac8f318163c6e59b8b31",
    "TechReport": "13642f1f8d39e032757f4d0ee73814452fc76d17",
    "TechSlides": "614ad5cac2edd86756045f04075d335a3825a692",
}
BEIR, QA = "realmmrag:", "realmmrag-qa:"
OWNER = "ibm-research"
BATCH_ROWS = 64  # pages in memory at a time: an image is a megabyte or so


@dataclass(frozen=True)
class _Source:
    """Parquet files of one subset.

    Attributes:
        folder: where they lie; tables are found below it by name.
        subset, qa, level, revision: what they are.
    """

    folder: Path
    subset: str
    qa: bool
    level: int
    revision: str

    @property
    def query_column(self) -> str:
        return "query" if self.level == 0 else f"rephrase_level_{self.level}"


class RealMmRag:
    """Loader of `realmmrag:SUBSET` and `realmmrag-qa:SUBSET`."""

    order = 10

    def claims(self, request: Request) -> bool:
        return request.name.startswith((BEIR, QA))

    def load(self, request: Request) -> Dataset:
        source = locate(request)
        return read_qa(source, request.strict) if source.qa else read_beir_tables(source, request.strict)


LOADER = RealMmRag()


def locate(request: Request) -> _Source:
    """The parquet files: `<data dir>/REAL-MM-RAG_<subset>[_BEIR]`, or a snapshot of the hub.

    Raises:
        DataError: for an unknown subset or level, files that are nowhere, or a hub that cannot be reached.
    """
    qa = request.name.startswith(QA)
    given = request.name.removeprefix(QA if qa else BEIR)
    subset = {s.lower(): s for s in REVISIONS}.get(given.lower())
    if subset is None:
        raise DataError(f"{request.name}: there is no subset {given!r}. Choose from {', '.join(REVISIONS)}.")
    level = _level(request)
    repository = f"REAL-MM-RAG_{subset}" + ("" if qa else "_BEIR")
    local = None if request.folder is None else request.folder / repository
    revision = request.revision or (None if qa else REVISIONS[subset])
    if local is not None and local.is_dir():
        return _Source(local, subset, qa, level, request.revision or "local copy")
    folder = _snapshot(repository, revision)
    return _Source(folder, subset, qa, level, revision or folder.name)


def _level(request: Request) -> int:
    level = request.level
    if level is None:
        text = (request.split or "L0").removeprefix("L")
        level = int(text) if text.isdigit() else -1 if text != "test" else 0
    if not 0 <= level <= 3:
        raise DataError(
            f"{request.name}: rephrase level {request.split or level!r}. There are levels 0 to 3 (L0 to L3)."
        )
    return level


def _snapshot(repository: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(
            f"{repository}: is in no local folder, and the hub needs huggingface_hub: pip install 'maxsim-bench[text]'."
        ) from error
    try:
        return Path(
            snapshot_download(
                f"{OWNER}/{repository}", repo_type="dataset", revision=revision, allow_patterns=["*.parquet", "*.md"]
            )
        )
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{OWNER}/{repository}: cannot be fetched from the hub: {str(error).splitlines()[:1]}. Where there is "
            f"a network: hf download --repo-type dataset {OWNER}/{repository} --local-dir {repository}; then name the "
            f"folder that holds {repository} in ${DATA_ENV}."
        ) from error


def read_beir_tables(source: _Source, strict: bool) -> Dataset:
    """BEIR format: tables corpus, queries and qrels; integer ids become strings."""
    corpus, queries, judged = (_tables(source.folder, name) for name in ("corpus", "queries", "qrels"))

    def documents() -> Iterator[Document]:
        for row in _rows(corpus, ("corpus-id",), ("image", "text")):
            yield Document(str(row["corpus-id"]), "", row.get("text") or "", _image_bytes(row.get("image")))

    texts = {
        str(row["query-id"]): row[source.query_column] for row in _rows(queries, ("query-id", source.query_column), ())
    }
    grades: dict[str, dict[str, int]] = {}
    for row in _rows(judged, ("query-id", "corpus-id", "score"), ()):
        _judge(source, grades, str(row["query-id"]), str(row["corpus-id"]), row["score"])
    return _build(source, documents, texts, grades, [*corpus, *queries, *judged], strict)


def read_qa(source: _Source, strict: bool) -> Dataset:
    """QA format: one row a page and question; a row without a question is a distractor page.

    Pages are told apart by `image_filename`; the one relevant page of a question is its own row's.
    """
    files = _tables(source.folder, "")

    def documents() -> Iterator[Document]:
        seen: set[str] = set()
        for row in _rows(files, ("image_filename",), ("image", "text")):
            name = str(row["image_filename"])
            if name not in seen:
                seen.add(name)
                yield Document(name, "", row.get("text") or "", _image_bytes(row.get("image")))

    texts: dict[str, str] = {}
    grades: dict[str, dict[str, int]] = {}
    for row in _rows(files, ("id", "image_filename", "query", source.query_column), ()):
        if row["query"] is None:
            continue
        query = str(row["id"])
        if query in texts:
            raise DataError(f"{source.folder}: id {query!r} is there twice. Get the files again.")
        texts[query] = row[source.query_column]
        grades[query] = {str(row["image_filename"]): 1}
    return _build(source, documents, texts, grades, files, strict)


def _build(
    source: _Source,
    documents: Callable[[], Iterator[Document]],
    texts: dict[str, Any],
    grades: dict[str, dict[str, int]],
    files: Sequence[Path],
    strict: bool,
) -> Dataset:
    """Queries without a text at this level are left out with their judgements, and counted in the manifest."""
    empty = [q for q, text in texts.items() if not text]
    kept = {q: str(text) for q, text in texts.items() if text}
    manifest = {
        "format": "REAL-MM-RAG QA" if source.qa else "REAL-MM-RAG BEIR",
        "revision": source.revision,
        "files": {p.relative_to(source.folder).as_posix(): file_hash(p) for p in files},
        "fields": ["image"],
        "level": source.level,
        "queries_without_this_level": len(empty),
    }
    name = (QA if source.qa else BEIR) + source.subset
    judged = {q: d for q, d in grades.items() if q not in set(empty)}
    return build(name, f"L{source.level}", documents, kept, judged, manifest=manifest, strict=strict, drop_own_id=False)


def _judge(source: _Source, grades: dict[str, dict[str, int]], query: str, document: str, score: Any) -> None:
    grade = float(score)
    if grade != int(grade):
        raise DataError(f"{source.folder}: query {query!r}, document {document!r}: score {score!r} is no whole number.")
    if grades.setdefault(query, {}).setdefault(document, int(grade)) != int(grade):
        raise DataError(
            f"{source.folder}: query {query!r}, document {document!r} is judged {grades[query][document]} and {score}."
        )


def _tables(folder: Path, config: str) -> list[Path]:
    """Parquet files of one config: those whose folder or name begins with it. All files for ""."""
    found = []
    for path in sorted(folder.rglob("*.parquet")):
        parts = path.relative_to(folder).parts
        if any(part == config or part.startswith((f"{config}-", f"{config}.")) for part in parts) or not config:
            found.append(path)
    if not found:
        raise DataError(f"{folder}: holds no parquet file of {config or 'any kind'}. Get the data set again.")
    return found


def _rows(files: Sequence[Path], needed: Sequence[str], wanted: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows of parquet files as dicts, some at a time; only the columns that are asked for are read."""
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]  # ships no type information
    except ImportError as error:
        raise DataError(
            "REAL-MM-RAG is published as parquet: pip install 'maxsim-bench[vision]' for pyarrow."
        ) from error
    for path in files:
        try:
            table = parquet.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: is no parquet file: {str(error).splitlines()[0]} Get it again.") from error
        have = table.schema_arrow.names
        absent = [c for c in needed if c not in have]
        if absent:
            raise DataError(f"{path}: has no column {', '.join(absent)}; it has {', '.join(have)}. Another format?")
        columns = list(dict.fromkeys([*needed, *(c for c in wanted if c in have)]))
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()


def _image_bytes(value: Any) -> bytes | None:
    """Encoded bytes of the hub's image column, a struct of bytes and path, or plain bytes."""
    data = value.get("bytes") if isinstance(value, dict) else value
    return bytes(data) if data is not None else None
