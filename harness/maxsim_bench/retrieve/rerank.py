"""Reranking: each query against its own candidates, which a first stage found.

Room: `retrieve`. May import: declare, record, backends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from maxsim_bench.retrieve.dataset import DataError, Dataset
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.metrics import ranked
from maxsim_bench.retrieve.rank import Block, Ranked, ScoreErrors, TopK, require_belonging, score_block
from maxsim_bench.retrieve.scoring import DocumentBlock, Scorer
from maxsim_bench.retrieve.trec import read_run

Candidates = Mapping[str, Sequence[str]]


def bm25_candidates(dataset: Dataset, depth: int) -> dict[str, list[str]]:
    """The `depth` best documents of every query by BM25 (bm25s, its defaults, English stop words)."""
    # bm25s calls JAX while it is imported, where that is installed; JAX would keep three quarters of the card's memory
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import bm25s
    except ImportError as error:
        raise DataError("BM25 as first stage needs the package bm25s: pip install 'maxsim-bench[text]'.") from error
    retriever = bm25s.BM25()
    texts = [d.content for d in dataset.documents()]
    retriever.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize(list(dataset.queries.values()), stopwords="en", show_progress=False)
    found, _ = retriever.retrieve(asked, k=min(depth, len(texts)), show_progress=False)
    return {q: [dataset.document_ids[int(i)] for i in row] for q, row in zip(dataset.queries, found, strict=True)}


def run_candidates(dataset: Dataset, path: Path, depth: int) -> dict[str, list[str]]:
    """The `depth` best documents of every query in a TREC run file.

    Raises:
        DataError: for a document that the collection does not have, or a run that shares no query with it.
    """
    known = set(dataset.document_ids)
    run = read_run(path)
    out = {q: ranked(run[q], query=q)[:depth] for q in dataset.queries if q in run}
    if not out:
        raise DataError(f"{path}: no query of it is one of {dataset.name}. These files do not belong together.")
    unknown = next(((q, d) for q, documents in out.items() for d in documents if d not in known), None)
    if unknown is not None:
        raise DataError(f"{path}: query {unknown[0]!r} has document {unknown[1]!r}, which {dataset.name} does not.")
    return out


def rerank(
    dataset: Dataset,
    queries: Embeddings,
    corpus: Corpus,
    candidates: Candidates,
    reference: Scorer,
    scorers: Mapping[str, Scorer],
) -> tuple[Ranked, dict[str, Ranked]]:
    """As `rank.rank`, each query against its own candidates only; a query without candidates ranks nothing."""
    require_belonging(dataset, queries, corpus)
    ids, query_ids = dataset.document_ids, list(dataset.queries)
    index = {d: i for i, d in enumerate(ids)}
    depth = max((len(c) for c in candidates.values()), default=0)
    base = Ranked(TopK(ids, len(query_ids), depth))
    found = {n: Ranked(TopK(ids, len(query_ids), depth), ScoreErrors.empty(len(query_ids), len(ids))) for n in scorers}
    # candidates are looked up again and again, so those documents, and no others, are in memory
    needed = sorted({index[d] for c in candidates.values() for d in c})
    pool, at = corpus.select(needed), {document: i for i, document in enumerate(needed)}
    for place, query in enumerate(query_ids):
        columns = np.array([index[d] for d in candidates.get(query, ())], dtype=np.int64)
        if columns.size == 0:
            continue
        documents = pool.select([at[c] for c in columns.tolist()])
        own = queries.slice(place, place + 1)
        score_block(
            Block([place], own, DocumentBlock(documents, columns, reference.device)),
            reference, scorers, base, found, query_ids, ids,
        )  # fmt: skip
    return base, found
