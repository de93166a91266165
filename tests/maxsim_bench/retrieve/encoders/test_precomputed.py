"""Embeddings that users bring are read as documented, in the order of the collection, or refused with the reason."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from maxsim_bench.backends import registry
from maxsim_bench.retrieve.cache import document_embeddings, query_embeddings
from maxsim_bench.retrieve.embeddings import EmbeddingError, Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError
from maxsim_bench.retrieve.encoders.registry import load_encoder
from maxsim_bench.retrieve.rank import rank, rankings
from maxsim_bench.retrieve.scoring import Scorer

FACTS = {"name": "mine", "model": "me/model", "revision": "abc", "d": 24, "query_prefix": "query: "}


def _write(folder: Path, stem: str, ids: list[str], embeddings: Embeddings, kind: str, shards: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "encoder.json").write_text(json.dumps(FACTS))
    (folder / f"{stem}.ids.txt").write_text("\n".join(ids) + "\n")
    cuts = [len(ids) * i // shards for i in range(shards + 1)]
    for i, (first, last) in enumerate(pairwise(cuts)):
        part = embeddings.slice(first, last)
        name = stem if shards == 1 else f"{stem}-{i:04d}"
        if kind == "npy":
            np.save(folder / f"{name}.npy", part.values.numpy())
            np.save(folder / f"{name}.lengths.npy", part.lengths.numpy())
        else:
            save_file({"values": part.values.contiguous(), "lengths": part.lengths}, folder / f"{name}.safetensors")


@pytest.fixture
def bundle(collection, tmp_path: Path):
    """A folder that holds a collection's embeddings in the reverse order, and a document more."""
    made = collection()
    folder = tmp_path / "bundle"

    def write(kind: str = "npy", shards: int = 1):
        order = list(reversed(range(len(made.documents))))
        ids = [made.dataset.document_ids[i] for i in order]
        _write(folder, "documents", [*ids, "extra"], made.documents.select([*order, 0]), kind, shards)
        _write(folder, "queries", list(made.dataset.queries), made.queries, kind)
        return made, folder

    return write


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["npy", "safetensors"])
def test_a_folder_gives_what_it_holds_in_the_order_of_the_collection(bundle, kind: str, shards: int) -> None:
    made, folder = bundle(kind, shards)
    encoder = load_encoder(f"precomputed:{folder}")
    documents = document_embeddings(made.dataset, encoder)
    queries = query_embeddings(made.dataset, encoder)
    assert torch.equal(queries.values, made.queries.values)
    assert documents.lengths.tolist() == made.documents.lengths.tolist()
    loaded = Embeddings.concatenate([part for _, part in documents.parts()])
    assert torch.equal(loaded.values, made.documents.values)
    assert encoder.identity.query_prefix == "query: "


def test_rankings_over_it_are_those_of_the_embeddings_themselves(bundle, cell) -> None:
    made, folder = bundle("safetensors", 2)
    encoder = load_encoder(f"precomputed:{folder}")
    reference = Scorer(registry.get("reference"), cell(), "cpu")
    documents, queries = document_embeddings(made.dataset, encoder), query_embeddings(made.dataset, encoder)
    base, _ = rank(made.dataset, queries, documents, reference, {})
    direct, _ = rank(made.dataset, made.queries, made.documents, reference, {})
    assert rankings(made.dataset, base.top) == rankings(made.dataset, direct.top)


def test_embeddings_that_do_not_belong_to_the_corpus_are_refused_by_id(bundle) -> None:
    made, folder = bundle()
    ids = (folder / "documents.ids.txt").read_text().replace("d007\n", "e007\n")
    (folder / "documents.ids.txt").write_text(ids)
    with pytest.raises(EmbeddingError, match=r"do not belong to made-up: 1 of 40 documents have none \('d007'\)"):
        document_embeddings(made.dataset, load_encoder(f"precomputed:{folder}"))


def _spoil(folder: Path, how: str) -> None:
    if how == "an id twice":
        with (folder / "documents.ids.txt").open("a") as file:
            file.write("d001\n")
    elif how == "an id too many":
        with (folder / "documents.ids.txt").open("a") as file:
            file.write("another\n")
    elif how == "lengths":
        lengths = np.load(folder / "documents.lengths.npy")
        lengths[0] += 1
        np.save(folder / "documents.lengths.npy", lengths)
    elif how == "no lengths":
        (folder / "documents.lengths.npy").unlink()
    elif how == "width":
        np.save(folder / "documents.npy", np.load(folder / "documents.npy")[:, :5])
    elif how == "norms":
        np.save(folder / "documents.npy", np.load(folder / "documents.npy") * np.float16(2))
    elif how == "no values":
        (folder / "documents.npy").unlink()
    elif how == "no ids":
        (folder / "documents.ids.txt").unlink()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("an id twice", r"documents\.ids\.txt:42: id 'd001' is there already, on line 39"),
        ("an id too many", "42 ids in documents.ids.txt for 41 embeddings"),
        ("lengths", "lengths sum to"),
        ("no lengths", "its lengths are missing"),
        ("width", r"needed are floats \[T, 24\]"),
        ("norms", "but encoder.json says they are normalised"),
        ("no values", r"needs documents\.safetensors or documents\.npy"),
        ("no ids", "cannot be read"),
    ],
)
def test_a_folder_that_is_not_as_documented_is_told_what_is_wrong(bundle, how: str, told: str) -> None:
    made, folder = bundle()
    _spoil(folder, how)
    with pytest.raises(EmbeddingError, match=told):
        document_embeddings(made.dataset, load_encoder(f"precomputed:{folder}"))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ("{", "not JSON"),
        (json.dumps({**FACTS, "prefix": "x"}), "unknown: prefix"),
        (json.dumps({"name": "mine"}), "missing: model, revision, d"),
    ],
)
def test_an_encoder_file_is_checked(bundle, facts: str, told: str) -> None:
    _, folder = bundle()
    (folder / "encoder.json").write_text(facts)
    with pytest.raises(EncoderError, match=told):
        load_encoder(f"precomputed:{folder}")


def test_it_encodes_no_new_text(bundle) -> None:
    _, folder = bundle()
    with pytest.raises(EncoderError, match="encodes no new text"):
        load_encoder(f"precomputed:{folder}").queries(["new"])


@pytest.mark.parametrize("name", ["precomputed", "precomputed:/nowhere/at/all"])
def test_a_folder_that_is_not_there_is_told(name: str) -> None:
    with pytest.raises(EncoderError, match=r"which folder|cannot be read"):
        load_encoder(name)


def test_an_unknown_encoder_is_told_with_the_nearest() -> None:
    with pytest.raises(EncoderError, match="Did you mean 'minilm'"):
        load_encoder("minilmm")
