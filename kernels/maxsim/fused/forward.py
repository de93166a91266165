"""One call for every way to score two token batches: which kernel runs is the launch plan's decision, or the caller's.

Room: `fused`. May import: `maxsim.tokens`, `maxsim.reference`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, overload

import torch
from torch import Tensor

from maxsim import reference
from maxsim.fused import launch
from maxsim.fused.launch import LaunchPlan
from maxsim.tokens import Pairing, TokenBatch, require_embeddings, require_numbers, score_shape

Precision = Literal["ieee", "tf32"]
Path = Literal["reference", "torch", "portable", "hopper"]
PRECISIONS = ("ieee", "tf32")
PATHS = ("reference", "torch", "portable", "hopper")


@overload
def forward(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = ...,
    precision: Precision = ...,
    argmax: Literal[False] = ...,
    path: Path | None = ...,
    plan: LaunchPlan | None = ...,
) -> Tensor: ...


@overload
def forward(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = ...,
    precision: Precision = ...,
    argmax: Literal[True],
    path: Path | None = ...,
    plan: LaunchPlan | None = ...,
) -> tuple[Tensor, Tensor]: ...


def forward(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = "all",
    precision: Precision = "ieee",
    argmax: bool = False,
    path: Path | None = None,
    plan: LaunchPlan | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Score two token batches; no checks of their content and no host synchronisation.

    Args:
        q: Nq queries.
        d: B documents ("all"), Nq ("pairs") or Nq * K ("candidates": query n meets documents n*K .. n*K + K - 1).
        precision: of fp32 operands: "ieee", or "tf32" as an opt-in. fp16 and bf16 are always multiplied as given.
        argmax: also return which document row won for every query token.
        path: "reference" (float64, materialising) | "torch" (blocked fp32) | "portable" | "hopper"; None chooses.
        plan: a launch from `explain` or `launch.choose`, instead of the one the table gives.

    Returns:
        scores fp32 [Nq, B] | [Nq] | [Nq, K] (float64 for path "reference"). With `argmax` also int16 (documents of at
        most 32767 tokens) or int32 [..., Lq], Lq = q.max_length: the winning row counted from the document's first
        row, the first one on ties, -1 where there is none (masked query token, empty document).

    Raises:
        ValueError: for batches that do not fit each other, an unknown choice, or a path that cannot run this.
    """
    check(q, d, pairing, precision, path)
    if plan is None:
        plan = launch.plan(q, d, pairing=pairing, precision=precision, argmax=argmax, path=path)
    if plan.kernel in ("reference", "torch"):
        winners: Tensor | None
        if plan.kernel == "reference":
            scores, winners = reference.float64(q, d, pairing=pairing)
        else:
            scores, winners = reference.blocked(q, d, pairing=pairing, tf32=precision == "tf32", argmax=argmax)
        return (scores, _narrow(winners, q, d)) if argmax and winners is not None else scores
    with _current(q.device):
        if plan.kernel == "hopper":
            from maxsim.fused import hopper

            return hopper.forward(q, d, pairing=pairing, argmax=argmax, plan=plan)
        from maxsim.fused import portable

        dtype = argmax_dtype(d) if argmax else None
        scores, winners = portable.forward(q, d, pairing=pairing, argmax_dtype=dtype, plan=plan)
    return scores if winners is None else (scores, winners)


def check(q: TokenBatch, d: TokenBatch, pairing: Pairing, precision: Precision, path: Path | None) -> None:
    """ValueError unless the two batches fit each other and every choice is one of those offered; reads no tensor."""
    score_shape(q, d, pairing)
    if precision not in PRECISIONS:
        raise ValueError(f"precision: {precision!r} is not one of {', '.join(PRECISIONS)}")
    if path is not None and path not in PATHS:
        raise ValueError(f"path: {path!r} is not one of {', '.join(PATHS)}")
    if q.device != d.device:
        raise ValueError(f"D: is on {d.device}, Q on {q.device}; move one of them")
    require_numbers("Q", q.device)
    require_embeddings("Q", q.dtype)  # a batch may hold codes, whose scales would be left out
    require_embeddings("D", d.dtype)
    if q.dtype != d.dtype:
        raise ValueError(f"D: dtype is {d.dtype}, of Q {q.dtype}; cast one of them, nothing is cast silently")
    if q.d != d.d:
        raise ValueError(f"D: embedding dimension is {d.d}, of Q {q.d}; they must agree")


def argmax_dtype(d: TokenBatch) -> torch.dtype:
    """int16 where every row index of a document fits, else int32."""
    return torch.int16 if d.max_length <= 32767 else torch.int32


def _narrow(winners: Tensor, q: TokenBatch, d: TokenBatch) -> Tensor:
    """The argmax in the dtype and with the number of query tokens that kernels write."""
    return winners[..., : q.max_length].to(argmax_dtype(d))


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Launch on the device of the tensors, whichever is current; nothing to do where it already is."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
