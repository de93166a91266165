"""The reader takes every spelling of a right file and names file and line of a wrong one."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from maxsim_bench.retrieve.archive import open_files
from maxsim_bench.retrieve.beir_reader import read_beir, read_qrels
from maxsim_bench.retrieve.dataset import DataError

TWO = {"q1": {"d1": 1}, "q2": {"d2": 1}}


@pytest.mark.parametrize(
    "qrels",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
        "q1\td1\t1\nq2\td2\t1\n",
        "q1\t0\td1\t1\nq2\t0\td2\t1\n",
        "q1 0 d1 1\nq2 0 d2 1\n",
        "q1\td1\t1.0\nq2\td2\t1.0\n",
        "\nq1\td1\t1\n\n\nq2\td2\t1\n\n",
        "q1\td1\t1\r\nq2\td2\t1\r\n",
        "\ufeffq1\td1\t1\nq2\td2\t1\n",
        "\ufeffquery-id\tcorpus-id\tscore\r\nq1\td1\t1\r\nq2\td2\t1\r\n",
        "q1\td1\t1\nq2\td2\t1",
        "q1\td1\t1\nq2\td2\t1\nq1\td1\t1\n",
        "query_id\titer\tdoc_id\trelevance\nq1\t0\td1\t1\nq2\t0\td2\t1\n",
        "corpus-id\tquery-id\tscore\nd1\tq1\t1\nd2\tq2\t1\n",
    ],
    ids=[
        "with a header", "without a header, both judgements are there", "four columns", "TREC's blanks",
        "grades written 1.0", "blank lines", "CRLF", "byte-order mark", "all at once", "no newline at the end",
        "the same judgement twice", "TREC header", "columns by their names",
    ],
)  # fmt: skip
def test_judgements_are_read_however_they_are_written(beir_folder, qrels: str) -> None:
    assert read_beir(beir_folder(qrels=qrels)).qrels == TWO


@pytest.mark.parametrize(
    ("qrels", "told"),
    [
        ("q1\td1\t1\nq2\td2\t1\nq1\td1\t0\n", r"test\.tsv:3: query 'q1', document 'd1' is judged 0, but 1 at .*:1"),
        ("q1\td1\t1\nq2\td2\t0.5\n", r"test\.tsv:2: grade '0\.5' is not a whole number"),
        ("q1\td1\t1\nq2\td2\tnan\n", r"test\.tsv:2: grade 'nan'"),
        ("q1\td1\t1\nq2\td2\tgood\n", r"test\.tsv:2: grade 'good'"),
        ("q1\td1\t1\nq2\td2\n", r"test\.tsv:2: 2 columns where the first line has 3"),
        ("q1\td1\n", r"test\.tsv:1: 2 columns"),
        ("q1\td1\tx\nq2\td2\t1\n", r"test\.tsv:1: q1 \| d1 \| x is neither a judgement nor a header"),
        ("q1\t\t1\n", r"test\.tsv:1: an id is empty"),
        ("q1\td1\t99999999999\nq2\td2\t1\n", r"test\.tsv:1: grade '99999999999' is too large"),
        ("query-id\tcorpus-id\tscore\n", "holds no judgement"),
        (b"q1\td1\t1\n\xff\xfe\td2\t1\n", r"test\.tsv:2: byte 0 is not UTF-8"),
        ("x1\ty1\t1\n", "no judgement names both"),
    ],
)
def test_wrong_judgements_are_told_with_file_and_line(beir_folder, qrels, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read_beir(beir_folder(qrels=qrels))


def test_a_grade_of_zero_or_less_is_judged_and_gains_nothing(beir_folder) -> None:
    made = read_beir(beir_folder(qrels="q1\td1\t0\nq1\td2\t-1\nq2\td2\t2\n"))
    assert made.qrels == {"q1": {"d1": 0, "d2": -1}, "q2": {"d2": 2}}
    assert made.checks.without_relevant == ("q1",)


def test_duplicate_judgements_are_counted(beir_folder) -> None:
    made = read_beir(beir_folder(qrels="q1\td1\t1\nq1\td1\t1.0\nq1\td1\t1\nq2\td2\t1\n"))
    assert made.checks.duplicate_judgements == 2


def test_an_id_that_begins_with_a_quote_is_an_id(beir_folder) -> None:
    corpus = json.dumps({"_id": '"d1', "text": "x"}) + "\n" + json.dumps({"_id": "d2", "text": "y"}) + "\n"
    made = read_beir(beir_folder(corpus=corpus, qrels='q1\t"d1\t1\nq2\td2\t1\n'))
    assert made.qrels["q1"] == {'"d1': 1}


def test_integer_ids_match_string_ids(beir_folder) -> None:
    made = read_beir(
        beir_folder(
            corpus='{"_id": 7, "text": "seven"}\n{"_id": 12, "text": "twelve"}\n',
            queries='{"_id": 1, "text": "which"}\n',
            qrels="1\t7\t1\n",
        )
    )
    assert made.document_ids == ["7", "12"]
    assert made.qrels == {"1": {"7": 1}}


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_line_separator_inside_a_text_does_not_end_the_record(beir_folder, mark: str) -> None:
    corpus = json.dumps({"_id": "d1", "text": f"a{mark}b"}, ensure_ascii=False) + '\n{"_id": "d2", "text": "c"}\n'
    made = read_beir(beir_folder(corpus=corpus))
    assert [d.text for d in made.documents()] == [f"a{mark}b", "c"]


def test_a_missing_title_or_text_is_empty_and_never_the_word_none(beir_folder) -> None:
    corpus = (
        '{"_id": "d1", "text": "only text"}\n{"_id": "d2", "title": null, "text": null}\n{"_id": "d3", "title": "T"}\n'
    )
    made = read_beir(beir_folder(corpus=corpus))
    assert [d.content for d in made.documents()] == ["only text", "", "T"]


def test_bom_crlf_and_blank_lines_in_the_corpus_are_read(beir_folder) -> None:
    corpus = '\ufeff{"_id": "d1", "text": "one"}\r\n\r\n{"_id": "d2", "text": "two"}'
    assert [(d.id, d.text) for d in read_beir(beir_folder(corpus=corpus)).documents()] == [("d1", "one"), ("d2", "two")]


@pytest.mark.parametrize(
    ("corpus", "told"),
    [
        ('{"_id": "d1", "text": "x"}\n{"_id": "d2"\n', r"corpus\.jsonl:2: not a JSON object"),
        ('{"_id": "d1"}\n["d2"]\n', r"corpus\.jsonl:2: list, not a JSON object"),
        ('{"text": "x"}\n', r"corpus\.jsonl:1: _id is None"),
        ('{"_id": true}\n', r"corpus\.jsonl:1: _id is True"),
        ('{"_id": 1.5}\n', r"corpus\.jsonl:1: _id is 1\.5"),
        ('{"_id": "d1", "text": 5}\n', r"corpus\.jsonl:1: text is int"),
        ('{"_id": "d1"}\n{"_id": "d2"}\n{"_id": "d1"}\n', "document 'd1' is there twice"),
    ],
)
def test_a_wrong_document_is_told_with_file_and_line(beir_folder, corpus: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read_beir(beir_folder(corpus=corpus))


def test_a_query_twice_is_an_error_that_names_both_lines(beir_folder) -> None:
    queries = '{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "b"}\n{"_id": "q1", "text": "c"}\n'
    with pytest.raises(DataError, match=r"queries\.jsonl:3: query 'q1' is there already, at .*:1"):
        read_beir(beir_folder(queries=queries))


def test_judgements_of_unknown_ids_are_an_error_or_counted_where_asked(beir_folder) -> None:
    folder = beir_folder(qrels="q1\td1\t1\nq1\td9\t1\nq8\td1\t1\n")
    with pytest.raises(DataError, match=r"1 queries \('q8'\) and 1 documents \('d9'\)"):
        read_beir(folder)
    made = read_beir(folder, strict=False)
    assert made.qrels == {"q1": {"d1": 1}}
    assert made.checks.unknown_documents == ("d9",)
    assert made.checks.unknown_queries == ("q8",)


def test_only_judged_queries_of_the_split_are_asked(beir_folder) -> None:
    folder = beir_folder(qrels="q1\td1\t1\n")
    beir_folder(qrels="q2\td2\t1\n", split="train")
    assert list(read_beir(folder).queries) == ["q1"]
    assert list(read_beir(folder, split="train").queries) == ["q2"]
    with pytest.raises(DataError, match="There are: test, train"):
        read_beir(folder, split="dev")


def _tar(folder: Path, path: Path, top: str) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                data = file.read_bytes()
                info = tarfile.TarInfo(f"{top}{file.relative_to(folder).as_posix()}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("top", ["", "small/"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_an_archive_is_the_same_data_set_as_its_folder(beir_folder, tmp_path: Path, kind: str, top: str) -> None:
    folder = beir_folder()
    path = tmp_path / f"packed.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.rglob("*"):
                if file.is_file():
                    archive.write(file, f"{top}{file.relative_to(folder).as_posix()}")
    else:
        _tar(folder, path, top)
    packed, unpacked = read_beir(path, name="small"), read_beir(folder)
    assert packed.dataset_hash == unpacked.dataset_hash
    assert packed.manifest == unpacked.manifest
    assert list(packed.documents()) == list(unpacked.documents()) == list(packed.documents())


def test_a_broken_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(DataError, match="cannot be read as an archive"):
        read_beir(tmp_path / "x.tar.gz")


def test_the_hash_follows_the_content_and_not_the_spelling(beir_folder) -> None:
    one = read_beir(beir_folder())
    same = read_beir(beir_folder(qrels="q1\td1\t1\nq2\td2\t1\n"))
    other = read_beir(beir_folder(qrels="q1\td1\t1\nq2\td2\t2\n"))
    assert one.dataset_hash == same.dataset_hash != other.dataset_hash
    assert one.corpus_hash == other.corpus_hash
    moved = read_beir(beir_folder(corpus='{"_id": "d1", "text": "T one"}\n{"_id": "d2", "text": "two"}\n'))
    assert moved.corpus_hash != one.corpus_hash, "title and text are told apart"


def test_the_manifest_names_every_file_with_its_hash(beir_folder) -> None:
    manifest = read_beir(beir_folder()).manifest
    assert sorted(manifest["files"]) == ["corpus.jsonl", "qrels/test.tsv", "queries.jsonl"]
    assert all(len(h) == 64 for h in manifest["files"].values())
    assert manifest["split"] == "test"


def test_ids_with_blanks_survive_a_file_of_tabs(beir_folder) -> None:
    files = open_files(beir_folder(qrels="query one\tdoc one\t1\n"))
    assert read_qrels(files, "qrels/test.tsv").grades == {"query one": {"doc one": 1}}
