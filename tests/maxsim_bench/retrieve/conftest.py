"""Small collections, encoders and deliberately broken backends for the tests of the room `retrieve`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from maxsim_bench.backends.base import Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.retrieve.dataset import Dataset, Document, build
from maxsim_bench.retrieve.embeddings import Embeddings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Every test has an embedding cache of its own, and no data set is found by accident.

    $MAXSIM_BENCH_TEST_CACHE, if set, is shared by the tests that encode real collections, which takes minutes.
    """
    shared = os.environ.get("MAXSIM_BENCH_TEST_CACHE") if "real_collections" in request.node.nodeid else None
    folder = Path(shared) if shared else tmp_path / "cache"
    monkeypatch.setenv("MAXSIM_BENCH_CACHE", str(folder))
    monkeypatch.delenv("MAXSIM_BENCH_DATA", raising=False)
    return folder


@pytest.fixture
def beir_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder in BEIR layout from raw bytes or text; parts that are not given are small and right."""

    def write(
        corpus: str | bytes = '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": "d2", "title": "", "text": "two"}\n',
        queries: str | bytes = '{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n',
        qrels: str | bytes = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
        name: str = "small",
        split: str = "test",
    ) -> Path:
        folder = tmp_path / name
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for file, content in (("corpus.jsonl", corpus), ("queries.jsonl", queries), (f"qrels/{split}.tsv", qrels)):
            (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return write


@dataclass(frozen=True)
class Collection:
    """A data set with its embeddings."""

    dataset: Dataset
    queries: Embeddings
    documents: Embeddings


@pytest.fixture
def collection() -> Callable[..., Collection]:
    """Random unit embeddings of a collection in which each query's relevant document is a noisy copy of it."""

    def make(
        queries: int = 12, documents: int = 40, d: int = 24, shift: float = 0.0, seed: int = 0, noise: float = 0.3
    ) -> Collection:
        generator = torch.Generator().manual_seed(seed)

        def unit(*shape: int) -> torch.Tensor:
            x = torch.randn(*shape, generator=generator) + shift
            return torch.nn.functional.normalize(x, dim=-1)

        q_lengths = torch.randint(2, 7, (queries,), generator=generator).tolist()
        d_lengths = torch.randint(1, 15, (documents,), generator=generator).tolist()
        q_tokens = [unit(n, d) for n in q_lengths]
        d_tokens = [unit(n, d) for n in d_lengths]
        for i, tokens in enumerate(q_tokens):
            own = tokens + noise * torch.randn(*tokens.shape, generator=generator)
            d_tokens[i] = torch.nn.functional.normalize(own, dim=-1)
        dataset = build(
            "made-up",
            "test",
            lambda: (Document(f"d{i:03d}", "", f"text {i}") for i in range(documents)),
            {f"q{i}": f"question {i}" for i in range(queries)},
            {f"q{i}": {f"d{i:03d}": 1} for i in range(queries)},
            manifest={"format": "made up"},
        )
        half = torch.float16
        return Collection(
            dataset,
            Embeddings.of([t.to(half) for t in q_tokens], d),
            Embeddings.of([t.to(half) for t in d_tokens], d),
        )

    return make


@dataclass(frozen=True)
class Fake:
    """A backend made of a function from padded fp32 operands and their masks to scores [Nq, B]."""

    name: str
    score: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    exact: bool = True
    install: str | None = None
    refuses: Callable[[Cell], str | None] = lambda cell: None
    relative: float = 1e-5
    length_multiple: int = 1
    empty_documents: bool = True

    def version(self) -> str:
        return "1"

    def supports(self, cell: Cell, device: str) -> str | None:
        return self.refuses(cell)

    def tolerance(self, cell: Cell) -> float:
        return self.relative

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        Q = inputs.Q.float()
        q_lengths = torch.full((Q.shape[0],), Q.shape[1]) if inputs.q_lengths is None else inputs.q_lengths
        if inputs.cu_seqlens is not None:
            assert inputs.d_lengths is not None
            D = torch.nn.utils.rnn.pad_sequence(
                list(inputs.D.float().split(inputs.d_lengths.tolist())), batch_first=True
            )
        else:
            D = inputs.D.float()
        d_lengths = torch.full((D.shape[0],), D.shape[1]) if inputs.d_lengths is None else inputs.d_lengths
        q_valid = torch.arange(Q.shape[1]) < q_lengths[:, None]
        d_valid = torch.arange(D.shape[1]) < d_lengths[:, None]
        return lambda: self.score(Q, q_valid, D, d_valid)


def similarities(Q: torch.Tensor, q_valid: torch.Tensor, D: torch.Tensor, d_valid: torch.Tensor) -> torch.Tensor:
    """[Nq, B, Lq] fp32 maxima over valid document tokens, 0 for masked query tokens."""
    S = torch.einsum("nid,bjd->nbij", Q, D).masked_fill(~d_valid[None, :, None, :], float("-inf"))
    return S.amax(-1).masked_fill(~q_valid[:, None, :], 0.0)


def right(Q: torch.Tensor, q_valid: torch.Tensor, D: torch.Tensor, d_valid: torch.Tensor) -> torch.Tensor:
    """MaxSim as it should be."""
    return similarities(Q, q_valid, D, d_valid).sum(-1)


def unmasked(Q: torch.Tensor, q_valid: torch.Tensor, D: torch.Tensor, d_valid: torch.Tensor) -> torch.Tensor:
    """Zero padding takes part: the mistake behind the largest published difference of an exact path."""
    zeroed = D * d_valid[..., None]
    padded = torch.nn.functional.pad(zeroed, (0, 0, 0, 1))
    return torch.einsum("nid,bjd->nbij", Q, padded).amax(-1).masked_fill(~q_valid[:, None, :], 0.0).sum(-1)


def bf16_sum(Q: torch.Tensor, q_valid: torch.Tensor, D: torch.Tensor, d_valid: torch.Tensor) -> torch.Tensor:
    """Sums one query token after the other in bfloat16."""
    best = similarities(Q, q_valid, D, d_valid).bfloat16()
    total = torch.zeros(best.shape[:2], dtype=torch.bfloat16)
    for i in range(best.shape[2]):
        total = total + best[:, :, i]
    return total.float()


def swapped(Q: torch.Tensor, q_valid: torch.Tensor, D: torch.Tensor, d_valid: torch.Tensor) -> torch.Tensor:
    """The third and the fourth document of a block have each other's scores."""
    scores = right(Q, q_valid, D, d_valid)
    if scores.shape[1] > 3:
        scores[:, [2, 3]] = scores[:, [3, 2]]
    return scores


@pytest.fixture
def fake() -> Callable[..., Fake]:
    """Backends by name: right, unmasked, bf16_sum, swapped, or any function."""
    known = {"right": right, "unmasked": unmasked, "bf16_sum": bf16_sum, "swapped": swapped}

    def make(score: str | Callable[..., Any], **changes: Any) -> Fake:
        name = changes.pop("name", score if isinstance(score, str) else "fake")
        return Fake(name, known[score] if isinstance(score, str) else score, **changes)

    return make


@pytest.fixture
def cell() -> Callable[..., Cell]:
    """A fidelity cell."""

    def make(**changes: Any) -> Cell:
        base: dict[str, Any] = {"experiment": "fidelity", "gpu": "cpu", "op": "fidelity", "dataset": "made-up"}
        return Cell(**{**base, "split": "test", "encoder": "made-up", "dtype": "fp32", **changes})

    return make


@dataclass(frozen=True)
class Letters:
    """An encoder without weights: one token a letter, its embedding a fixed random unit vector."""

    identity: Any
    calls: list[int] | None = None

    def on(self, device: str) -> Letters:
        return self

    def queries(self, texts: Sequence[str]) -> Embeddings:
        if self.calls is not None:
            self.calls.append(len(texts))
        return Embeddings.of([self._one(t) for t in texts], self.identity.d)

    def documents(self, documents: Sequence[Document]) -> Embeddings:
        return self.queries([d.content for d in documents])

    def _one(self, text: str) -> torch.Tensor:
        d = self.identity.d
        rows = [torch.randn(d, generator=torch.Generator().manual_seed(ord(c))) for c in text]
        tokens = torch.stack(rows) if rows else torch.zeros((0, d))
        return torch.nn.functional.normalize(tokens, dim=-1).half()


@pytest.fixture
def letters() -> Callable[..., Letters]:
    """An encoder of letters; `calls` counts the texts of every call."""
    from maxsim_bench.retrieve.encoders.base import Identity

    def make(name: str = "letters", d: int = 8, calls: list[int] | None = None, **facts: Any) -> Letters:
        return Letters(Identity(name=name, model="none", revision="1", d=d, **facts), calls=calls)

    return make
