"""A real contrastive run: a 384 → 128 token projection over a frozen encoder, trained by ours or by eager autograd.

Room: `retrieve`. May import: record, backends, `maxsim`. In: token embeddings of queries and of their relevant
documents. Out: loss curves and a projection. Both scorers see the same batches in the same order from the same start,
so their curves may only part by rounding; the spread between seeds is the yardstick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from maxsim_bench.retrieve.cache import Corpus
from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.metrics import evaluate

if TYPE_CHECKING:
    import torch

Scorer = Literal["fused", "eager"]
ENCODER = "minilm"
_BLOCK_DOCUMENTS = 256


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run beside its data.

    Attributes:
        scorer: what scores and differentiates a batch.
        d: width of the projected tokens.
        batch: queries a step, each with one relevant document; the others' documents are its negatives.
        temperature: scores are divided by it before the cross-entropy.
        held_out: queries kept apart; the epoch with their lowest loss is the one whose weights are kept.
        dtype: of the projected tokens as they are scored.
    """

    scorer: Scorer = "fused"
    seed: int = 0
    d: int = 128
    batch: int = 32
    epochs: int = 6
    learning_rate: float = 3e-4
    temperature: float = 0.5
    held_out: int = 80
    dtype: Literal["fp16", "bf16", "fp32"] = "fp32"


@dataclass
class Run:
    """What a run gave: the loss of every step, the held-out loss of every epoch, the best epoch's weights [d, D]."""

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    weight: torch.Tensor | None = None


def relevant_pairs(dataset: Dataset) -> list[tuple[int, int]]:
    """(place in `dataset.queries`, place in `dataset.document_ids`) of each judgement above 0."""
    queries = {q: i for i, q in enumerate(dataset.queries)}
    documents = {d: i for i, d in enumerate(dataset.document_ids)}
    return [
        (queries[q], documents[d])
        for q, judged in dataset.qrels.items()
        if q in queries
        for d, grade in judged.items()
        if grade > 0 and d in documents
    ]


def start(documents: Embeddings, d: int) -> torch.Tensor:
    """[d, D] fp32: the leading principal directions of the documents' tokens, which lose least of their products."""
    import torch

    x = documents.values[:: max(1, documents.values.shape[0] // 50_000)].float()
    return torch.linalg.eigh(x.T @ x).eigenvectors[:, -d:].T.contiguous()


def train(
    queries: Embeddings,
    documents: Embeddings,
    pairs: Sequence[tuple[int, int]],
    settings: Settings,
    device: str = "cpu",
) -> Run:
    """Train a projection on pairs of places in `queries` and `documents`.

    Raises:
        ValueError: if fewer pairs are given than are held out and fill a batch.
    """
    import torch

    if len(pairs) < settings.held_out + settings.batch:
        raise ValueError(
            f"{len(pairs)} pairs do not fill a batch of {settings.batch} beside {settings.held_out} held out"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    order = torch.randperm(len(pairs), generator=generator).tolist()
    kept, apart = [pairs[i] for i in order[settings.held_out :]], [pairs[i] for i in order[: settings.held_out]]
    weight = start(documents, settings.d).to(device).requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=settings.learning_rate)
    run, best = Run(), float("inf")
    for _ in range(settings.epochs):
        shuffled = [kept[i] for i in torch.randperm(len(kept), generator=generator).tolist()]
        for chosen in _batches(shuffled, settings.batch):
            loss = _loss(weight, queries, documents, chosen, settings, device)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            run.losses.append(loss.item())
        with torch.no_grad():
            chunks = list(_batches(apart, settings.batch)) or [apart]
            held = [_loss(weight, queries, documents, c, settings, device).item() for c in chunks]
        run.held_out.append(sum(held) / len(held))
        if run.held_out[-1] < best:
            best, run.weight = run.held_out[-1], weight.detach().cpu().clone()
    return run


def _batches(pairs: Sequence[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    """Full batches without a document or a query twice; a pair that would repeat one waits for the next batch."""
    waiting = list(pairs)
    while waiting:
        chosen: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []
        seen: tuple[set[int], set[int]] = (set(), set())
        for q, d in waiting:
            fits = len(chosen) < size and q not in seen[0] and d not in seen[1]
            (chosen if fits else later).append((q, d))
            if fits:
                seen[0].add(q)
                seen[1].add(d)
        if len(chosen) < size:
            return
        yield chosen
        waiting = later


def _loss(
    weight: torch.Tensor, queries: Embeddings, documents: Embeddings, pairs: Sequence[tuple[int, int]], settings:
    Settings,
    device: str,
) -> torch.Tensor:  # fmt: skip
    """Cross-entropy of each query's own document among those of the batch."""
    import torch

    q, d = queries.select([p[0] for p in pairs]), documents.select([p[1] for p in pairs])
    scores = _scores(weight, q, d, settings, device).float() / settings.temperature
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(pairs), device=scores.device))


def _scores(weight: torch.Tensor, q: Embeddings, d: Embeddings, settings: Settings, device: str) -> torch.Tensor:
    """[n, n] by the scorer of the settings."""
    import torch

    import maxsim
    from maxsim import baselines

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[settings.dtype]
    q_rows, d_rows = (project(weight, x.values.to(device)).to(dtype) for x in (q, d))
    q_offsets, d_offsets = q.offsets().to(device), d.offsets().to(device)
    if settings.scorer == "fused":
        return maxsim.maxsim(q_rows, d_rows, q_cu_seqlens=q_offsets, d_cu_seqlens=d_offsets)
    Q, D = (_padded(rows, x.lengths.to(device)) for rows, x in ((q_rows, q), (d_rows, d)))
    return baselines.eager(Q, D, d.lengths.to(device), q.lengths.to(device))


def _padded(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[n, L, d] of packed rows, differentiable."""
    import torch

    return torch.nn.utils.rnn.pad_sequence(list(rows.split(lengths.tolist())), batch_first=True)


def project(weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[T, d] fp32 of unit length: tokens [T, D] through weight [d, D]."""
    import torch

    return torch.nn.functional.normalize(values.float() @ weight.T, dim=-1)


def ndcg_at_10(
    weight: torch.Tensor | None, dataset: Dataset, queries: Embeddings, corpus: Corpus, device: str = "cpu"
) -> float:
    """nDCG@10 of exact MaxSim over projected tokens (as they are for weight None)."""
    import torch

    import maxsim

    def batch(x: Embeddings) -> maxsim.TokenBatch:
        values = x.values.to(device)
        rows = values.float() if weight is None else project(weight.to(device), values)
        return maxsim.tokens(rows, cu_seqlens=x.offsets().to(device))

    q, columns = batch(queries), []
    for _, part in corpus.parts():
        for first in range(0, len(part), _BLOCK_DOCUMENTS):
            block = part.slice(first, min(first + _BLOCK_DOCUMENTS, len(part)))
            columns.append(maxsim.maxsim(q, batch(block)).cpu())
    scores = torch.cat(columns, dim=1)
    top = scores.topk(min(100, scores.shape[1]), dim=1)
    run = {
        query: {dataset.document_ids[i]: s for i, s in zip(ids, values, strict=True)}
        for query, ids, values in zip(dataset.queries, top.indices.tolist(), top.values.tolist(), strict=True)
    }
    return evaluate(run, dataset.qrels, drop_own_id=dataset.drop_own_id).means["ndcg_at_10"]


@dataclass(frozen=True)
class Pool:
    """What a run trains on and what it is judged by.

    Attributes:
        queries, documents: embeddings that pairs name by place.
        pairs: (query, document), one for each relevant judgement.
        test, test_queries, corpus: the test split, its queries, and all documents that they rank.
    """

    queries: Embeddings
    documents: Embeddings
    pairs: list[tuple[int, int]]
    test: Dataset
    test_queries: Embeddings
    corpus: Corpus


def scifact(data_dir: Path | None, device: str = "cpu") -> Pool:
    """Token embeddings of SciFact's training queries, their relevant documents, its test queries and its corpus."""
    from maxsim_bench.retrieve.cache import document_embeddings, query_embeddings
    from maxsim_bench.retrieve.datasets.registry import load_dataset
    from maxsim_bench.retrieve.encoders.registry import load_encoder

    encoder = load_encoder(ENCODER, device)
    learn, test = (load_dataset("scifact", split, data_dir=data_dir) for split in ("train", "test"))
    corpus = document_embeddings(test, encoder)
    pairs = relevant_pairs(learn)
    used = sorted({d for _, d in pairs})
    places = {d: i for i, d in enumerate(used)}
    return Pool(
        query_embeddings(learn, encoder), corpus.select(used), [(q, places[d]) for q, d in pairs], test,
        query_embeddings(test, encoder), corpus,
    )  # fmt: skip
