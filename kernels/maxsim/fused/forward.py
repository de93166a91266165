"""One call for every way to score two token batches: which kernel runs is the launch plan's decision, or the caller's.

Room: `fused`. May import: `maxsim.tokens`, `maxsim.reference`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from maxsim import reference
from maxsim.tokens import Pairing, TokenBatch, score_shape

Precision = Literal["ieee", "tf32"]
Path = Literal["reference", "torch", "portable", "hopper"]
PRECISIONS = ("ieee", "tf32")
PATHS = ("reference", "torch", "portable", "hopper")


def forward(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = "all",
    precision: Precision = "ieee",
    argmax: bool = False,
    path: Path | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Score two token batches; no checks of their content and no host synchronisation.

    Args:
        q: Nq queries.
        d: B documents ("all"), Nq ("pairs") or Nq * K ("candidates": query n meets documents n*K .. n*K + K - 1).
        precision: of fp32 operands: "ieee", or "tf32" as an opt-in. fp16 and bf16 are always multiplied as given.
        argmax: also return which document row won for every query token.
        path: "reference" (float64, materialising) | "torch" (blocked fp32) | "portable" | "hopper"; None chooses.

    Returns:
        scores fp32 [Nq, B] | [Nq] | [Nq, K] (float64 for path "reference"). With `argmax` also int16 (documents of at
        most 32767 tokens) or int32 [..., Lq], Lq = q.max_length: the winning row counted from the document's first
        row, the first one on ties, -1 where there is none (masked query token, empty document).

    Raises:
        ValueError: for batches that do not fit each other, an unknown choice, or a path that cannot run this.
    """
    score_shape(q, d, pairing)
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} is not one of {', '.join(PRECISIONS)}")
    if path is not None and path not in PATHS:
        raise ValueError(f"path: {path!r} is not one of {', '.join(PATHS)}")
    if path == "reference":
        scores, winners = reference.float64(q, d, pairing=pairing)
        return (scores, _narrow(winners, q, d)) if argmax else scores
    if not argmax:
        return reference.blocked_fp32(q, d, pairing=pairing, tf32=precision == "tf32")
    scores, winners = reference.blocked_fp32(q, d, pairing=pairing, tf32=precision == "tf32", argmax=True)
    return scores, _narrow(winners, q, d)


def argmax_dtype(d: TokenBatch) -> torch.dtype:
    """int16 where every row index of a document fits, else int32."""
    return torch.int16 if d.max_length <= 32767 else torch.int32


def _narrow(winners: Tensor, q: TokenBatch, d: TokenBatch) -> Tensor:
    """The argmax in the dtype and with the number of query tokens that kernels write."""
    return winners[..., : q.max_length].to(argmax_dtype(d))
