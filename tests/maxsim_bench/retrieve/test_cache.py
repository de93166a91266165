"""Embeddings are encoded once, go on where they stopped, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from maxsim_bench.retrieve.cache import embed, open_entry, query_embeddings
from maxsim_bench.retrieve.embeddings import EmbeddingError, Embeddings

TEXTS = ["one", "", "three", "four", "fifth"]


def _embed(encoder, texts=TEXTS, content="c" * 64, **options):
    return embed("query", iter(texts), len(texts), content, encoder, shard_items=2, **options)


def test_embeddings_come_back_in_order_and_are_encoded_once(letters) -> None:
    calls: list[int] = []
    encoder = letters(calls=calls)
    first = _embed(encoder)
    assert calls == [2, 2, 1]
    want = letters().queries(TEXTS)
    for store in (first, _embed(encoder)):
        assert torch.equal(store.load().values, want.values)
        assert store.lengths.tolist() == [3, 0, 5, 4, 5]
        assert [start for start, _ in store.parts()] == [0, 2, 4]
    assert calls == [2, 2, 1], "the second time nothing is encoded"


def test_other_texts_or_another_encoder_are_another_entry(letters) -> None:
    calls: list[int] = []
    entries = {
        _embed(letters(calls=calls)).folder,
        _embed(letters(calls=calls), content="d" * 64).folder,
        _embed(letters(calls=calls, query_prefix="query: ")).folder,
        _embed(letters(calls=calls, query_length=7)).folder,
    }
    assert len(entries) == 4
    assert len(calls) == 12
    _embed(letters(calls=calls, software="another version"))
    assert len(calls) == 12


def test_an_interrupted_run_goes_on_where_it_stopped(letters) -> None:
    class Dies:
        def __init__(self, inner, after):
            self.inner, self.left, self.identity = inner, after, inner.identity

        def on(self, device):
            return self

        def queries(self, texts):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return self.inner.queries(texts)

    with pytest.raises(KeyboardInterrupt):
        _embed(Dies(letters(), 1))
    calls: list[int] = []
    store = _embed(letters(calls=calls))
    assert sum(calls) < len(TEXTS), "the first shard was kept"
    assert torch.equal(store.load().values, letters().queries(TEXTS).values)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_shard_is_noticed_and_encoded_again(letters, damage: str) -> None:
    store = _embed(letters())
    path = store.folder / store.shards[1].file
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-3] ^= 0x10
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-5])
    else:
        path.unlink()
    with pytest.raises(EmbeddingError, match="checksum"):
        open_entry(store.folder)
    calls: list[int] = []
    with pytest.warns(UserWarning, match="damaged, and encoded again"):
        mended = _embed(letters(calls=calls))
    assert calls == [2]
    assert torch.equal(mended.load().values, letters().queries(TEXTS).values)


def test_an_unfinished_entry_is_not_opened(letters) -> None:
    store = _embed(letters())
    manifest = store.folder / "manifest.json"
    told = json.loads(manifest.read_text())
    told["shards"] = told["shards"][:1]
    manifest.write_text(json.dumps(told))
    with pytest.raises(EmbeddingError, match="2 of 5 items"):
        open_entry(store.folder)
    with pytest.raises(EmbeddingError, match=r"no manifest\.json"):
        open_entry(store.folder.parent)


def test_an_encoder_that_returns_too_few_is_an_error(letters) -> None:
    class Lazy:
        identity = letters().identity

        def on(self, device):
            return self

        def queries(self, texts):
            return letters().queries(texts[:1])

    with pytest.raises(EmbeddingError, match="returned 1 items of width 8 for 2 items"):
        _embed(Lazy())


def test_a_stream_that_ends_early_is_an_error(letters) -> None:
    with pytest.raises(EmbeddingError, match="ended at item 3 of 5"):
        embed("query", iter(TEXTS[:3]), 5, "c" * 64, letters(), shard_items=2)


def test_several_devices_share_the_work_and_the_result_is_the_same(letters) -> None:
    one = _embed(letters())
    many = _embed(letters("other"), devices=("cpu", "cpu", "cpu"))
    assert torch.equal(one.load().values, many.load().values)


def test_progress_counts_items(letters) -> None:
    told: list[tuple[int, int]] = []
    _embed(letters(), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (5, 5)
    assert [d for d, _ in told] == sorted(d for d, _ in told)


def test_selected_items_come_in_the_order_asked_for(letters) -> None:
    picked = _embed(letters()).select([4, 0, 1, 4])
    assert torch.equal(picked.values, letters().queries(["fifth", "one", "", "fifth"]).values)


def test_the_cache_lies_where_the_environment_says(letters, collection, cache: Path) -> None:
    query_embeddings(collection().dataset, letters())
    assert any((cache / "embeddings").iterdir())


def test_embeddings_whose_lengths_do_not_fit_are_refused() -> None:
    with pytest.raises(EmbeddingError, match="sum to 3"):
        Embeddings(torch.zeros(4, 2), torch.tensor([1, 2], dtype=torch.int32))
