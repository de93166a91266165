"""Token embeddings of many texts or pages, packed back to back: what encoders make and rankings read.

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class EmbeddingError(ValueError):
    """Embeddings that are not what they should be; the message says which file and what to do."""


class Corpus(Protocol):
    """Embeddings of many items that are read in parts: in memory, in the cache, or somebody's own folder."""

    @property
    def d(self) -> int: ...

    def __len__(self) -> int: ...

    def parts(self) -> Iterator[tuple[int, Embeddings]]:
        """(index of the first item, embeddings), in order."""
        ...

    def select(self, items: Sequence[int]) -> Embeddings:
        """The named items, in the order given."""
        ...


@dataclass(frozen=True)
class Embeddings:
    """Token embeddings of n items.

    Attributes:
        values: [T, d] fp16 (or fp32), on the CPU; the tokens of item 0, then of item 1, and so on.
        lengths: [n] int32, tokens of each item; 0 for an empty one. They sum to T.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.lengths.ndim != 1 or int(self.lengths.sum()) != self.values.shape[0]:
            raise EmbeddingError(
                f"embeddings: {tuple(self.values.shape)} token rows do not fit lengths of shape "
                f"{tuple(self.lengths.shape)} that sum to {int(self.lengths.sum())}"
            )

    def __len__(self) -> int:
        return int(self.lengths.shape[0])

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return int(self.values.shape[1])

    def offsets(self) -> torch.Tensor:
        """[n + 1] int64: first token of every item, then T."""
        import torch

        out = torch.zeros(len(self) + 1, dtype=torch.int64)
        torch.cumsum(self.lengths.to(torch.int64), 0, out=out[1:])
        return out

    def parts(self) -> Iterator[tuple[int, Embeddings]]:
        """All of it, once: what is in memory needs no parts."""
        yield 0, self

    def slice(self, first: int, last: int) -> Embeddings:
        """Items first..last-1; the tokens are a view."""
        offsets = self.offsets()
        return Embeddings(self.values[int(offsets[first]) : int(offsets[last])], self.lengths[first:last])

    def select(self, items: Sequence[int]) -> Embeddings:
        """The named items in the order given, repeats allowed; the tokens are copied."""
        import torch

        offsets = self.offsets()
        rows = [torch.arange(int(offsets[i]), int(offsets[i + 1])) for i in items]
        index = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
        return Embeddings(self.values[index], self.lengths[torch.tensor(list(items), dtype=torch.int64)])

    def padded(self, length: int | None = None, fill: float = 0.0) -> torch.Tensor:
        """[n, L, d] with `fill` in the padding, where the values lie; L is the longest item (at least 1) or given."""
        import torch

        longest = int(self.lengths.max()) if len(self) else 0
        out = self.values.new_full((len(self), max(1, longest if length is None else length), self.d), fill)
        here = self.values.device
        out[torch.arange(out.shape[1], device=here) < self.lengths.to(here)[:, None]] = self.values
        return out

    @classmethod
    def of(cls, items: Sequence[torch.Tensor], d: int) -> Embeddings:
        """From one [length, d] tensor an item."""
        import torch

        values = torch.cat(list(items)) if items else torch.zeros((0, d), dtype=torch.float16)
        return cls(values, torch.tensor([t.shape[0] for t in items], dtype=torch.int32))

    @classmethod
    def concatenate(cls, parts: Sequence[Embeddings]) -> Embeddings:
        """Items of all parts, in order; one part is returned as it is."""
        import torch

        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([p.values for p in parts]), torch.cat([p.lengths for p in parts]))
