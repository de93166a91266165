"""Search: the brute-force answer, ties included, from every kind of corpus and every way of cutting it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from maxsim import blocks, maxsim, tokens
from maxsim.quantized import quantize_fp8, quantize_int8, score
from maxsim.quantized.index import Index, IndexFileError, open_index, write_index
from maxsim.search import _Scorer, search
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


@pytest.mark.parametrize(
    ("count", "length", "pitch", "rows", "most", "bounds"),
    [
        (7, 5, 5, 12, 100, [0, 2, 4, 6, 7]),
        (7, 5, 8, 12, 100, [0, 1, 2, 3, 4, 5, 6, 7]),
        (7, 5, 8, 13, 100, [0, 2, 4, 6, 7]),
        (7, 5, 5, 1, 100, [0, 1, 2, 3, 4, 5, 6, 7]),
        (7, 5, 5, 100, 3, [0, 3, 6, 7]),
        (7, 5, 0, 5, 4, [0, 4, 7]),
    ],
)
def test_documents_one_pitch_apart_are_cut_where_rows_end_without_a_look_at_each(
    monkeypatch, count, length, pitch, rows, most, bounds
):
    """A piece reaches from its first row to the last of its last document; `pitch` 0: one document, many times."""
    monkeypatch.setattr(TokenBatch, "row_starts", None)
    values = torch.zeros(max(1, count * pitch, length), 4)
    batch = TokenBatch(values=values, count=count, pitch=pitch, max_length=length)
    assert blocks._bounds(batch, rows, most) == bounds


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


def test_documents_out_of_order_are_cut_by_their_number_alone():
    """No run of rows holds a run of them."""
    batch = tokens(torch.zeros(6, 3, 4)).select(torch.tensor([5, 0, 3, 1, 2, 4]))
    assert blocks._bounds(batch, 1, 4) == [0, 4, 6]
    assert blocks._bounds(batch.select(torch.arange(6).flip(0)), 100, 6) == [0, 6]


def test_a_place_for_a_block_waits_for_what_may_use_its_memory_and_the_first_for_no_copy(monkeypatch):
    """Memory comes from the compute stream, whose kernels may still read it; only growing makes the host wait."""
    seen = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def synchronize(self):
            seen.append(f"host waits for {self.name}")

        def wait_stream(self, other):
            seen.append(f"{self.name} wait for {other.name}")

    compute = Stream("compute")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: compute)
    slot = blocks._Slot(torch.device("cpu"), Stream("copies"), copied=None, computed=None)
    slot._reserve(256)
    assert (seen, slot.there.shape) == (["copies wait for compute"], (256,))
    first = slot.there
    slot._reserve(100)
    assert slot.there is first, "large enough"
    assert len(seen) == 1
    slot._reserve(512)
    assert slot.there.shape == (512,)
    assert seen[1:] == ["host waits for copies", "host waits for compute", "copies wait for compute"]


@pytest.fixture
def streams(monkeypatch) -> list[str]:
    """Streams and slots that stand in for those of a GPU; what `on_device` asks of them, in order."""
    asked: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            asked.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event: str) -> None:
            asked.append(f"{self.name} waits for {event}")

        def synchronize(self) -> None:
            asked.append(f"{self.name} is done")

    class Slot:
        def __init__(self, device: torch.device, copies: Stream) -> None:
            self.copied, self.computed = "a copy", SimpleNamespace(record=lambda stream: asked.append("scored"))

        def load(self, block: object) -> object:
            asked.append("load")
            return block

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("compute"))
    monkeypatch.setattr(blocks, "_Slot", Slot)
    monkeypatch.setattr(blocks, "move", lambda block, device: SimpleNamespace(device=device, was=block))
    return asked


def block_on(device: str) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device(device))


@pytest.mark.parametrize(
    "places",
    [
        ["cpu"] * 5,
        ["cpu", "cuda", "cpu"],
        ["cpu", "cpu", "cpu", "cuda", "cuda", "cpu", "cpu", "cuda"],
        ["cuda", "cpu"],
    ],
    ids=" ".join,
)
def test_blocks_in_host_and_in_device_memory_come_once_and_in_order(streams, places):
    corpus = [block_on(place) for place in places]
    found = list(blocks.on_device(iter(corpus), torch.device("cuda")))
    assert [id(getattr(block, "was", block)) for block in found] == [id(block) for block in corpus]


@pytest.mark.parametrize("quantised", [False, True], ids=["embeddings", "codes"])
def test_a_block_on_another_gpu_is_moved_to_the_one_that_scores(streams, monkeypatch, quantised):
    where, elsewhere = torch.device("cuda:0"), torch.device("cuda:1")
    if quantised:

        class Codes(SimpleNamespace):
            def to(self, device: torch.device) -> SimpleNamespace:
                return SimpleNamespace(device=device, was=self)

        monkeypatch.setattr(blocks, "QuantizedTokens", Codes)
        corpus = [Codes(device=elsewhere), Codes(device=where)]
    else:
        corpus = [block_on("cuda:1"), block_on("cuda:0")]
    found = list(blocks.on_device(iter(corpus), where))
    assert [block.device for block in found] == [where] * 2
    assert [id(block.was) for block in found] == [id(block) for block in corpus]


def test_a_scan_that_ends_early_waits_for_the_copy_under_way(streams):
    """It gives its buffers back, and the next call may be given them."""
    scan = blocks.on_device(iter([block_on("cpu") for _ in range(4)]), torch.device("cuda"))
    next(scan)
    assert "copies is done" not in streams
    scan.close()
    assert streams[-1] == "copies is done"


@pytest.mark.gpu
def test_a_corpus_of_host_and_device_memory_has_the_brute_force_answer():
    parts = [*halves(documents("masked")), documents("packed")]
    corpus = [parts[0], blocks.move(parts[1], "cuda"), parts[2]]
    scores, numbers = search(Q.cuda(), corpus, 50)
    want = brute_force(torch.cat([maxsim(Q, part) for part in parts], 1), 50)
    assert torch.equal(scores.cpu(), want[0])
    assert torch.equal(numbers.cpu(), want[1])


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


NUMBERS = ("k", "depth", "block_bytes")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [2.5, None, "3", True, float("nan"), float("inf"), [1]])
def test_a_number_of_another_type_is_a_type_error_that_names_it(name, value):
    with pytest.raises(
        TypeError, match=rf"^{name} = .*: expected a whole number, at least 1, got {type(value).__name__}"
    ):
        search(torch.ones(3, 4), untouched(), **{"k": 1, name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, -(1 << 70)])
def test_a_number_below_one_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} = {value}: must be at least 1"):
        search(torch.ones(3, 4), untouched(), **{"k": 1, name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 1 << 70}, rf"^k = {1 << 70}: must be at most 2\^32"),
        (
            {"k": 1 << 30, "depth": 5, "rescore": True, "originals": tokens(D)},
            rf"^k · depth = {5 << 30}: must be at most 2\^32",
        ),
    ],
)
def test_more_results_than_there_are_document_numbers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        search(Q, untouched(), **options)


def test_whole_numbers_of_other_libraries_are_welcome():
    one = torch.tensor(3).numpy()[()]
    assert search(Q, documents("masked"), one, block_bytes=one)[0].shape == (4, 3)


@pytest.mark.parametrize("device", [0, True, float("nan"), ["cpu"]])
def test_a_device_of_another_type_is_a_type_error_that_names_it(device):
    with pytest.raises(TypeError, match=r"^device = .*: expected a torch\.device, its name .* or None, got "):
        search(Q, untouched(), 1, device=device)


@pytest.mark.parametrize("device", ["gpu", "", "cuda:-1", "cuda:99", torch.device("cuda:99"), "meta"])
def test_a_device_that_is_not_there_is_refused_by_name(device):
    with pytest.raises(ValueError, match=r"^device = '.*choose 'cpu'"):
        search(Q, untouched(), 1, device=device)


@pytest.mark.parametrize("name", ["Q", "corpus", "originals"])
@pytest.mark.parametrize("blocks", [False, True])
def test_tensors_without_numbers_are_refused_by_name(name, blocks):
    given = {
        which: torch.ones(3, 4, 8, device="meta" if which == name else "cpu") for which in ("Q", "corpus", "originals")
    }
    corpus = tokens(given["corpus"])
    with pytest.raises(ValueError, match=f"^{name}: is on the device meta, which holds no numbers"):
        search(given["Q"], [corpus] if blocks else corpus, 1, rescore=True, originals=tokens(given["originals"]))


def test_a_corpus_that_is_none_is_a_type_error():
    with pytest.raises(TypeError, match=r"corpus: expected a TokenBatch, .* got NoneType"):
        search(torch.ones(3, 4), None, 1)


# ---- originals are checked before the scan


def untouched() -> Iterator[TokenBatch]:
    """A corpus that must not be asked for a block."""
    pytest.fail("the corpus was read before the arguments were checked")
    yield


@pytest.mark.parametrize(
    ("originals", "error", "message"),
    [
        (D, TypeError, r"originals: expected a TokenBatch or an Index, got Tensor: wrap it"),
        ([tokens(D)], TypeError, r"originals: expected a TokenBatch or an Index, got list"),
        (quantize_int8(D), TypeError, r"originals: expected .* got QuantizedTokens"),
        (tokens(D.half()), ValueError, r"originals: dtype is torch\.float16, but Q is torch\.float32"),
        (tokens(D[..., :8]), ValueError, r"originals: d = 8, but Q has d = 16"),
    ],
)
def test_originals_that_do_not_fit_the_queries_are_refused_before_the_scan(originals, error, message):
    with pytest.raises(error, match=message):
        search(Q, untouched(), 1, rescore=True, originals=originals)


def test_an_index_of_another_dtype_or_quantiser_cannot_rescore_and_is_refused_before_the_scan(folders):
    with pytest.raises(ValueError, match=r"dtype is torch\.float16, but Q is torch\.float32"):
        search(Q, untouched(), 1, rescore=True, originals=folders[1])
    with pytest.raises(ValueError, match="rescoring needs one of 'none'"):
        search(Q.half(), untouched(), 1, rescore=True, originals=folders[0])


@pytest.mark.parametrize("kind", ["batch", "codes", "index", "list", "tuple"])
def test_another_number_of_originals_is_refused_before_the_scan_where_the_corpus_has_a_size(kind, folders, monkeypatch):
    def unscored(*_):
        pytest.fail("a block was scored before the originals were counted")

    monkeypatch.setattr(_Scorer, "__call__", unscored)
    batch = tokens(D.half(), lengths=LENGTHS)
    corpus = {
        "batch": batch,
        "codes": quantize_int8(batch),
        "index": folders[0],
        "list": halves(batch),
        "tuple": tuple(halves(batch)),
    }[kind]
    with pytest.raises(ValueError, match="originals: 9 documents, but the corpus has 60"):
        search(Q.half(), corpus, 1, rescore=True, originals=tokens(D[:9].half()))


def test_the_documents_of_an_iterator_are_counted_after_it():
    with pytest.raises(ValueError, match="originals: 9 documents, but the corpus has 60"):
        search(Q, iter(halves(documents("packed"))), 1, rescore=True, originals=tokens(D[:9]))


def test_an_index_of_no_documents_is_rescored_by_one(tmp_path):
    write_index(tmp_path / "int8", [], encoder="e")
    write_index(tmp_path / "originals", [], encoder="e", quantiser="none")
    originals = open_index(tmp_path / "originals")
    scores, numbers = search(Q, open_index(tmp_path / "int8"), 2, rescore=True, originals=originals)
    assert (numbers == -1).all()
    assert (scores == -torch.inf).all()


# ---- a file that got shorter is an error, not the end of the process


def shard_of(index: Index, i: int) -> str:
    return str(index.path / f"shard-0000{i}.safetensors")


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_shard_truncated_after_opening_is_refused_by_name(folders, size):
    file = shard_of(folders[0], 1)
    os.truncate(file, size % os.stat(file).st_size)
    with pytest.raises(IndexFileError, match=r"shard-00001\.safetensors: \d+ bytes, but \d+ were written"):
        search(Q, folders[0], 6)


def test_a_shard_that_grew_after_opening_is_refused_by_name(folders):
    file = shard_of(folders[0], 1)
    os.truncate(file, os.stat(file).st_size + 1)
    with pytest.raises(IndexFileError, match=r"shard-00001\.safetensors: \d+ bytes, but \d+ were written"):
        search(Q, folders[0], 6)


def test_a_shard_gone_after_opening_is_refused_by_name(folders):
    os.unlink(shard_of(folders[0], 2))
    with pytest.raises(IndexFileError, match=r"shard-00002\.safetensors: No such file"):
        search(Q, folders[0], 6)


def test_a_shard_truncated_between_two_of_its_blocks_is_refused_by_name(folders, monkeypatch):
    scored, score_block = [], _Scorer.__call__

    def truncating(self, block):
        scored.append(block.count)
        if len(scored) == 2:
            os.truncate(shard_of(folders[0], 0), 64)
        return score_block(self, block)

    monkeypatch.setattr(_Scorer, "__call__", truncating)
    # small files: what is mapped of their first page reads as zeros, so that this test fails and does not die
    with pytest.raises(IndexFileError, match=r"shard-00000\.safetensors: 64 bytes, but"):
        search(Q, folders[0], 6, block_bytes=500)
    assert len(scored) == 2


def test_originals_truncated_during_the_scan_are_refused_by_name(folders, monkeypatch):
    score_block = _Scorer.__call__

    def truncating(self, block):
        os.truncate(shard_of(folders[1], 1), 64)
        return score_block(self, block)

    monkeypatch.setattr(_Scorer, "__call__", truncating)
    with pytest.raises(IndexFileError, match=r"originals/shard-00001\.safetensors: 64 bytes, but"):
        search(Q.half(), folders[0], 6, rescore=True, originals=folders[1])
