"""Search: the brute-force answer, ties included, from every kind of corpus and every way of cutting it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from maxsim import maxsim, tokens
from maxsim.quantized import quantize_fp8, quantize_int8, score
from maxsim.quantized.index import open_index, write_index
from maxsim.search import search
from maxsim.tokens import TokenBatch

N, L, d = 60, 9, 16


def integers(*shape: int, seed: int) -> Tensor:
    """Small integers: every score is exact, so blocks cannot differ by rounding, and ties are frequent."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


Q = integers(4, 5, d, seed=0)
D = integers(N, L, d, seed=1)
LENGTHS = torch.randint(0, L + 1, (N,), generator=torch.Generator().manual_seed(2))
D[[7, 23, 41]], LENGTHS[[7, 23, 41]] = D[30].clone(), int(LENGTHS[30].clamp_min(1))
LENGTHS[30] = LENGTHS[7]


def brute_force(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-k by a stable sort: the lower document first on ties."""
    best = torch.sort(scores, dim=1, descending=True, stable=True)
    return best.values[:, :k], best.indices[:, :k]


def documents(layout: str) -> TokenBatch:
    if layout == "masked":
        return tokens(D, lengths=LENGTHS)
    rows = torch.cat([D[n, :length] for n, length in enumerate(LENGTHS)])
    return tokens(rows, cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.long), LENGTHS.cumsum(0)]))


def halves(batch: TokenBatch) -> list[TokenBatch]:
    return [batch.select(torch.arange(0, 25)), batch.select(torch.arange(25, N))]


@pytest.mark.parametrize("layout", ["masked", "packed"])
@pytest.mark.parametrize("block_bytes", [1, 700, 5000, 1 << 28])
@pytest.mark.parametrize("k", [1, 7, N])
def test_any_cut_of_the_corpus_gives_the_brute_force_answer(layout, block_bytes, k):
    scores, numbers = search(Q, documents(layout), k, block_bytes=block_bytes)
    want = brute_force(maxsim(Q, documents(layout)), k)
    assert torch.equal(scores, want[0])
    assert torch.equal(numbers, want[1])
    assert numbers.dtype == torch.int64


@pytest.mark.parametrize("kind", [list, iter])
def test_shards_and_iterators_count_documents_through(kind):
    scores, numbers = search(Q, kind(halves(documents("packed"))), 9, block_bytes=2000)
    want = brute_force(maxsim(Q, documents("packed")), 9)
    assert torch.equal(scores, want[0])
    assert torch.equal(numbers, want[1])


def test_equal_documents_in_different_blocks_come_by_number():
    same = tokens(torch.ones(40, 2, 3))
    for block_bytes in (1, 100, 1 << 20):
        assert search(torch.ones(2, 3), same, 5, block_bytes=block_bytes)[1].tolist() == [[0, 1, 2, 3, 4]]


def test_zero_and_minus_zero_are_a_tie():
    D = torch.tensor([[[-0.0]], [[0.0]], [[-0.0]]])
    assert search(torch.ones(1, 1), tokens(D), 3)[1].tolist() == [[0, 1, 2]]


def test_negative_scores_come_in_order():
    D = torch.tensor([-3.0, -0.5, -1e-30, -2e30, 0.0])[:, None, None]
    scores, numbers = search(torch.ones(1, 1), tokens(D), 5)
    assert numbers.tolist() == [[4, 2, 1, 0, 3]]
    assert scores.tolist() == [sorted(D.flatten().tolist(), reverse=True)]


def test_more_results_than_documents_end_in_minus_infinity_and_minus_one():
    scores, numbers = search(Q, tokens(D[:3]), 5)
    assert (numbers[:, 3:] == -1).all()
    assert (scores[:, 3:] == -torch.inf).all()
    assert (numbers[:, :3] >= 0).all()


def test_an_empty_document_is_a_result_and_comes_before_none():
    scores, numbers = search(Q[:1], tokens(D[:2], lengths=torch.tensor([0, 3])), 3)
    assert numbers.tolist() == [[1, 0, -1]]
    assert scores[0, 1] == -torch.inf


@pytest.mark.parametrize("corpus", [[], iter(()), tokens(D[:0])])
def test_an_empty_corpus_has_no_results(corpus):
    scores, numbers = search(Q, corpus, 2)
    assert (numbers == -1).all()
    assert (scores == -torch.inf).all()


def test_no_queries_give_an_empty_result():
    scores, numbers = search(Q[:0], documents("masked"), 3)
    assert scores.shape == numbers.shape == (0, 3)


def test_a_query_of_two_dimensions_is_one_query():
    assert torch.equal(search(Q[2], documents("masked"), 4)[1], search(Q, documents("masked"), 4)[1][2:3])


@pytest.mark.parametrize("k", [1, 60])
def test_a_nan_score_is_an_error_that_names_query_and_document(k):
    X = D.clone()
    X[44, 0] = torch.nan
    with pytest.raises(ValueError, match="query 0 scores NaN with document 44"):
        search(Q, tokens(X, lengths=LENGTHS.clamp_min(1)), k, block_bytes=900)


@pytest.mark.parametrize("per", ["token", "document"])
@pytest.mark.parametrize("quantise", [quantize_int8, quantize_fp8])
def test_quantised_documents_rank_as_their_scores(per, quantise):
    corpus = quantise(documents("packed"), per)
    for block_bytes in (300, 1 << 28):
        scores, numbers = search(Q, corpus, 8, block_bytes=block_bytes)
        want = brute_force(score(quantise(Q), corpus), 8)
        torch.testing.assert_close(scores, want[0])
        if quantise is quantize_int8:
            assert torch.equal(scores, want[0])
            assert torch.equal(numbers, want[1])


def test_queries_can_stay_as_they_are():
    corpus = quantize_int8(documents("packed"))
    scores, _ = search(Q, corpus, 8, quantize_queries=False)
    torch.testing.assert_close(scores, brute_force(score(tokens(Q), corpus), 8)[0])


@pytest.fixture
def folders(tmp_path) -> tuple[object, object]:
    """An INT8 index of three shards, and the originals."""

    def blocks():
        for i in range(0, N, 25):
            names = [f"d{n}" for n in range(i, min(i + 25, N))]
            yield names, tokens(D[i : i + 25].half(), lengths=LENGTHS[i : i + 25])

    write_index(tmp_path / "int8", blocks(), encoder="e")
    write_index(tmp_path / "originals", blocks(), encoder="e", quantiser="none")
    return open_index(tmp_path / "int8"), open_index(tmp_path / "originals")


def test_an_index_is_searched_like_the_documents_it_was_made_of(folders):
    scores, numbers = search(Q, folders[0], 6, block_bytes=500)
    want = brute_force(score(quantize_int8(Q), quantize_int8(tokens(D.half(), lengths=LENGTHS))), 6)
    assert torch.equal(scores, want[0])
    assert torch.equal(numbers, want[1])


@pytest.mark.parametrize("kind", ["index", "batch"])
@pytest.mark.parametrize("k", [3, 10, 100])
def test_rescoring_gives_the_exact_answer(folders, kind, k):
    exact = tokens(D.half(), lengths=LENGTHS)
    scores, numbers = search(Q.half(), folders[0], k, rescore=True, originals=folders[1] if kind == "index" else exact)
    kept = min(k, N)
    want = brute_force(maxsim(Q.half(), exact), kept)
    assert torch.equal(scores[:, :kept], want[0])
    assert torch.equal(numbers[:, :kept], want[1])
    assert (numbers[:, kept:] == -1).all()


def test_an_original_with_a_nan_is_an_error_even_if_its_codes_were_fine():
    X = D.half()
    X[5, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="with document 5"):
        search(Q.half(), quantize_int8(D.half()), N, rescore=True, originals=tokens(X))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: search(Q, documents("masked"), 0), "k = 0"),
        (lambda: search(Q.double(), documents("masked"), 1), "float64"),
        (lambda: search(Q, D, 1), "corpus is a tensor"),
        (lambda: search(Q, [D], 1), "a block is Tensor"),
        (lambda: search(Q, quantize_int8(D), 1, rescore=True), "needs `originals`"),
        (lambda: search(Q, quantize_int8(D), 1, originals=tokens(D)), "rescore is False"),
        (
            lambda: search(Q, quantize_int8(D), 1, rescore=True, originals=tokens(D[:9])),
            "9 documents, but the corpus has 60",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(call: Callable[[], object], message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_index_that_is_quantised_cannot_rescore(folders):
    with pytest.raises(ValueError, match="rescoring needs one of 'none'"):
        search(Q.half(), folders[0], 1, rescore=True, originals=folders[0])


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("quantised", [True, False])
def test_a_corpus_in_host_memory_is_streamed_to_the_same_answer(pinned, quantised):
    generator = torch.Generator().manual_seed(3)
    X = torch.nn.functional.normalize(torch.randn(5000, 40, 64, generator=generator), dim=-1).half()
    if pinned:
        X = X.pin_memory()
    batch = tokens(X, lengths=torch.randint(0, 41, (5000,), generator=generator))
    queries = torch.nn.functional.normalize(torch.randn(7, 12, 64, generator=generator), dim=-1).half()
    corpus = quantize_int8(batch) if quantised else batch
    got = search(queries, corpus, 20, block_bytes=1 << 20, device="cuda")
    whole = corpus.to("cuda") if quantised else tokens(X.cuda(), lengths=batch.lengths.cuda())
    want = search(queries.cuda(), whole, 20)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.gpu
def test_device_memory_does_not_grow_with_the_corpus():
    block = torch.randn(2000, 32, 64).half()
    queries = torch.randn(3, 8, 64).half()

    def peak(times: int) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        search(queries, (tokens(block) for _ in range(times)), 10, block_bytes=1 << 20, device="cuda")
        return torch.cuda.max_memory_allocated()

    peak(1)
    assert peak(12) <= peak(2) * 1.05


@pytest.mark.parametrize(
    ("corpus", "options", "message"),
    [
        (tokens(torch.ones(2, 3, 4)), {"k": 2.5}, r"k = 2\.5: expected a whole number, got float"),
        (tokens(torch.ones(2, 3, 4)), {"k": None}, "k = None: expected a whole number"),
        (tokens(torch.ones(2, 3, 4)), {"k": 1, "depth": 1.5}, r"depth = 1\.5: expected a whole number"),
        (None, {"k": 1}, "corpus: expected a TokenBatch, .* got NoneType"),
    ],
)
def test_what_is_of_another_type_is_a_type_error_with_a_sentence(corpus, options, message):
    with pytest.raises(TypeError, match=message):
        search(torch.ones(3, 4), corpus, **options)
