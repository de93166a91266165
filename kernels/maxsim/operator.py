"""The operator: what a user calls. Which kernel runs, and why, is decided here and can be asked for.

Room: `operator`. In: tensors or token batches. Out: scores. May import: every room of `maxsim` below it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxsim import fused, reference
from maxsim.fused.forward import Path, Precision
from maxsim.tokens import Pairing, TokenBatch, score_shape, tokens


def maxsim(
    Q: Tensor | TokenBatch,
    D: Tensor | TokenBatch,
    *,
    q_mask: Tensor | None = None,
    d_mask: Tensor | None = None,
    q_lengths: Tensor | None = None,
    d_lengths: Tensor | None = None,
    q_cu_seqlens: Tensor | None = None,
    d_cu_seqlens: Tensor | None = None,
    pairing: Pairing = "all",
    precision: Precision = "ieee",
    path: Path | None = None,
) -> Tensor:
    """score(q, D) = sum over query tokens of the largest inner product with a document token, exactly.

    Args:
        Q: [Lq, d] one query | [Nq, Lq, d] | packed [T, d] with `q_cu_seqlens` | TokenBatch.
        D: [Ld, d] one document | [B, Ld, d] | packed [T, d] with `d_cu_seqlens` | [Nq, K, Ld, d] for "candidates" |
            TokenBatch. Same dtype and device as Q: float16, bfloat16, float32, or float64.
        q_mask, d_mask: [N, L], non-zero = valid, any pattern. For D [Nq, K, Ld, d]: [Nq, K, Ld].
        q_lengths, d_lengths: [N] integers, right padding. For D [Nq, K, Ld, d]: [Nq, K].
        q_cu_seqlens, d_cu_seqlens: [N + 1] offsets of packed rows.
        pairing: "all" scores every query with every document, "pairs" query n with document n, "candidates" query n
            with documents n*K .. n*K + K - 1.
        precision: of float32 operands: "ieee", or "tf32" as an opt-in.
        path: forces "reference" | "torch" | "portable" | "hopper"; None chooses (see `explain`).

    Returns:
        float32 [Nq, B] ("all"; [B] for a Q of two dimensions without offsets), [Nq, K] or [B] ("pairs"); float64 for
        float64 operands. A document without valid tokens scores -inf, a query without valid tokens 0.0, a NaN in a
        valid token makes its scores NaN. Differentiable in Q and D; a second derivative raises.

    Raises:
        ValueError: that names the argument.

    Example:
        >>> maxsim(torch.eye(2), torch.eye(2)[None])
        tensor([2.])
    """
    q, d, flat = _batches(Q, D, q_mask, d_mask, q_lengths, d_lengths, q_cu_seqlens, d_cu_seqlens, pairing)
    scores = fused.forward(q, d, pairing=pairing, precision=precision, path=path or _path(q))
    return scores.squeeze(0) if flat else scores


def _batches(Q: Any, D: Any, q_mask: Any, d_mask: Any, q_lengths: Any, d_lengths: Any, q_cu: Any, d_cu: Any, pairing: Pairing) -> tuple[TokenBatch, TokenBatch, bool]:
    if isinstance(D, Tensor) and D.ndim == 4:
        D = D.flatten(0, 1)
        d_mask = d_mask if d_mask is None else d_mask.flatten(0, 1)
        d_lengths = d_lengths if d_lengths is None else d_lengths.flatten()
    q = tokens(Q, mask=q_mask, lengths=q_lengths, cu_seqlens=q_cu, role="Q")
    d = tokens(D, mask=d_mask, lengths=d_lengths, cu_seqlens=d_cu, role="D")
    return q, d, pairing == "all" and isinstance(Q, Tensor) and Q.ndim == 2 and q_cu is None


def _path(q: TokenBatch) -> Path | None:
    return "reference" if q.dtype == torch.float64 else None
