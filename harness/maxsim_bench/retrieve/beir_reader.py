"""Strict reader of BEIR files: `corpus.jsonl`, `queries.jsonl`, `qrels/<split>.tsv`, from a folder or an archive.

Room: `retrieve`. May import: record, backends. Written because the loader of the package `beir` was seen to lose the
first judgement of headerless files, to refuse byte-order marks, four columns and grades written 1.0, to overwrite
conflicting judgements and to keep integer ids. What this one accepts and refuses is the table in docs/semantics.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxsim_bench.retrieve.archive import Files, open_files
from maxsim_bench.retrieve.dataset import DataError, Dataset, Document, build

_BOM = b"\xef\xbb\xbf"
_QUERY_NAMES = ("query-id", "query_id", "qid", "topic")
_DOCUMENT_NAMES = ("corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "did", "pid", "passage-id")
# pytrec_eval counts documents by grade in an array as long as the largest grade: beyond, it takes gigabytes or says 0
LARGEST_GRADE = 1_000_000
_GRADE_NAMES = ("score", "relevance", "rel", "label", "grade", "judgement", "judgment")


def read_beir(
    path: Path,
    *,
    name: str | None = None,
    split: str = "test",
    strict: bool = True,
    manifest: dict[str, Any] | None = None,
) -> Dataset:
    """One split of a data set in BEIR layout.

    Args:
        path: folder or archive (.tar.gz, .tgz, .tar, .zip).
        name: what results call it; by default the name of the file or folder.
        split: which file of `qrels/`.
        strict: see `dataset.build`.
        manifest: further facts to record (revision, level).

    Raises:
        DataError: with file and line for everything that is not as the format says.
    """
    files = open_files(path)
    name = name or path.name.split(".")[0]
    corpus, queries_file, qrels_file = _find(files, split)
    judgements = read_qrels(files, qrels_file)
    queries = dict(_queries(files, queries_file))
    found = {n: files.sha256(n) for n in (corpus, queries_file, qrels_file)}
    return build(
        name,
        split,
        lambda: documents(files, corpus),
        queries,
        judgements.grades,
        manifest={"format": "beir", "files": found, "fields": ["title", "text"], **(manifest or {})},
        strict=strict,
        duplicate_judgements=judgements.duplicates,
    )


def _find(files: Files, split: str) -> tuple[str, str, str]:
    names = files.names()
    qrels = f"qrels/{split}.tsv"
    if qrels not in names:
        splits = sorted(n.removeprefix("qrels/").removesuffix(".tsv") for n in names if n.startswith("qrels/"))
        raise DataError(f"{files.label(qrels)}: no such split. There are: {', '.join(splits) or 'none'}.")
    found = []
    for stem in ("corpus", "queries"):
        if f"{stem}.jsonl" not in names:
            raise DataError(
                f"{files.label(stem + '.jsonl')}: is missing. A BEIR data set has corpus.jsonl and queries.jsonl."
            )
        found.append(f"{stem}.jsonl")
    return found[0], found[1], qrels


def documents(files: Files, name: str) -> Iterator[Document]:
    """The documents of a `corpus.jsonl`, one at a time."""
    for where, record in records(files, name):
        yield Document(_id(where, record), _text(where, record, "title"), _text(where, record, "text"))


def _queries(files: Files, name: str) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for where, record in records(files, name):
        query = _id(where, record)
        if query in seen:
            raise DataError(f"{where}: query {query!r} is there already, at {seen[query]}. Remove one of them.")
        seen[query] = where
        yield query, _text(where, record, "text")


def records(files: Files, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:line, object) for every non-blank line. Lines end at \\n only, so U+2028 stays inside its text."""
    for number, line in _lines(files, name):
        where = f"{files.label(name)}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:  # not JSON, or not UTF-8
            raise DataError(f"{where}: not a JSON object: {error}. Correct or remove the line.") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: {type(record).__name__}, not a JSON object. Correct or remove the line.")
        yield where, record


def _lines(files: Files, name: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes without line end) of every line that is not blank; a byte-order mark is dropped."""
    with files.open(name) as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(_BOM)
            line = line.rstrip(b"\r\n")
            if line.strip():
                yield number, line


def _id(where: str, record: dict[str, Any]) -> str:
    value = record.get("_id")
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise DataError(f"{where}: _id is {value!r}. Give it a non-empty string (integers are read as strings).")
    return str(value)


def _text(where: str, record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {key} is {type(value).__name__}, not a string. Correct the line.")
    return value


@dataclass(frozen=True)
class Judgements:
    """query id → document id → grade, and how many judgements were there more than once with the same grade."""

    grades: dict[str, dict[str, int]]
    duplicates: int


def read_qrels(files: Files, name: str) -> Judgements:
    """Judgements of a TSV or TREC file.

    With or without a header, three columns (query, document, grade) or four (query, iteration, document, grade; a
    header
    decides otherwise), separated by tabs or, where a line has none, by blanks. Ids are taken as they are: quotes mean
    nothing. A grade is a whole number, also written 1.0.

    Raises:
        DataError: with file and line, for another number of columns, a grade that is a fraction, a conflict between two
            judgements, a first line that is neither header nor judgement, or a file without judgements.
    """
    grades: dict[str, dict[str, int]] = {}
    places: dict[tuple[str, str], str] = {}
    duplicates = 0
    columns: tuple[int, int, int] | None = None
    width = 0
    for number, line in _lines(files, name):
        where = f"{files.label(name)}:{number}"
        fields = _fields(where, line)
        if columns is None:
            columns, is_header = _columns(where, fields)
            width = len(fields)
            if is_header:
                continue
        if len(fields) != width:
            raise DataError(f"{where}: {len(fields)} columns where the first line has {width}. Correct the line.")
        query, document, text = (fields[c] for c in columns)
        grade = _grade(where, text)
        if not query or not document:
            raise DataError(f"{where}: an id is empty. Correct or remove the line.")
        before = grades.setdefault(query, {}).setdefault(document, grade)
        if before != grade:
            raise DataError(
                f"{where}: query {query!r}, document {document!r} is judged {grade}, but {before} at "
                f"{places[query, document]}. Remove one of them."
            )
        duplicates += (query, document) in places
        places.setdefault((query, document), where)
    if not grades:
        raise DataError(f"{files.label(name)}: holds no judgement.")
    return Judgements(grades, duplicates)


def _fields(where: str, line: bytes) -> list[str]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from None
    return [f.strip() for f in text.split("\t")] if "\t" in text else text.split()


def _columns(where: str, fields: list[str]) -> tuple[tuple[int, int, int], bool]:
    """Places of query, document and grade, and whether this first line is a header."""
    if len(fields) not in (3, 4):
        raise DataError(
            f"{where}: {len(fields)} columns. Judgements have three (query, document, grade) or four (TREC)."
        )
    order = (0, 1, 2) if len(fields) == 3 else (0, 2, 3)
    if _is_number(fields[order[2]]):
        return order, False
    lower = [f.lower() for f in fields]
    named = [[i for i, f in enumerate(lower) if f in names] for names in (_QUERY_NAMES, _DOCUMENT_NAMES, _GRADE_NAMES)]
    if all(len(places) == 1 for places in named):
        return (named[0][0], named[1][0], named[2][0]), True
    raise DataError(
        f"{where}: {' | '.join(fields)} is neither a judgement nor a header such as query-id, corpus-id, score. "
        "Correct or remove the line."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _grade(where: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value):
        raise DataError(f"{where}: grade {text!r} is not a whole number. Grades are integers (1.0 is read as 1).")
    if abs(value) > LARGEST_GRADE:
        raise DataError(
            f"{where}: grade {text!r} is too large. Grades lie between -{LARGEST_GRADE} and {LARGEST_GRADE}."
        )
    return int(value)
