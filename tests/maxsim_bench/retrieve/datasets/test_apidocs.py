"""The embedded collection is made of installed documentation, the same for the same versions and seed."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.datasets.apidocs import MODULES, _first_sentence, _without_name, _without_signature
from maxsim_bench.retrieve.datasets.registry import load_dataset
from maxsim_bench.retrieve.metrics import evaluate


@pytest.fixture(scope="module")
def apidocs():
    return load_dataset("apidocs")


def test_the_default_has_a_thousand_documents_and_two_hundred_queries(apidocs) -> None:
    assert len(apidocs.document_ids) == 1000
    assert len(apidocs.queries) == 200
    assert all(any(d.values()) for d in apidocs.qrels.values())


def test_it_is_the_same_again_and_another_under_another_seed(apidocs) -> None:
    assert load_dataset("apidocs").dataset_hash == apidocs.dataset_hash
    assert load_dataset("apidocs", seed=1).dataset_hash != apidocs.dataset_hash


def test_it_is_the_same_in_another_process_whatever_its_hash_seed(apidocs) -> None:
    """Packages write some docstrings at import; those that come out differently each time are left out."""
    code = (
        "from maxsim_bench.retrieve.datasets.registry import load_dataset\n"
        "print(load_dataset('apidocs', documents='all', queries='all').dataset_hash)"
    )
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    done = [subprocess.run([sys.executable, "-c", code], env=e, capture_output=True, text=True) for e in environments]
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout == done[1].stdout


def test_no_document_holds_the_sentence_that_asks_for_it(apidocs) -> None:
    texts = {d.id: d.text for d in apidocs.documents()}
    for query, judged in apidocs.qrels.items():
        assert not any(apidocs.queries[query] in texts[d] for d in judged)


def test_no_document_holds_its_own_name(apidocs) -> None:
    texts = {d.id: d.text for d in apidocs.documents()}
    for document, name in apidocs.manifest["documents"].items():
        short = name.rsplit(".", 1)[-1]
        assert _without_name(texts[document], short) == texts[document]


def test_identical_bodies_are_one_document(apidocs) -> None:
    texts = [d.text for d in apidocs.documents()]
    assert len(set(texts)) == len(texts)


def test_the_manifest_records_versions_and_where_each_document_is_from(apidocs) -> None:
    assert set(apidocs.manifest["versions"]) == set(MODULES) == {"numpy", "scipy", "pandas", "matplotlib", "torch"}
    packages = {name.split(".")[0] for name in apidocs.manifest["documents"].values()}
    assert packages == set(MODULES)
    assert set(apidocs.manifest["documents"]) == set(apidocs.document_ids)


def test_all_of_it_is_there_on_request() -> None:
    made = load_dataset("apidocs", documents="all", queries="all")
    assert len(made.document_ids) == made.manifest["bodies"] > 2500
    assert len(made.queries) > 2500


@pytest.mark.parametrize("options", [{"documents": 0}, {"queries": -1}])
def test_a_size_below_one_is_refused(options) -> None:
    with pytest.raises(DataError, match="at least one is needed"):
        load_dataset("apidocs", **options)


def test_a_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(DataError, match="documents = 'many' is no number"):
        load_dataset("apidocs", documents="many")


def test_it_has_one_split() -> None:
    with pytest.raises(DataError, match="one split"):
        load_dataset("apidocs", "train")


def test_bm25_finds_it_neither_trivial_nor_hopeless(apidocs) -> None:
    """Words alone answer many of the questions and not nearly all."""
    bm25s = pytest.importorskip("bm25s", reason="pip install 'maxsim-bench[text]'")
    retriever = bm25s.BM25()
    retriever.index(
        bm25s.tokenize([d.text for d in apidocs.documents()], stopwords="en", show_progress=False), show_progress=False
    )
    asked = bm25s.tokenize(list(apidocs.queries.values()), stopwords="en", show_progress=False)
    found, scores = retriever.retrieve(asked, k=100, show_progress=False)
    run = {
        q: {apidocs.document_ids[int(d)]: float(s) for d, s in zip(found[i], scores[i], strict=True)}
        for i, q in enumerate(apidocs.queries)
    }
    ndcg = evaluate(run, apidocs.qrels).means["ndcg_at_10"]
    assert not math.isnan(ndcg)
    assert 0.4 < ndcg < 0.9


def test_a_signature_in_front_of_a_docstring_is_no_sentence() -> None:
    assert _without_signature("add(x1, x2, /, out=None)\n\nAdd arguments.") == "Add arguments."
    assert _without_signature("abs(input: Tensor, *, out: Tensor) -> Tensor\n\nComputes.") == "Computes."
    assert _without_signature("Add (really).\n\nMore.") == "Add (really).\n\nMore."


@pytest.mark.parametrize(
    ("text", "first", "rest"),
    [
        ("Do it. Then more.", "Do it.", "Then more."),
        ("Do it over\ntwo lines.\n\nThen more.", "Do it over two lines.", "Then more."),
        ("Title without a stop\n\nBody.", "Title without a stop", "Body."),
        ("See e.g. this one. Next.", "See e.g. this one.", "Next."),
        ("Alone.", "Alone.", ""),
    ],
)
def test_the_first_sentence_ends_at_its_stop_or_paragraph(text: str, first: str, rest: str) -> None:
    assert _first_sentence(text) == (first, rest)


def test_a_name_is_taken_out_as_a_word_only() -> None:
    assert _without_name("sum and summary, np.sum(x), cumsum", "sum") == "and summary, np. (x), cumsum"
