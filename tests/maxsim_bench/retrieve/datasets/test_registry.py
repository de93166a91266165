"""A name finds its data set: by path, in a folder, by download; or the message says where it was looked for."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from maxsim_bench.retrieve.dataset import DataError, drops_own_id
from maxsim_bench.retrieve.datasets import beir
from maxsim_bench.retrieve.datasets.irdatasets import from_source
from maxsim_bench.retrieve.datasets.registry import Request, load_dataset


def test_a_path_is_read_where_it_lies(beir_folder) -> None:
    made = load_dataset(str(beir_folder()))
    assert made.name == "small"
    assert made.document_ids == ["d1", "d2"]


def test_a_name_is_found_in_the_data_folder_or_the_environments(beir_folder, tmp_path: Path, monkeypatch) -> None:
    beir_folder(name="mine")
    assert load_dataset("mine", data_dir=tmp_path).name == "mine"
    monkeypatch.setenv("MAXSIM_BENCH_DATA", str(tmp_path))
    assert load_dataset("mine").document_ids == ["d1", "d2"]
    shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path / "mine")
    assert load_dataset("packed").document_ids == ["d1", "d2"]


def test_a_name_that_is_nowhere_is_told_with_the_places_and_the_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data set of that name in .*MAXSIM_BENCH_DATA.*scifact"):
        load_dataset("scifakt", data_dir=tmp_path)


def test_a_known_name_is_downloaded_by_beir_and_read_by_us(beir_folder, monkeypatch) -> None:
    """A headerless file, which the package's own loader would cut."""
    source = beir_folder(qrels="q1\td1\t1\nq2\td2\t1\n", name="source")
    asked: list[tuple[str, str]] = []

    def download_and_unzip(url: str, folder: str) -> str:
        asked.append((url, folder))
        return str(shutil.copytree(source, Path(folder) / "scifact"))

    monkeypatch.setitem(sys.modules, "beir", types.ModuleType("beir"))
    util = types.ModuleType("beir.util")
    util.download_and_unzip = download_and_unzip
    monkeypatch.setitem(sys.modules, "beir.util", util)
    made = load_dataset("scifact")
    assert asked[0][0].endswith("/scifact.zip")
    assert made.qrels == {"q1": {"d1": 1}, "q2": {"d2": 1}}
    load_dataset("scifact")
    assert len(asked) == 1, "the second time it is in the cache"


def test_a_download_that_fails_says_what_to_do_and_leaves_nothing(cache: Path, monkeypatch) -> None:
    def download_and_unzip(url: str, folder: str) -> str:
        (Path(folder) / "nfcorpus.zip").write_bytes(b"half")
        raise ConnectionError("unreachable")

    monkeypatch.setitem(sys.modules, "beir", types.ModuleType("beir"))
    util = types.ModuleType("beir.util")
    util.download_and_unzip = download_and_unzip
    monkeypatch.setitem(sys.modules, "beir.util", util)
    with pytest.raises(DataError, match=r"failed: unreachable\. Put the archive into a folder"):
        load_dataset("nfcorpus")
    assert not list((cache / "datasets").iterdir())


def test_a_missing_package_is_told_with_its_install_line(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "beir.util", None)
    with pytest.raises(DataError, match=r"pip install 'maxsim-bench\[text\]'"):
        beir.download("scifact", Path("unused"))


def test_a_known_data_set_that_is_not_here_is_told_with_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"It is LIMIT-small .* on the Hugging Face hub as orionweller/LIMIT-small\."):
        load_dataset("limit-small", data_dir=tmp_path)


def test_the_level_of_finslides_is_its_split(beir_folder, tmp_path: Path) -> None:
    for level in (0, 3):
        beir_folder(name="realmmrag_finslides_text", split=f"L{level}", qrels=f"q{1 + level // 3}\td1\t1\n")
    by_level = load_dataset("finslides", level=3, data_dir=tmp_path)
    by_split = load_dataset("finslides", "L3", data_dir=tmp_path)
    assert by_level.dataset_hash == by_split.dataset_hash
    assert by_level.manifest["level"] == by_split.manifest["level"] == 3
    with pytest.raises(DataError, match="which split"):
        load_dataset("finslides", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "drops"), [("arguana", True), ("Quora", True), ("/some/where/arguana.tar.gz", True), ("scifact", False)]
)
def test_collections_whose_queries_are_documents_drop_the_own_id(name: str, drops: bool) -> None:
    assert drops_own_id(name) is drops


def test_ir_datasets_records_become_a_data_set() -> None:
    source = SimpleNamespace(
        docs_iter=lambda: iter(
            [SimpleNamespace(doc_id=1, text="one", title=None), SimpleNamespace(doc_id="2", text="two")]
        ),
        queries_iter=lambda: iter([SimpleNamespace(query_id=7, text="which")]),
        qrels_iter=lambda: iter([SimpleNamespace(query_id=7, doc_id=1, relevance=1)] * 2),
    )
    made = from_source(source, Request("ir_datasets:beir/arguana"))
    assert made.document_ids == ["1", "2"]
    assert made.qrels == {"7": {"1": 1}}
    assert made.drop_own_id
    assert made.checks.duplicate_judgements == 1
    without = SimpleNamespace(docs_iter=source.docs_iter)
    with pytest.raises(DataError, match="has no queries and no qrels"):
        from_source(without, Request("ir_datasets:x"))


def test_ir_datasets_that_is_not_installed_is_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(DataError, match="pip install ir-datasets"):
        load_dataset("ir_datasets:beir/scifact/test")
