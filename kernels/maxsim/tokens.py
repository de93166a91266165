"""The front door: one validated `TokenBatch` out of dense, masked or packed token embeddings.

Room: the lowest floor of `maxsim` beside `reference.py`. In: tensors a caller has. Out: `TokenBatch`. May import: torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """N sequences of token embeddings, described by where each begins and how long it is.

    A sequence n owns the rows `start(n) .. start(n) + length(n) - 1` of `values`. Kernels read nothing else, so padding,
    left padding, packed rows and a reranking list that points into a packed corpus are all the same thing to them.

    Attributes:
        values: [R, d], fp16 | bf16 | fp32 | float64 (int8 in quantised batches), last dimension contiguous; the row
            stride may be larger than d. For an unpadded or padded dense input this is a view of the caller's tensor.
        count: N, the number of sequences.
        pitch: rows from one sequence's slot to the next (Ld of a dense tensor); used only when `starts` is None.
        max_length: no sequence is longer (host integer; an upper bound is enough).
        starts: [N] int64 on the device of `values`, first row of each sequence; None means `n * pitch`.
        lengths: [N] int32 on the device of `values`, valid tokens; None means every sequence has `max_length` tokens.
        shift: [N] int32 or None; the original position of a sequence's first row (left padding starts late).
        positions: [R] int32 or None; original token position of every row, only where holes were compacted away.
        dense_shape: (N, L) of the caller's dense tensor, None for packed input: the shape gradients go back to.
        total_rows: number of valid rows if known on the host (packed input), else None.
    """

    values: Tensor
    count: int
    pitch: int
    max_length: int
    starts: Tensor | None = None
    lengths: Tensor | None = None
    shift: Tensor | None = None
    positions: Tensor | None = None
    dense_shape: tuple[int, int] | None = None
    total_rows: int | None = None

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return self.values.shape[1]

    @property
    def device(self) -> torch.device:
        """Where every tensor of the batch lives."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the embeddings."""
        return self.values.dtype
