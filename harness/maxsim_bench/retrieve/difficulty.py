"""How hard a collection is: nDCG@10 of BM25, of one mean vector a text, and of MaxSim, over the same texts and encoder.

Room: `retrieve`. May import: declare (the cell), record, backends. A collection that words alone answer, or that
nothing answers, tells scorers nothing apart. `python -m maxsim_bench.retrieve.difficulty apidocs` prints the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from maxsim_bench.backends import registry
from maxsim_bench.declare.cell import Cell
from maxsim_bench.retrieve.cache import document_embeddings, query_embeddings
from maxsim_bench.retrieve.dataset import DataError, Dataset
from maxsim_bench.retrieve.datasets.registry import load_dataset
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.encoders.base import EncoderError
from maxsim_bench.retrieve.encoders.registry import load_encoder
from maxsim_bench.retrieve.metrics import DEPTH, evaluate_rankings
from maxsim_bench.retrieve.rank import TopK, rank, rankings
from maxsim_bench.retrieve.rerank import bm25_candidates
from maxsim_bench.retrieve.scoring import Scorer

if TYPE_CHECKING:
    import torch


def difficulty(dataset: Dataset, queries: Embeddings, corpus: Corpus, device: str = "cpu") -> dict[str, float]:
    """nDCG@10 of "bm25", "single_vector" (cosine of mean token embeddings) and "maxsim"."""
    cell = Cell(experiment="difficulty", gpu=device, op="fidelity", dtype="fp32")
    base, _ = rank(dataset, queries, corpus, Scorer(registry.get("reference"), cell, device), {}, depth=DEPTH + 1)
    lists = {
        "bm25": bm25_candidates(dataset, DEPTH + 1),
        "single_vector": _lists(dataset, _single_vector(dataset, queries, corpus)),
        "maxsim": _lists(dataset, base.top),
    }
    found = {}
    for name, ranked in lists.items():
        own = {q: [d for d in ids if not (dataset.drop_own_id and d == q)][:DEPTH] for q, ids in ranked.items()}
        found[name] = evaluate_rankings(own, dataset.qrels).means["ndcg_at_10"]
    return found


def mean_vectors(embeddings: Embeddings) -> torch.Tensor:
    """[n, d] fp32 unit vectors: the mean of each item's tokens, 0 for an item without any."""
    import torch

    owner = torch.repeat_interleave(torch.arange(len(embeddings)), embeddings.lengths.to(torch.int64))
    sums = torch.zeros((len(embeddings), embeddings.d)).index_add_(0, owner, embeddings.values.float())
    return torch.nn.functional.normalize(sums, dim=-1)


def _single_vector(dataset: Dataset, queries: Embeddings, corpus: Corpus) -> TopK:
    import numpy as np

    top = TopK(dataset.document_ids, len(queries), DEPTH + 1)
    asked = mean_vectors(queries)
    for first, part in corpus.parts():
        top.update(range(len(queries)), asked @ mean_vectors(part).T, np.arange(first, first + len(part)))
    return top


def _lists(dataset: Dataset, top: TopK) -> dict[str, list[str]]:
    return {q: list(scores) for q, scores in rankings(dataset, top).items()}


def main(names: Sequence[str]) -> None:
    """Print a line a collection ("finslides:L0" names a split), under the offline encoder."""
    print(f"{'collection':16} {'BM25':>7} {'one vector':>11} {'MaxSim':>7}")
    for name in names:
        base, _, split = name.partition(":")
        dataset, encoder = load_dataset(base, split or None), load_encoder("minilm")
        found = difficulty(dataset, query_embeddings(dataset, encoder), document_embeddings(dataset, encoder))
        print(f"{name:16} {found['bm25']:7.3f} {found['single_vector']:11.3f} {found['maxsim']:7.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m maxsim_bench.retrieve.difficulty", description=main.__doc__)
    parser.add_argument("names", nargs="+", metavar="COLLECTION", help="apidocs, a BEIR data set, finslides:L0")
    try:
        main(parser.parse_args().names)
    except (DataError, EncoderError) as error:
        sys.exit(f"Error: {error}")
