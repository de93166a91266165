"""PyLate's encoders, through a model of the same class built here with a few thousand weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.encoders.base import EncoderError
from maxsim_bench.retrieve.encoders.registry import load_encoder


def _usable() -> str | None:
    try:
        import pylate  # noqa: F401
    except (ImportError, RuntimeError) as error:
        return str(error)
    return None


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A BERT of two layers with a word tokenizer, saved where PyLate can load it."""
    reason = _usable()
    if reason is not None:
        pytest.skip(
            f"pylate is not usable here ({reason}): its 1.6.0 pins torch 2.11, so it has an environment of its own"
        )
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "[unused0]",
        "[unused1]",
        "a",
        "small",
        "text",
        "longer",
        ".",
        "than",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    folder = tmp_path / "tiny"
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_colbert_gives_unit_tokens_and_its_prefixes_and_lengths_are_on_record(tiny: Path) -> None:
    encoder: Any = load_encoder(f"pylate:{tiny}")
    queries = encoder.queries(["a small text", "a"])
    documents = encoder.documents([Document("x", "", "a small text ."), Document("y", "longer", "than a small text")])
    assert queries.lengths.tolist() == [encoder.identity.query_length] * 2, "queries are filled up"
    assert documents.lengths[1] > documents.lengths[0]
    for one in (queries, documents):
        assert one.d == encoder.identity.d
        torch.testing.assert_close(one.values.float().norm(dim=-1), torch.ones(len(one.values)), atol=2e-3, rtol=0)
    assert encoder.identity.query_prefix
    assert encoder.identity.query_prefix != encoder.identity.document_prefix
    assert encoder.identity.revision.startswith("sha256:")


def test_a_missing_package_is_told_with_the_way_around() -> None:
    if _usable() is None:
        pytest.skip("pylate is installed, so nothing is missing")
    with pytest.raises(EncoderError, match="bring the embeddings"):
        load_encoder("pylate:lightonai/GTE-ModernColBERT-v1")


def test_a_model_that_is_not_named_is_asked_for() -> None:
    with pytest.raises(EncoderError, match="which model"):
        load_encoder("pylate")
