"""Page-image encoders, through models of the same classes built here with a few thousand weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from maxsim_bench.retrieve.dataset import Document
from maxsim_bench.retrieve.encoders.base import EncoderError
from maxsim_bench.retrieve.encoders.colpali import FAMILIES, family_of
from maxsim_bench.retrieve.encoders.registry import load_encoder

SIDE, PATCH = 28, 14
_SPECIAL = ["<image>", "<bos>", "<eos>", "<pad>", "<unk>"]
_QWEN = [
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|endoftext|>",
]


@pytest.fixture
def engine() -> Any:
    """colpali_engine.models, where it can be imported."""
    try:
        from colpali_engine import models
    except (ImportError, RuntimeError) as error:  # torchvision raises RuntimeError beside a torch of another build
        pytest.skip(f"colpali-engine is not usable here ({error}): pip install 'maxsim-bench[vision]'")
    return models


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["Describe", "the", "image", ".", "user", "what", "is", "shown", "here", "?"]
    vocabulary = {w: i for i, w in enumerate([*_SPECIAL, *_QWEN, *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    made.add_special_tokens({"additional_special_tokens": ["<image>", *_QWEN]})
    return made


def _colpali(models: Any, folder: Path) -> None:
    from transformers import PaliGemmaConfig, SiglipImageProcessor

    tokenizer = _tokenizer()
    images = SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    images.image_seq_length = (SIDE // PATCH) ** 2
    processor = models.ColPaliProcessor(image_processor=images, tokenizer=tokenizer)
    config = PaliGemmaConfig(
        vision_config={
            "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": SIDE, "patch_size": PATCH, "projection_dim": 16,
        },
        text_config={
            "model_type": "gemma", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": len(processor.tokenizer),
        },
        image_token_index=processor.image_token_id,
        projection_dim=16,
        hidden_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    models.ColPali(config).save_pretrained(folder)
    processor.save_pretrained(folder)


def _page(shade: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (shade, 255 - shade, shade // 2)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.slow
def test_a_colpali_model_gives_unit_tokens_for_pages_and_queries(engine: Any, tmp_path: Path) -> None:
    """Every patch and prompt token of a page, every token of a query, none of the padding; the prefix is on record."""
    _colpali(engine, tmp_path / "tiny")
    encoder = load_encoder(f"colpali:{tmp_path / 'tiny'}")
    pages = encoder.documents([Document("a", image=_page(10)), Document("b", image=_page(200))])
    assert len(pages) == 2
    assert pages.d == 128
    assert (pages.lengths > (SIDE // PATCH) ** 2).all()
    queries = encoder.queries(["what is shown here", "what"])
    assert queries.lengths[0] == queries.lengths[1] + 3, "padding is left out"
    for one in (pages, queries):
        torch.testing.assert_close(one.values.float().norm(dim=-1), torch.ones(len(one.values)), atol=2e-3, rtol=0)
    alone = encoder.queries(["what"])
    torch.testing.assert_close(alone.values, queries.slice(1, 2).values, atol=2e-3, rtol=0)
    identity = encoder.identity
    assert identity.model == "tiny"
    assert identity.revision.startswith("sha256:")
    assert identity.document_prefix == engine.ColPaliProcessor.visual_prompt_prefix
    assert "10 x" in identity.masking


@pytest.mark.slow
def test_a_document_without_a_page_image_is_refused_by_name(engine: Any, tmp_path: Path) -> None:
    _colpali(engine, tmp_path / "tiny")
    with pytest.raises(EncoderError, match="document 'x' has none"):
        load_encoder(f"colpali:{tmp_path / 'tiny'}").documents([Document("x", text="only text")])


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("vidore/colpali-v1.3", "paligemma"),
        ("vidore/colqwen2-v1.0", "qwen2_vl"),
        ("vidore/colqwen2.5-v0.2", "qwen2_5_vl"),
        ("someone/ColQwen2_5-merged", "qwen2_5_vl"),
    ],
)
def test_a_model_of_the_hub_is_known_by_its_name(model: str, family: str) -> None:
    assert family_of(model) == family
    assert family in FAMILIES


def test_a_local_model_is_known_by_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_vl"}))
    assert family_of(str(tmp_path)) == "qwen2_vl"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(EncoderError, match="model_type is 'bert'"):
        family_of(str(tmp_path))


def test_a_name_of_no_family_is_told_with_the_models_there_are() -> None:
    with pytest.raises(EncoderError, match=r"vidore/colpali-v1\.3"):
        family_of("someone/model")


def test_a_model_that_is_not_named_is_asked_for() -> None:
    with pytest.raises(EncoderError, match="which model"):
        load_encoder("colpali")


def test_a_missing_package_is_told_with_its_install_line() -> None:
    try:
        import colpali_engine  # noqa: F401
    except (ImportError, RuntimeError):
        with pytest.raises(EncoderError, match=r"maxsim-bench\[vision\]"):
            load_encoder("colpali:vidore/colpali-v1.3")
    else:
        pytest.skip("colpali-engine is installed, so nothing is missing")


@pytest.mark.slow
def test_weights_that_cannot_be_fetched_are_told_with_what_to_do(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match="Download the model where"):
        load_encoder("colpali:someone/colpali-that-is-nowhere").queries(["what"])
