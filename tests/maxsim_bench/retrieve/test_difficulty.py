"""The difficulty of a collection is measured over the same texts for words, one vector and MaxSim."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.retrieve.difficulty import difficulty, mean_vectors
from maxsim_bench.retrieve.embeddings import Embeddings

pytest.importorskip("bm25s", reason="pip install 'maxsim-bench[text]'")


def test_maxsim_finds_copies_that_words_cannot(collection) -> None:
    """Texts of the made-up collection say nothing, its embeddings do."""
    made = collection(documents=200)
    found = difficulty(made.dataset, made.queries, made.documents)
    assert set(found) == {"bm25", "single_vector", "maxsim"}
    assert found["maxsim"] > 0.9
    assert found["bm25"] < found["single_vector"] <= 1.0


def test_a_mean_vector_is_the_mean_of_its_own_tokens_and_zero_without_any() -> None:
    tokens = Embeddings.of([torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(0, 2), torch.tensor([[3.0, 0.0]])], 2)
    want = torch.tensor([[2**-0.5, 2**-0.5], [0.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(mean_vectors(tokens), want)
