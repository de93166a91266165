"""One backend, one block of queries, one block of documents: scores, whatever layout the backend takes.

Room: `retrieve`. May import: declare (the cell), record, backends. Every backend gets the same token embeddings.
Documents
are packed, or padded with their lengths beside them; the padding holds large finite values, so a backend that reads it
shows. Query padding holds zeros: a zero token adds max over tokens of 0 = 0 to a score, so it changes nothing even
for a
backend that takes no query lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.retrieve.embeddings import Embeddings
from maxsim_bench.retrieve.metrics import ScoreError

if TYPE_CHECKING:
    import torch

# What padding of documents holds: finite, and larger than any similarity of unit vectors.
PADDING = 9.0
# Bytes of similarities [queries, documents, Lq, Ld] in fp32 that a backend which materialises them may need at a time.
# On a GPU several audits share it, and a backend may hold some copies of them.
BLOCK_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
# Packed before padded before unpadded, all queries at once before one by one.
WAYS = (("packed", True), ("masked", True), ("packed", False), ("masked", False), ("dense", False))
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class UnsupportedError(ValueError):
    """A backend that cannot score this cell on this device, with its own reason."""


class DocumentBlock:
    """Some documents with their tensors on a device, made once and read by every backend.

    Attributes:
        documents: the embeddings.
        columns: [n] int64, their indices in the corpus.
    """

    def __init__(self, documents: Embeddings, columns: np.ndarray, device: str) -> None:
        self.documents, self.columns, self.device = documents, columns, device
        self._made: dict[tuple[str, str, int], Any] = {}

    def __len__(self) -> int:
        return len(self.documents)

    def tensors(self, layout: str, dtype: str, multiple: int = 1) -> Any:
        """What `layout` needs: (D, lengths, offsets) packed, (D, lengths) masked, [(items, D)] dense.

        Args:
            multiple: of tokens that a masked D is padded to.
        """
        key = layout, dtype, multiple if layout == "masked" else 1
        if key not in self._made:
            if layout == "masked":
                self._made[key] = self._masked(dtype, multiple)
            else:
                self._made[key] = self._packed(dtype) if layout == "packed" else self._dense(dtype)
        return self._made[key]

    def _packed(self, dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = self.documents
        return (
            operand(own.values, dtype, self.device),
            own.lengths.to(self.device),
            own.offsets().to(self.device),
        )

    def _masked(self, dtype: str, multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows, lengths, _ = self.tensors("packed", dtype)
        length = rounded(int(self.documents.lengths.max()), multiple)
        return Embeddings(rows, self.documents.lengths).padded(length, PADDING), lengths

    def _dense(self, dtype: str) -> list[tuple[list[int], torch.Tensor]]:
        """Documents of equal length together, without padding."""
        by_length: dict[int, list[int]] = {}
        for i, length in enumerate(self.documents.lengths.tolist()):
            by_length.setdefault(length, []).append(i)
        groups = []
        for length, items in sorted(by_length.items()):
            values = self.documents.select(items).values.view(len(items), length, self.documents.d)
            groups.append((items, operand(values, dtype, self.device)))
        return groups


def rounded(length: int, multiple: int) -> int:
    """The next multiple, at least one token."""
    return max(1, -(-length // multiple)) * multiple


def operand(values: torch.Tensor, dtype: str, device: str) -> torch.Tensor:
    """Embeddings on the device in the cell's dtype ("fp16" ...)."""
    import torch

    return values.to(device, getattr(torch, DTYPES[dtype]))


@dataclass(frozen=True)
class Scorer:
    """A backend with what it is asked to score.

    Attributes:
        backend: from the registry, or any object like one.
        cell: the fidelity cell (dtype, precision, chunk and quantiser are handed on).
        device: "cpu" or "cuda".
    """

    backend: Backend
    cell: Cell
    device: str

    @property
    def dtype(self) -> str:
        """Of the operands."""
        return self.cell.dtype or "fp16"

    @property
    def multiple(self) -> int:
        """Of tokens that queries and documents are padded to; see `Backend.length_multiple`."""
        return int(getattr(self.backend, "length_multiple", 1))

    def scores(self, queries: Embeddings, block: DocumentBlock) -> torch.Tensor:
        """[queries, documents] fp32 on the scorer's device.

        Raises:
            UnsupportedError: if the backend takes none of the layouts.
            ValueError: if what it returns has another shape.
        """
        import torch

        out = torch.empty((len(queries), len(block)), dtype=torch.float32, device=self.device)
        if out.numel() == 0:
            return out
        layout, many = self.way(queries, block)
        for rows in [range(len(queries))] if many else [range(i, i + 1) for i in range(len(queries))]:
            part = queries.slice(rows.start, rows.stop)
            for columns, got in self._ask(layout, part, block):
                if tuple(got.shape) != (len(rows), len(columns)):
                    raise ValueError(
                        f"{self.backend.name} returned shape {tuple(got.shape)} for {len(rows)} queries and "
                        f"{len(columns)} documents"
                    )
                out[rows.start : rows.stop, columns] = got.detach().to(self.device, torch.float32)
        if not getattr(self.backend, "empty_documents", True):
            out[:, (block.documents.lengths == 0).to(self.device)] = empty_scores(queries, self.device)[:, None]
        return out

    def way(self, queries: Embeddings, block: DocumentBlock) -> tuple[str, bool]:
        """(layout, several queries at a time): the first that the backend supports, in the order of `WAYS`."""
        reasons = []
        for layout, many in WAYS:
            # a block of one query goes the way of the others: another way may be another kernel to tune
            Nq = max(2, len(queries)) if many else 1
            cell = self._cell(layout, queries, block.documents).model_copy(update={"Nq": Nq})
            why = self.backend.supports(cell, self.device)
            if why is None:
                return layout, many
            reasons.append(why)
        raise UnsupportedError("; ".join(dict.fromkeys(reasons)))

    def _ask(self, layout: str, queries: Embeddings, block: DocumentBlock) -> Iterator[tuple[list[int], Any]]:
        """(documents, scores) of one call, or of one call a length where documents may not be padded."""
        Lq = rounded(int(queries.lengths.max()), self.multiple)
        Q = operand(queries.padded(Lq), self.dtype, self.device)
        # one query stands without padding; one without tokens keeps a single zero token, which adds nothing
        q_lengths = None if len(queries) == 1 and self.multiple == 1 else queries.lengths.to(self.device)
        every = list(range(len(block)))
        if layout == "packed":
            D, lengths, offsets = block.tensors(layout, self.dtype)
            inputs = Inputs(Q=Q, D=D, q_lengths=q_lengths, d_lengths=lengths, cu_seqlens=offsets)
            yield every, self._call(layout, queries, block.documents, inputs)
        elif layout == "masked":
            D, lengths = block.tensors(layout, self.dtype, self.multiple)
            inputs = Inputs(Q=Q, D=D, q_lengths=q_lengths, d_lengths=lengths)
            yield every, self._call(layout, queries, block.documents, inputs)
        else:
            for items, D in block.tensors(layout, self.dtype):
                if D.shape[1] == 0:  # nothing to ask: no token, no score but the semantics' own
                    yield items, empty_scores(queries, self.device)[:, None].expand(-1, len(items))
                else:
                    group = block.documents.select(items)
                    yield items, self._call(layout, queries, group, Inputs(Q=Q, D=D))

    def _call(self, layout: str, queries: Embeddings, documents: Embeddings, inputs: Inputs) -> Any:
        cell = self._cell(layout, queries, documents)
        return self.backend.prepare(cell, inputs)()

    def _cell(self, layout: str, queries: Embeddings, documents: Embeddings) -> Cell:
        """The forward cell that describes this block to the backend."""
        given = self.cell
        return Cell(
            experiment=given.experiment,
            gpu=given.gpu,
            op="forward",
            Nq=len(queries),
            B=len(documents),
            Lq=rounded(int(queries.lengths.max()), self.multiple),
            Ld=rounded(int(documents.lengths.max()), self.multiple if layout != "dense" else 1),
            d=documents.d,
            dtype=self.dtype,  # type: ignore[arg-type]  # the cell's own
            layout=layout,  # type: ignore[arg-type]  # one of the literals, as `layout` spells them
            pairing="all",
            precision=given.precision,
            quantiser=given.quantiser,
            chunk=given.chunk,
        )


def empty_scores(queries: Embeddings, device: str) -> torch.Tensor:
    """[queries] fp32: what every query has with a document without tokens."""
    import torch

    return torch.where(queries.lengths > 0, float("-inf"), 0.0).to(device)


@dataclass(frozen=True)
class QueryBlock:
    """Queries of similar length that are scored together, and their places among all queries."""

    places: list[int]
    queries: Embeddings


def query_blocks(queries: Embeddings, documents: int, Ld: int, budget: int) -> list[QueryBlock]:
    """Queries by length, in blocks whose similarities with `documents` of Ld tokens fit `budget` bytes of fp32."""
    order = sorted(range(len(queries)), key=lambda i: (int(queries.lengths[i]), i))
    blocks: list[list[int]] = []
    for i in order:
        Lq = max(1, int(queries.lengths[i]))  # the longest so far
        fits = bool(blocks) and (len(blocks[-1]) + 1) * Lq * max(1, documents * Ld) * 4 <= budget
        shortest = max(1, int(queries.lengths[blocks[-1][0]])) if blocks else 0
        if fits and Lq <= 2 * shortest + 8:  # otherwise most of the block would be padding
            blocks[-1].append(i)
        else:
            blocks.append([i])
    return [QueryBlock(places, queries.select(places)) for places in blocks]


def joined(parts: Iterator[tuple[int, Embeddings]], Lq: int, budget: int) -> Iterator[tuple[int, Embeddings]]:
    """Parts of a corpus put together up to about one block of `document_blocks`, so that small shards are one call."""
    held: list[Embeddings] = []
    start = longest = documents = 0
    for first, part in parts:
        longest_so_far = max(longest, int(part.lengths.max()) if len(part) else 0)
        if held and 16 * max(1, Lq) * max(1, longest_so_far) * 4 * (documents + len(part)) > budget:
            yield start, Embeddings.concatenate(held)
            held, documents, longest_so_far = [], 0, int(part.lengths.max()) if len(part) else 0
        if not held:
            start = first
        held.append(part)
        longest, documents = longest_so_far, documents + len(part)
    if held:
        yield start, Embeddings.concatenate(held)


def document_blocks(documents: Embeddings, Lq: int, budget: int) -> list[tuple[int, int]]:
    """(first, last) of blocks of documents: 16 queries of Lq tokens with a block fit `budget` bytes of fp32."""
    longest = max(1, int(documents.lengths.max())) if len(documents) else 1
    step = max(1, budget // (16 * max(1, Lq) * longest * 4))
    return [(first, min(first + step, len(documents))) for first in range(0, len(documents), step)]


def require_numbers(scores: torch.Tensor, query_ids: list[str], document_ids: list[str], who: str) -> None:
    """ScoreError naming query and document of the first NaN."""
    bad = scores.isnan().nonzero()
    if bad.numel():
        q, d = bad[0].tolist()
        raise ScoreError(
            f"{who}: the score of query {query_ids[q]!r} with document {document_ids[d]!r} is NaN "
            f"({bad.shape[0]} such pairs in this block). Look at the embeddings of the two."
        )
