"""Which query meets which document, as the handful of integers that every gradient kernel needs.

Room: `training`. May import: `maxsim.tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxsim.tokens import Pairing, TokenBatch, documents_per_query


@dataclass(frozen=True)
class Geometry:
    """A pair is (n, k): query n and its k-th document, which is document m = k ("all") or n*K + k of the batch.

    Attributes:
        shared: every query meets every document ("all").
        Nq, K: queries, and documents of each query.
        Lq, Ld: upper bounds of the token counts, both >= 0.
    """

    shared: bool
    Nq: int
    K: int
    Lq: int
    Ld: int

    @property
    def queries_per_document(self) -> int:
        """How many queries a document meets: Nq if shared, else 1."""
        return self.Nq if self.shared else 1

    @property
    def documents(self) -> int:
        """Documents of the batch."""
        return self.K if self.shared else self.Nq * self.K

    @property
    def entries(self) -> int:
        """(query token, document) pairs: what the argmax holds, valid or not."""
        return self.Nq * self.K * self.Lq


def geometry(q: TokenBatch, d: TokenBatch, pairing: Pairing) -> Geometry:
    """The geometry of two batches; ValueError if they do not fit each other."""
    return Geometry(pairing == "all", q.count, documents_per_query(q, d, pairing), q.max_length, d.max_length)


def as_grid(x: Tensor, dims: int) -> Tensor:
    """A view with an axis of documents: upstream gradients [Nq, K] of [Nq, K] | [Nq] (2), argmax [Nq, K, Lq] (3).

    Told by the number of dimensions, not by sizes: the argmax [Nq, 1] of pairs of one query token looks like a grid.
    """
    return x if x.ndim == dims else x.unsqueeze(1)


def may_overlap(batch: TokenBatch) -> bool:
    """Whether two sequences may own the same rows, as far as the host knows.

    True of a `select`ion, and of a dense tensor that `tokens` views in place where its sequences lie closer together
    than they are long: expanded over the batch, or windows that slide over one sequence.
    """
    if batch.total_rows is not None:  # packed, or compacted
        return False
    if batch.starts is None:
        return batch.count > 1 and batch.pitch < batch.max_length
    if batch.dense_shape is None:
        return True
    N, L = batch.dense_shape  # left padding: sequences begin somewhere in their slots
    return batch.values.shape[0] < N * L


def slot_rows(batch: TokenBatch) -> int | None:
    """Rows of a sequence's slot where the slots tile `values` without a gap (dense, right-padded), else None.

    A kernel that writes whole slots, zeros behind the valid tokens included, then leaves no row unwritten.
    """
    tiled = batch.starts is None and batch.count * batch.pitch == batch.values.shape[0]
    return batch.pitch if tiled else None


def gradient_buffer(batch: TokenBatch, dtype: torch.dtype | None = None, copies: int = 1) -> Tensor:
    """[copies * R, d] for the gradient of `values`: uninitialised where kernels write every row of it, else zeros."""
    packed = batch.total_rows is not None and batch.total_rows == batch.values.shape[0]
    make = torch.empty if packed or slot_rows(batch) is not None else torch.zeros
    R, dim = batch.values.shape
    return make((copies * R, dim), dtype=dtype or batch.dtype, device=batch.device)
