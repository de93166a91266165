"""Exact rankings: every query against every document, block by block, with the best kept and errors counted.

Room: `retrieve`. May import: declare (the cell), record, backends. Neither the scores of all pairs nor the whole
corpus are
ever held: a shard of documents is read, scored by the reference and by every backend, and let go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.metrics import ScoreError
from maxsim_bench.retrieve.scoring import (
    BLOCK_BYTES,
    DocumentBlock,
    Scorer,
    UnsupportedError,
    document_blocks,
    joined,
    query_blocks,
    require_numbers,
)

if TYPE_CHECKING:
    import torch

DEPTH = 1000
# A relative error is taken against the score, but at least this part of the query's largest score: a score that cancels
# to nearly 0 has no correct digits in any order of summation.
RELATIVE_FLOOR = 0.1


class TopK:
    """The best `depth` documents of every query so far, in trec_eval's order: score, then id, both descending.

    A result is one int64 key, larger is better: the fp32 score as an integer of the same order above, the rank of the
    document's id below; so a whole block is taken in by one selection, on the device that scored it.
    """

    def __init__(self, document_ids: Sequence[str], queries: int, depth: int) -> None:
        import torch

        self._by_rank = np.array(sorted(range(len(document_ids)), key=lambda i: document_ids[i]), dtype=np.int64)
        self._rank = torch.empty(len(document_ids), dtype=torch.int64)
        self._rank[torch.from_numpy(self._by_rank)] = torch.arange(len(document_ids))
        self.depth = min(depth, len(document_ids))
        self._keys = torch.full((queries, self.depth), _ABSENT, dtype=torch.int64)

    def update(self, places: Sequence[int], scores: torch.Tensor, columns: np.ndarray) -> None:
        """Take in scores [len(places), len(columns)] fp32 of the documents `columns` (indices into the corpus)."""
        import torch

        self._keys, self._rank = self._keys.to(scores.device), self._rank.to(scores.device)
        rank = self._rank[torch.from_numpy(columns).to(scores.device)]
        self._take(places, _ordered(scores) << 32 | rank)

    def put(self, scores: torch.Tensor, documents: torch.Tensor) -> None:
        """Take in scores [Nq, k] fp32 of documents [Nq, k] (indices into the corpus, -1 where there is none)."""
        import torch

        self._keys, self._rank = self._keys.to(scores.device), self._rank.to(scores.device)
        keys = _ordered(scores) << 32 | self._rank[documents.clamp_min(0)]
        self._take(range(scores.shape[0]), torch.where(documents < 0, _ABSENT, keys))

    def _take(self, places: Sequence[int], keys: torch.Tensor) -> None:
        import torch

        rows = torch.tensor(list(places), device=keys.device)
        if keys.shape[1] > self.depth:
            keys = keys.topk(self.depth, dim=1, sorted=False).values
        self._keys[rows] = torch.cat([self._keys[rows], keys], 1).topk(self.depth, dim=1).values

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Documents [Nq, depth] int64 (-1 where there is none) and their scores [Nq, depth] fp32, best first."""
        import torch

        keys = self._keys.cpu()
        absent = keys == _ABSENT
        high = (keys >> 32).to(torch.int32)
        scores = torch.where(high < 0, high ^ 0x7FFFFFFF, high).view(torch.float32)
        documents = self._by_rank[(keys & 0xFFFFFFFF).masked_fill(absent, 0).numpy()]
        documents[absent.numpy()] = -1
        return documents, scores.masked_fill(absent, -torch.inf).numpy()


_ABSENT = -(2**63)  # key of a result that is not there; no fp32 number has it


def _ordered(scores: torch.Tensor) -> torch.Tensor:
    """fp32 scores as int64 of the same order; -0 counts as 0."""
    import torch

    bits = (scores + 0.0).view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)


@dataclass
class ScoreErrors:
    """How far a backend's scores are from the reference's, over every pair.

    Attributes:
        max_abs, max_rel: [Nq] float64, largest errors of each query. A relative error is taken against
            max(|reference|, RELATIVE_FLOOR · largest |reference| of the query in the block).
        document_max_rel: [B] float64, largest relative error of each document.
        total_abs, pairs: sum of absolute errors over finite pairs, and their number.
        worst: (relative error, query, document) of the worst pair, as indices.
        half: dtype of 16 bits that all scores fit exactly, None if there is none.
    """

    max_abs: np.ndarray
    max_rel: np.ndarray
    document_max_rel: np.ndarray
    total_abs: float = 0.0
    pairs: int = 0
    worst: tuple[float, int, int] = (0.0, -1, -1)
    fits: dict[str, bool] = field(default_factory=lambda: {"float16": True, "bfloat16": True})

    @classmethod
    def empty(cls, queries: int, documents: int) -> ScoreErrors:
        return cls(np.zeros(queries), np.zeros(queries), np.zeros(documents))

    @property
    def half(self) -> str | None:
        return next((name for name in ("bfloat16", "float16") if self.fits[name] and self.pairs), None)

    @property
    def mean_abs(self) -> float:
        return self.total_abs / self.pairs if self.pairs else 0.0

    def update(self, places: Sequence[int], columns: np.ndarray, got: torch.Tensor, want: torch.Tensor) -> None:
        """Count one block [len(places), len(columns)] fp32, on any device.

        Equal infinities differ by 0; an infinity on one side only is an infinite error.
        """
        import torch

        a, b = got.double(), want.double()
        difference = torch.where(a == b, 0.0, (a - b).abs())
        size = torch.where(b.isfinite(), b.abs(), 0.0)
        relative = torch.where(
            difference == 0, 0.0, difference / torch.maximum(size, RELATIVE_FLOOR * size.amax(1, keepdim=True))
        ).nan_to_num(nan=np.inf, posinf=np.inf)
        usable = difference.isfinite()
        rows = np.asarray(places)
        self.max_abs[rows] = np.maximum(self.max_abs[rows], difference.amax(1).cpu().numpy())
        self.max_rel[rows] = np.maximum(self.max_rel[rows], relative.amax(1).cpu().numpy())
        self.document_max_rel[columns] = np.maximum(self.document_max_rel[columns], relative.amax(0).cpu().numpy())
        self.total_abs += float(torch.where(usable, difference, 0.0).sum())
        self.pairs += int(usable.sum())
        flat = int(relative.argmax())
        largest = float(relative.flatten()[flat])
        if largest > self.worst[0]:
            row, column = divmod(flat, relative.shape[1])
            self.worst = (largest, int(rows[row]), int(columns[column]))
        for name in self.fits:
            if self.fits[name]:
                self.fits[name] = bool((got.to(getattr(torch, name)).float() == got).all())


@dataclass
class Ranked:
    """What one scorer gave over the whole corpus.

    Attributes:
        top: best documents of every query.
        errors: against the reference; None for the reference itself.
        failure: (status, message) where it could not be scored, and the rest means nothing.
        exact_first: of a search: share of queries whose first ten, asked for alone, are the reference's ten best.
    """

    top: TopK
    errors: ScoreErrors | None = None
    failure: tuple[str, str] | None = None
    exact_first: float | None = None


def rank(
    dataset: Dataset,
    queries: Embeddings,
    corpus: Corpus,
    reference: Scorer,
    scorers: Mapping[str, Scorer],
    *,
    depth: int = DEPTH,
) -> tuple[Ranked, dict[str, Ranked]]:
    """Rank every query by the reference and by every scorer, in one pass over the corpus.

    Args:
        queries: in the order of `dataset.queries`.
        corpus: in the order of `dataset.document_ids`.
        depth: documents kept for each query.

    Returns:
        The reference's ranking, and each scorer's with its errors. A scorer that fails is told so and left alone from
        then on; the others go on.

    Raises:
        ScoreError: if the reference's own score is NaN.
        ValueError: if the embeddings do not belong to the data set.
    """
    require_belonging(dataset, queries, corpus)
    ids, query_ids = dataset.document_ids, list(dataset.queries)
    base = Ranked(TopK(ids, len(query_ids), depth))
    found = {
        name: Ranked(TopK(ids, len(query_ids), depth), ScoreErrors.empty(len(query_ids), len(ids))) for name in scorers
    }
    for block in blocks(queries, corpus, reference.device):
        score_block(block, reference, scorers, base, found, query_ids, ids)
    return base, found


def score_block(
    block: Block,
    reference: Scorer,
    scorers: Mapping[str, Scorer],
    base: Ranked,
    found: Mapping[str, Ranked],
    query_ids: list[str],
    ids: list[str],
) -> None:
    """Score one block by the reference into `base` and by every scorer that has not failed into `found`."""
    want = reference.scores(block.queries, block.documents)
    names = [query_ids[i] for i in block.places]
    require_numbers(want, names, [ids[i] for i in block.documents.columns], "reference")
    base.top.update(block.places, want, block.documents.columns)
    for name, scorer in scorers.items():
        one = found[name]
        if one.failure is None:
            one.failure = _take(one, scorer, block, want, names, ids)


def _take(
    one: Ranked, scorer: Scorer, block: Block, want: torch.Tensor, names: list[str], ids: list[str]
) -> tuple[str, str] | None:
    """Score one block into `one`; what went wrong, or None. Any exception of a backend is its row's status."""
    import torch

    assert one.errors is not None
    try:
        got = scorer.scores(block.queries, block.documents)
        require_numbers(got, names, [ids[i] for i in block.documents.columns], scorer.backend.name)
    except UnsupportedError as error:
        return "unsupported", str(error)
    except ScoreError as error:
        return "incorrect", str(error)
    except torch.cuda.OutOfMemoryError as error:
        return "oom", str(error).splitlines()[0]
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    one.top.update(block.places, got, block.documents.columns)
    one.errors.update(block.places, block.documents.columns, got, want)
    return None


@dataclass(frozen=True)
class Block:
    """Some queries, with their places among all, against some documents."""

    places: list[int]
    queries: Embeddings
    documents: DocumentBlock


def blocks(queries: Embeddings, corpus: Corpus, device: str, only: np.ndarray | None = None) -> Iterator[Block]:
    """The corpus by shards and blocks, the queries by length; `only` leaves out blocks without these documents.

    The cut does not depend on `only`, so a block comes back exactly as it was scored before.
    """
    budget = BLOCK_BYTES[device.split(":")[0]]
    longest = max(1, int(queries.lengths.max())) if len(queries) else 1
    for start, part in joined(corpus.parts(), longest, budget):
        for first, last in document_blocks(part, longest, budget):
            columns = np.arange(start + first, start + last)
            if only is not None and not np.isin(columns, only).any():
                continue
            documents = part.slice(first, last)
            block = DocumentBlock(documents, columns, device)
            for group in query_blocks(queries, len(documents), max(1, int(documents.lengths.max())), budget):
                yield Block(group.places, group.queries, block)


def columns_of(scorer: Scorer, queries: Embeddings, corpus: Corpus, documents: Sequence[int]) -> torch.Tensor:
    """[Nq, len(documents)] fp32 on the CPU: what `scorer` gives these documents, in the blocks in which it ranked."""
    import torch

    wanted = np.asarray(documents)
    out = torch.full((len(queries), len(wanted)), torch.nan)
    for block in blocks(queries, corpus, scorer.device, only=wanted):
        got = scorer.scores(block.queries, block.documents).cpu()
        at = {int(c): i for i, c in enumerate(block.documents.columns)}
        for j, document in enumerate(wanted.tolist()):
            if document in at:
                out[torch.tensor(block.places), j] = got[:, at[document]]
    return out


def require_belonging(dataset: Dataset, queries: Embeddings, corpus: Corpus) -> None:
    """ValueError unless there is one embedding for each query and document, and both are of one width."""
    for what, have, need in (
        ("queries", len(queries), len(dataset.queries)),
        ("documents", len(corpus), len(dataset.document_ids)),
    ):
        if have != need:
            raise ValueError(
                f"{dataset.name}: embeddings of {have} {what} for {need}: they do not belong to it. Encode again."
            )
    if queries.d != corpus.d:
        raise ValueError(f"{dataset.name}: queries are {queries.d} wide, documents {corpus.d}: two different encoders.")


def rankings(dataset: Dataset, top: TopK) -> dict[str, dict[str, float]]:
    """query id → document id → score in ranking order, without the query's own id where the data set drops it."""
    documents, scores = top.best()
    out = {}
    for query, row, values in zip(dataset.queries, documents.tolist(), scores.tolist(), strict=True):
        named = ((dataset.document_ids[i], score) for i, score in zip(row, values, strict=True) if i >= 0)
        out[query] = {d: s for d, s in named if not (dataset.drop_own_id and d == query)}
    return out
