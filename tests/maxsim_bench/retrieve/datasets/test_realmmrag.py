"""REAL-MM-RAG is read in both published formats, at every rephrase level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.datasets import realmmrag
from maxsim_bench.retrieve.datasets.registry import load_dataset

pyarrow = pytest.importorskip("pyarrow", reason="pip install 'maxsim-bench[vision]'")


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _image(n: int) -> dict[str, Any]:
    return {"bytes": bytes([n]) * 4, "path": None}


def _query(i: int, text: str) -> dict[str, Any]:
    levels = {f"rephrase_level_{n}": f"{text} {n}" for n in (1, 2, 3)}
    return {"query-id": i, "query": text, **levels, "language": "en"}


@pytest.fixture
def beir_format(tmp_path: Path) -> Path:
    """Two pages in two files, two queries, integer ids, as the hub's parquet branch lays them out."""
    folder = tmp_path / "REAL-MM-RAG_FinSlides_BEIR"
    for n in (0, 1):
        page = {"corpus-id": n, "image": _image(n), "image_filename": f"p{n}.png", "doc-id": "x"}
        _write(folder / "corpus" / f"test-0000{n}-of-00002.parquet", [page])
    _write(folder / "queries" / "test-00000-of-00001.parquet", [_query(5, "who"), _query(6, "what")])
    judged = [{"query-id": 5 + n, "corpus-id": n, "answer": "a", "score": 1} for n in (0, 1)]
    _write(folder / "qrels" / "test-00000-of-00001.parquet", judged)
    return tmp_path


@pytest.fixture
def qa_format(tmp_path: Path) -> Path:
    """Three pages, one of them a distractor; one page has two questions; one question has no level 3."""
    rows = []
    for i, (page, text) in enumerate([("a", "who"), ("b", None), ("a", "what"), ("c", "where")]):
        levels: dict[str, Any] = {f"rephrase_level_{n}": text and f"{text} {n}" for n in (1, 2, 3)}
        if text == "where":
            levels["rephrase_level_3"] = None
        page_columns = {"image": _image(ord(page)), "image_filename": f"{page}.png"}
        rows.append({"id": i, **page_columns, "query": text, **levels, "answer": "x"})
    _write(tmp_path / "REAL-MM-RAG_TechReport" / "data" / "test-00000-of-00001.parquet", rows)
    return tmp_path


def test_the_beir_format_casts_ids_and_keeps_images(beir_format: Path) -> None:
    made = load_dataset("realmmrag:FinSlides", data_dir=beir_format)
    assert made.document_ids == ["0", "1"]
    assert [d.image for d in made.documents()] == [b"\x00" * 4, b"\x01" * 4]
    assert made.queries == {"5": "who", "6": "what"}
    assert made.qrels == {"5": {"0": 1}, "6": {"1": 1}}
    assert not made.drop_own_id


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_level_picks_its_rephrasing_and_is_recorded(beir_format: Path, level: int) -> None:
    made = load_dataset("realmmrag:finslides", level=level, data_dir=beir_format)
    assert made.queries == {"5": f"who {level}", "6": f"what {level}"}
    assert made.manifest["level"] == level
    assert made.split == f"L{level}"
    assert len(made.manifest["files"]) == 4
    assert load_dataset("realmmrag:FinSlides", f"L{level}", data_dir=beir_format).dataset_hash == made.dataset_hash


def test_a_row_without_a_question_is_a_page_and_no_query(qa_format: Path) -> None:
    made = load_dataset("realmmrag-qa:TechReport", data_dir=qa_format)
    assert made.document_ids == ["a.png", "b.png", "c.png"]
    assert made.queries == {"0": "who", "2": "what", "3": "where"}
    assert made.qrels == {"0": {"a.png": 1}, "2": {"a.png": 1}, "3": {"c.png": 1}}


def test_a_question_without_that_level_is_left_out_and_counted(qa_format: Path) -> None:
    made = load_dataset("realmmrag-qa:TechReport", level=3, data_dir=qa_format)
    assert list(made.queries) == ["0", "2"]
    assert made.manifest["queries_without_this_level"] == 1


def test_the_hub_is_asked_for_the_pinned_revision(beir_format: Path, monkeypatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(beir_format / "REAL-MM-RAG_FinSlides_BEIR")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    made = load_dataset("realmmrag:FinSlides")
    assert asked["repository"] == "ibm-research/REAL-MM-RAG_FinSlides_BEIR"
    assert asked["revision"] == realmmrag.REVISIONS["FinSlides"] == made.manifest["revision"]
    load_dataset("realmmrag:FinSlides", revision="abc")
    assert asked["revision"] == "abc"


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    told = r"no route.*hf download --repo-type dataset ibm-research/REAL-MM-RAG_TechSlides_BEIR"
    with pytest.raises(DataError, match=told):
        load_dataset("realmmrag:TechSlides")


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("realmmrag:Slides", {}, "FinReport, FinSlides, TechReport, TechSlides"),
        ("realmmrag:FinSlides", {"level": 4}, "levels 0 to 3"),
        ("realmmrag:FinSlides", {"split": "train"}, "levels 0 to 3"),
    ],
)
def test_a_subset_or_level_that_is_not_there_is_told(beir_format: Path, name: str, options, told: str) -> None:
    with pytest.raises(DataError, match=told):
        load_dataset(name, data_dir=beir_format, **options)


def test_a_file_of_another_format_is_told_by_its_columns(beir_format: Path) -> None:
    _write(beir_format / "REAL-MM-RAG_FinSlides_BEIR" / "queries" / "test-00000-of-00001.parquet", [{"qid": 1}])
    with pytest.raises(DataError, match="has no column query-id, query; it has qid"):
        load_dataset("realmmrag:FinSlides", data_dir=beir_format)


def test_a_file_that_is_no_parquet_is_told(beir_format: Path) -> None:
    (beir_format / "REAL-MM-RAG_FinSlides_BEIR" / "qrels" / "test-00000-of-00001.parquet").write_bytes(
        b"version https://git-lfs"
    )
    with pytest.raises(DataError, match="is no parquet file"):
        load_dataset("realmmrag:FinSlides", data_dir=beir_format)


def test_conflicting_judgements_are_an_error(beir_format: Path) -> None:
    judged = [{"query-id": 5, "corpus-id": 0, "answer": "a", "score": s} for s in (1, 0)]
    _write(beir_format / "REAL-MM-RAG_FinSlides_BEIR" / "qrels" / "test-00000-of-00001.parquet", judged)
    with pytest.raises(DataError, match="is judged 1 and 0"):
        load_dataset("realmmrag:FinSlides", data_dir=beir_format)
