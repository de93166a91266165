"""The projected encoder: what it ships, what names it, and what it makes of another encoder's tokens."""

from __future__ import annotations

from importlib.resources import files

import torch

from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.encoders.base import Identity
from maxsim_bench.retrieve.encoders.minilm_colbert import NAME, WEIGHTS, MiniLMColBERT
from maxsim_bench.retrieve.encoders.registry import encoder_kinds


class Base:
    """An encoder of 384-wide random unit tokens, one a character."""

    identity = Identity(name="minilm", model="some/model", revision="sha256:0", query_length=256, d=384)

    def on(self, device: str) -> Base:
        return self

    def queries(self, texts: list[str]) -> Embeddings:
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randn(len(t), 384, generator=generator) for t in texts]
        return Embeddings.of([torch.nn.functional.normalize(x, dim=-1).half() for x in drawn], 384)

    def documents(self, documents: list[object]) -> Embeddings:
        return self.queries([str(d) for d in documents])


def test_it_is_found_by_name_and_its_projection_is_small():
    assert NAME in encoder_kinds()
    assert len((files("maxsim_bench.retrieve.encoders") / WEIGHTS).read_bytes()) < 1_000_000


def test_its_identity_holds_both_the_base_and_the_projection():
    found = MiniLMColBERT(Base(), "", "cpu").identity
    assert (found.name, found.d) == (NAME, 128)
    assert found.revision.startswith("sha256:0; projection sha256:")
    assert found.hash() != Base.identity.hash()


def test_tokens_are_projected_to_128_dimensions_of_unit_length_and_an_empty_text_has_none():
    found = MiniLMColBERT(Base(), "", "cpu").queries(["abc", "", "de"])
    assert found.lengths.tolist() == [3, 0, 2]
    assert found.values.shape == (5, 128)
    assert found.values.dtype == torch.float16
    torch.testing.assert_close(found.values.float().norm(dim=-1), torch.ones(5), rtol=0, atol=2e-3)
