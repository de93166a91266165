"""Every backend ranks every query exactly, whatever layouts it takes and however the corpus is cut."""

from __future__ import annotations

import dataclasses
import math
import sys

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.retrieve import scoring
from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.metrics import ScoreError, evaluate_rankings, ranked
from maxsim_bench.retrieve.rank import ScoreErrors, rank, rankings
from maxsim_bench.retrieve.rerank import bm25_candidates, rerank, run_candidates
from maxsim_bench.retrieve.scoring import Scorer, query_blocks
from maxsim_bench.retrieve.searching import compare, exact_share, search_all, searches
from maxsim_bench.retrieve.trec import write_run


def brute(made) -> dict[str, dict[str, float]]:
    """Scores of every pair by a loop over pairs."""
    q_tokens = made.queries.values.double().split(made.queries.lengths.tolist())
    d_tokens = made.documents.values.double().split(made.documents.lengths.tolist())
    return {
        q: {d: float((qt @ dt.T).amax(1).sum()) for d, dt in zip(made.dataset.document_ids, d_tokens, strict=True)}
        for q, qt in zip(made.dataset.queries, q_tokens, strict=True)
    }


def _rank(made, cell, scorers, depth=1000):
    reference = Scorer(registry.get("reference"), cell(), "cpu")
    return rank(made.dataset, made.queries, made.documents, reference, scorers, depth=depth)


@pytest.mark.parametrize("budget", [1, 20_000, 1 << 28], ids=["a block a document", "some blocks", "one block"])
def test_the_reference_ranks_as_a_loop_over_pairs_does_however_the_corpus_is_cut(
    collection, cell, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setitem(scoring.BLOCK_BYTES, "cpu", budget)
    made = collection()
    base, _ = _rank(made, cell, {})
    got, want = rankings(made.dataset, base.top), brute(made)
    for query, scores in want.items():
        assert list(got[query]) == ranked(scores)
        assert got[query] == pytest.approx(scores, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ["reference", "eager", "eager_fp32", "chunked", "fused"])
def test_our_backends_rank_as_the_reference_does(collection, cell, name: str) -> None:
    made = collection()
    base, found = _rank(made, cell, {name: Scorer(registry.get(name), cell(), "cpu")})
    assert found[name].failure is None
    assert found[name].errors.max_rel.max() < 1e-6
    assert rankings(made.dataset, found[name].top).keys() == rankings(made.dataset, base.top).keys()
    assert [list(r) for r in rankings(made.dataset, found[name].top).values()] == [
        list(r) for r in rankings(made.dataset, base.top).values()
    ]


@pytest.mark.parametrize(
    "refuses",
    [
        lambda c: None if c.layout == "packed" else "packed only",
        lambda c: None if c.layout == "masked" else "masked only",
        lambda c: None if c.layout == "packed" and c.Nq == 1 else "one packed query",
        lambda c: None if c.layout == "masked" and c.Nq == 1 else "one masked query",
        lambda c: None if c.layout == "dense" and c.Nq == 1 else "one query, no padding",
    ],
)
def test_a_backend_is_called_in_the_layout_it_takes_with_the_same_result(collection, cell, fake, refuses) -> None:
    made = collection()
    _, found = _rank(made, cell, {"it": Scorer(fake("right", refuses=refuses), cell(), "cpu")})
    assert found["it"].failure is None
    assert found["it"].errors.max_rel.max() < 1e-5


def test_empty_documents_and_queries_follow_the_semantics_in_every_layout(collection, cell, fake) -> None:
    """-inf for a document without tokens, 0 for a query without."""
    made = collection(queries=3, documents=5)
    tokens = list(made.documents.values.split(made.documents.lengths.tolist()))
    asked = list(made.queries.values.split(made.queries.lengths.tolist()))
    documents = Embeddings.of([tokens[0], tokens[1][:0], *tokens[2:]], made.documents.d)
    queries = Embeddings.of([asked[0], asked[1][:0], asked[2]], made.queries.d)
    made = dataclasses.replace(made, documents=documents, queries=queries)
    for layout in ("packed", "masked", "dense"):
        one = fake("right", refuses=lambda c, layout=layout: None if c.layout == layout else "no")
        base, found = _rank(made, cell, {"it": Scorer(one, cell(), "cpu")})
        scores = rankings(made.dataset, base.top)
        assert scores["q0"]["d001"] == -math.inf
        assert scores["q1"]["d000"] == 0.0
        assert rankings(made.dataset, found["it"].top)["q0"]["d001"] == -math.inf
        assert found["it"].errors.max_abs[[0, 2]].max() < 1e-5


def test_a_backend_that_tunes_meets_few_lengths_with_the_same_result(collection, cell, fake) -> None:
    seen = set()

    def refuses(c):
        seen.add((c.Lq, c.Ld))

    one = fake("right", refuses=refuses, length_multiple=16)
    _, found = _rank(collection(), cell, {"it": Scorer(one, cell(), "cpu")})
    assert found["it"].failure is None
    assert found["it"].errors.max_rel.max() < 1e-5
    assert seen == {(16, 16)}


def test_a_document_without_tokens_is_not_asked_of_a_backend_that_has_another_rule(collection, cell, fake) -> None:
    def zero(Q, q_valid, D, d_valid):
        S = torch.einsum("nid,bjd->nbij", Q, D).masked_fill(~d_valid[None, :, None, :], -math.inf).amax(-1)
        return S.nan_to_num(neginf=0.0).masked_fill(~q_valid[:, None, :], 0.0).sum(-1)

    made = collection(queries=3, documents=5)
    tokens = list(made.documents.values.split(made.documents.lengths.tolist()))
    documents = Embeddings.of([tokens[0], tokens[1][:0], *tokens[2:]], made.documents.d)
    made = dataclasses.replace(made, documents=documents)
    scorers = {n: Scorer(fake(zero, empty_documents=n == "asked"), cell(), "cpu") for n in ("asked", "spared")}
    _, found = _rank(made, cell, scorers)
    assert found["spared"].errors.max_rel.max() < 1e-5
    assert found["asked"].errors.max_rel.max() == math.inf


@pytest.mark.parametrize(("name", "most"), [("search", 1e-5), ("search_int8", 0.1), ("search_int8_rescored", 1e-5)])
def test_a_search_finds_the_first_documents_and_says_how_often_they_are_the_best(
    collection, cell, name: str, most: float
) -> None:
    made = collection(documents=60)
    base, _ = _rank(made, cell, {})
    scorer = Scorer(registry.get(name), cell(), "cpu")
    assert searches(scorer)
    assert not searches(Scorer(registry.get("fused"), cell(), "cpu"))
    found = search_all(made.dataset, made.queries, made.documents, {name: scorer}, base)[name]
    assert found.failure is None
    assert found.errors.max_rel.max() <= most
    if most < 0.1:
        assert found.exact_first == 1.0
        assert list(rankings(made.dataset, found.top)["q3"])[:10] == list(rankings(made.dataset, base.top)["q3"])[:10]


def test_a_search_that_misses_the_best_or_finds_what_is_not_there_is_seen(collection, cell) -> None:
    base, _ = _rank(collection(queries=4, documents=30), cell, {}, depth=12)
    want = base.top.best()
    assert exact_share(want[0], want, 10) == 1.0
    missing = want[0].copy()
    missing[0, 9] = missing[0, 11]
    assert exact_share(missing, want, 10) == 0.75
    errors = ScoreErrors.empty(4, 30)
    stranger = want[0].copy()
    stranger[2, 0] = next(d for d in range(30) if d not in set(stranger[2].tolist()))
    compare(errors, want[1], stranger, want)
    assert errors.max_rel.tolist() == [0.0, 0.0, math.inf, 0.0]
    assert errors.worst[1] == 2


def test_padded_query_tokens_add_nothing_for_a_backend_that_takes_no_query_lengths(collection, cell, fake) -> None:
    def ignores(Q, q_valid, D, d_valid):
        S = torch.einsum("nid,bjd->nbij", Q, D).masked_fill(~d_valid[None, :, None, :], -math.inf)
        return S.amax(-1).sum(-1)

    _, found = _rank(collection(), cell, {"it": Scorer(fake(ignores), cell(), "cpu")})
    assert found["it"].errors.max_rel.max() < 1e-5


def test_tied_documents_are_ranked_by_id_descending_across_blocks_and_the_cut(
    collection, cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scoring.BLOCK_BYTES, "cpu", 1)
    made = collection(queries=2, documents=20)
    made = dataclasses.replace(made, documents=made.documents.select([0] * 20))
    base, _ = _rank(made, cell, {}, depth=7)
    assert list(rankings(made.dataset, base.top)["q0"]) == [f"d{i:03d}" for i in range(19, 12, -1)]


def test_the_own_id_is_dropped_before_the_cut_where_the_collection_says_so(collection, cell) -> None:
    made = collection(queries=2, documents=20)
    own = dataclasses.replace(
        made.dataset,
        queries={"d000": "a", "d001": "b"},
        qrels={"d000": {"d001": 1}, "d001": {"d000": 1}},
        drop_own_id=True,
    )
    base, _ = _rank(dataclasses.replace(made, dataset=own), cell, {})
    dropped = rankings(own, base.top)
    assert "d000" not in dropped["d000"]
    assert len(dropped["d000"]) == 19
    kept = rankings(dataclasses.replace(own, drop_own_id=False), base.top)
    assert next(iter(kept["d000"])) == "d000"


def test_a_nan_score_fails_the_backend_by_query_and_document_and_the_others_go_on(collection, cell, fake) -> None:
    def nan(Q, q_valid, D, d_valid):
        scores = torch.zeros(Q.shape[0], D.shape[0])
        scores[0, 4] = math.nan
        return scores

    scorers = {n: Scorer(b, cell(), "cpu") for n, b in (("bad", fake(nan)), ("good", fake("right")))}
    _, found = _rank(collection(), cell, scorers)
    status, told = found["bad"].failure
    assert status == "incorrect"
    assert "document 'd004' is NaN" in told
    assert found["good"].failure is None


def test_a_nan_in_the_embeddings_is_an_error_of_the_reference(collection, cell) -> None:
    made = collection()
    made.documents.values[0] = math.nan
    with pytest.raises(ScoreError, match="document 'd000' is NaN"):
        _rank(made, cell, {})


@pytest.mark.parametrize(
    ("error", "status"),
    [(torch.cuda.OutOfMemoryError("full"), "oom"), (RuntimeError("broken"), "error"), (ValueError("odd"), "error")],
)
def test_what_a_backend_raises_becomes_its_status(collection, cell, fake, error, status: str) -> None:
    def raises(*_):
        raise error

    _, found = _rank(collection(), cell, {"it": Scorer(fake(raises), cell(), "cpu")})
    assert found["it"].failure[0] == status
    assert str(error) in found["it"].failure[1]


def test_a_backend_that_takes_nothing_is_unsupported_with_its_reasons(collection, cell, fake) -> None:
    _, found = _rank(collection(), cell, {"it": Scorer(fake("right", refuses=lambda c: "never"), cell(), "cpu")})
    assert found["it"].failure == ("unsupported", "never")


def test_a_result_of_another_shape_is_an_error(collection, cell, fake) -> None:
    backend = fake(lambda Q, q_valid, D, d_valid: torch.zeros(Q.shape[0], D.shape[0] + 1))
    _, found = _rank(collection(), cell, {"it": Scorer(backend, cell(), "cpu")})
    assert "shape" in found["it"].failure[1]


def test_embeddings_of_another_collection_are_refused(collection, cell) -> None:
    made = collection()
    with pytest.raises(ValueError, match="embeddings of 39 documents for 40"):
        _rank(dataclasses.replace(made, documents=made.documents.slice(0, 39)), cell, {})
    with pytest.raises(ValueError, match="two different encoders"):
        _rank(dataclasses.replace(made, documents=collection(d=8).documents), cell, {})


def test_query_blocks_hold_every_query_once_and_keep_their_budget() -> None:
    lengths = [5, 1, 300, 7, 6, 2, 40]
    queries = Embeddings.of([torch.zeros(n, 4) for n in lengths], 4)
    blocks = query_blocks(queries, documents=10, Ld=20, budget=20 * 10 * 20 * 4)
    assert sorted(p for b in blocks for p in b.places) == list(range(7))
    for block in blocks:
        assert len(block.places) == 1 or len(block.places) * int(block.queries.lengths.max()) <= 20
        assert block.queries.lengths.tolist() == [lengths[p] for p in block.places]


def test_reranking_scores_the_candidates_of_each_query_and_no_others(collection, cell, fake) -> None:
    made = collection()
    candidates = {q: [f"d{j:03d}" for j in range(i, i + 6)] for i, q in enumerate(made.dataset.queries)}
    candidates.pop("q3")
    reference = Scorer(registry.get("reference"), cell(), "cpu")
    scorers = {"it": Scorer(fake("right"), cell(), "cpu")}
    base, found = rerank(made.dataset, made.queries, made.documents, candidates, reference, scorers)
    want = brute(made)
    for query, scores in rankings(made.dataset, base.top).items():
        assert list(scores) == ranked({d: want[query][d] for d in candidates.get(query, [])})
    assert found["it"].errors.max_rel.max() < 1e-5
    lists = {q: list(s) for q, s in rankings(made.dataset, base.top).items()}
    assert evaluate_rankings(lists, made.dataset.qrels).missing == ("q3",)


def test_bm25_leaves_the_cards_memory_to_what_is_measured(collection, tmp_path, monkeypatch) -> None:
    """The package calls JAX while it is imported, and JAX keeps three quarters of a card that it may use."""
    (tmp_path / "bm25s.py").write_text("import os\nraise RuntimeError('JAX on ' + os.environ['JAX_PLATFORMS'])\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bm25s", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "")  # puts back what was there
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(RuntimeError, match="JAX on cpu"):
        bm25_candidates(collection().dataset, 5)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(RuntimeError, match="JAX on cuda"):  # whoever asks for it
        bm25_candidates(collection().dataset, 5)


def test_candidates_come_from_bm25_or_a_run_file(collection, tmp_path) -> None:
    pytest.importorskip("bm25s", reason="pip install 'maxsim-bench[text]'")
    made = collection()
    found = bm25_candidates(made.dataset, 5)
    assert {len(c) for c in found.values()} == {5}
    write_run(tmp_path / "x.run", {"q0": {"d001": 2.0, "d002": 3.0, "d003": 1.0}}, "t")
    assert run_candidates(made.dataset, tmp_path / "x.run", 2) == {"q0": ["d002", "d001"]}
    write_run(tmp_path / "y.run", {"q0": {"other": 2.0}}, "t")
    with pytest.raises(DataError, match="document 'other', which made-up does not"):
        run_candidates(made.dataset, tmp_path / "y.run", 2)
    write_run(tmp_path / "z.run", {"x": {"d001": 2.0}}, "t")
    with pytest.raises(DataError, match="no query of it"):
        run_candidates(made.dataset, tmp_path / "z.run", 2)
