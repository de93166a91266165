"""The operator: what a user calls. Which kernel runs, and why, is decided below and can be asked for here.

Room: `operator`. In: tensors or token batches. Out: scores. May import: every room of `maxsim` below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from maxsim import fused
from maxsim.fused import launch, repeat
from maxsim.fused.forward import Path, Precision, check
from maxsim.fused.launch import LaunchPlan
from maxsim.tokens import Pairing, TokenBatch, tangents_exist, tokens

Tokens = Tensor | TokenBatch


def maxsim(
    Q: Tokens,
    D: Tokens,
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
        float64 operands, and for operands of every dtype with path="reference". A document without valid tokens scores
        -inf, a query without valid tokens 0.0, a NaN in a valid token makes its scores NaN. Differentiable in Q and D;
        a second derivative raises.

    Raises:
        ValueError: that names the argument; inside a transform of `torch.func` (vmap, jvp, grad) and for operands with
            a tangent of forward-mode differentiation.
        TypeError: for a Q or D that is neither a tensor nor a TokenBatch.

    Example:
        >>> maxsim(torch.eye(2), torch.eye(2)[None])
        tensor([2.])
    """
    plain = q_mask is q_lengths is q_cu_seqlens is d_mask is d_lengths is d_cu_seqlens is None
    # a repeated launch looks at addresses only: what carries a tangent goes on to `tokens`, which refuses it
    plain = plain and not torch.compiler.is_compiling() and not tangents_exist()
    if plain and torch.is_grad_enabled():
        plain = not (_differentiable(Q) or _differentiable(D))
    if plain:
        known = repeat.scores(Q, D, pairing, precision, path)
        if known is not None:
            return known.squeeze(0) if pairing == "all" and isinstance(Q, Tensor) and Q.ndim == 2 else known
    given = _given(Q, D, pairing, _Extent(q_mask, q_lengths, q_cu_seqlens), _Extent(d_mask, d_lengths, d_cu_seqlens))
    check(given.q, given.d, pairing, precision, path)
    if torch.is_grad_enabled() and (given.q.values.requires_grad or given.d.values.requires_grad):
        # here and not above: scoring alone must not load the gradient kernels
        from maxsim.training.autograd import maxsim_autograd

        scores = maxsim_autograd(
            given.q, given.d, given.q.values, given.d.values, pairing=pairing, precision=precision, path=path
        )
    else:
        plan = launch.plan(given.q, given.d, pairing=pairing, precision=precision, path=path)
        scores = fused.forward(given.q, given.d, pairing=pairing, precision=precision, path=path, plan=plan)
        if plain:
            repeat.remember(Q, D, given.q, given.d, pairing, precision, path, plan)
    return given.shaped(scores)


def maxsim_argmax(
    Q: Tokens,
    D: Tokens,
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
) -> tuple[Tensor, Tensor]:
    """Scores as `maxsim`, and which document token won for every query token, in the caller's own token positions.

    Arguments as `maxsim`. Not differentiable.

    Returns:
        scores, and int32 [..., Lq]: entry i is the position in the document, padding and holes included, of the token
        that won for the query token at position i; the first on ties; -1 where the query token is masked or the
        document is empty. Lq is that of Q, or the longest query if Q is packed.
    """
    given = _given(Q, D, pairing, _Extent(q_mask, q_lengths, q_cu_seqlens), _Extent(d_mask, d_lengths, d_cu_seqlens))
    check(given.q, given.d, pairing, precision, path)
    with torch.no_grad():
        scores, rows = fused.forward(given.q, given.d, pairing=pairing, precision=precision, argmax=True, path=path)
        positions = _at_query_positions(_document_positions(rows, given.d, pairing), given.q, pairing)
    return given.shaped(scores), given.shaped(positions)


def explain(
    Q: Tokens,
    D: Tokens,
    *,
    q_mask: Tensor | None = None,
    d_mask: Tensor | None = None,
    q_lengths: Tensor | None = None,
    d_lengths: Tensor | None = None,
    q_cu_seqlens: Tensor | None = None,
    d_cu_seqlens: Tensor | None = None,
    pairing: Pairing = "all",
    precision: Precision = "ieee",
    argmax: bool = False,
    path: Path | None = None,
) -> LaunchPlan:
    """The launch that `maxsim` would make of these arguments, as a value to print: kernel, tile, why, what binds it."""
    given = _given(Q, D, pairing, _Extent(q_mask, q_lengths, q_cu_seqlens), _Extent(d_mask, d_lengths, d_cu_seqlens))
    check(given.q, given.d, pairing, precision, path)
    return launch.plan(given.q, given.d, pairing=pairing, precision=precision, argmax=argmax, path=path)


def _differentiable(x: Tokens) -> bool:
    """Whether an operand requires a gradient."""
    values = x.values if isinstance(x, TokenBatch) else x
    return isinstance(values, Tensor) and values.requires_grad


@dataclass(frozen=True)
class _Extent:
    """How a caller says which tokens are valid: one of three, or none."""

    mask: Tensor | None
    lengths: Tensor | None
    cu_seqlens: Tensor | None


@dataclass(frozen=True)
class _Given:
    """What a caller passed, checked.

    Attributes:
        single: one query without a batch dimension, whose scores are [B].
        candidates: K of documents [Nq, K, Ld, d], else None: no queries have no documents to count K by.
    """

    q: TokenBatch
    d: TokenBatch
    single: bool
    candidates: int | None = None

    def shaped(self, out: Tensor) -> Tensor:
        """Scores [Nq, B | K] or positions [Nq, B | K, Lq] in the shape that the caller's arguments ask for."""
        if self.single:
            return out.squeeze(0)
        if self.candidates is not None and self.q.count == 0:
            return out.view(0, self.candidates, *out.shape[2:])
        return out


def _given(Q: Tokens, D: Tokens, pairing: Pairing, q_extent: _Extent, d_extent: _Extent) -> _Given:
    """Token batches of both arguments; [Nq, K, Ld, d] documents become Nq * K."""
    q = tokens(Q, mask=q_extent.mask, lengths=q_extent.lengths, cu_seqlens=q_extent.cu_seqlens, role="Q")
    candidates = None
    if isinstance(D, Tensor) and D.ndim == 4:
        candidates = D.shape[1]
        D, d_extent = _flat_candidates(q.count, D, pairing, d_extent)
    d = tokens(D, mask=d_extent.mask, lengths=d_extent.lengths, cu_seqlens=d_extent.cu_seqlens, role="D")
    single = pairing == "all" and isinstance(Q, Tensor) and Q.ndim == 2 and q_extent.cu_seqlens is None
    return _Given(q, d, single, candidates)


def _flat_candidates(Nq: int, D: Tensor, pairing: Pairing, extent: _Extent) -> tuple[Tensor, _Extent]:
    """Documents [Nq, K, Ld, d], and their mask [Nq, K, Ld] or lengths [Nq, K], with the first two dimensions as one."""
    if pairing != "candidates":
        raise ValueError(f'D: shape is {tuple(D.shape)}; [Nq, K, Ld, d] needs pairing="candidates", not {pairing!r}')
    if D.shape[0] != Nq:
        raise ValueError(f"D: candidates for {D.shape[0]} queries, but Q has {Nq}")
    for name, x, expected in (
        ("d_mask", extent.mask, D.shape[:3]),
        ("d_lengths", extent.lengths, D.shape[:2]),
    ):
        if x is not None and not isinstance(x, Tensor):
            raise ValueError(f"{name}: is {type(x).__name__}; expected a tensor of shape {tuple(expected)}")
        if x is not None and x.shape != expected:
            raise ValueError(f"{name}: shape is {tuple(x.shape)}; expected {tuple(expected)} for D {tuple(D.shape)}")
    mask = None if extent.mask is None else extent.mask.flatten(0, 1)
    lengths = None if extent.lengths is None else extent.lengths.flatten()
    return D.flatten(0, 1), _Extent(mask, lengths, extent.cu_seqlens)


def _document_positions(rows: Tensor, d: TokenBatch, pairing: Literal["all", "pairs", "candidates"]) -> Tensor:
    """Winning rows [..., Lq] of documents as int32 positions of the caller's tokens; -1 stays."""
    won = rows.to(torch.int32)
    if d.positions is None and d.shift is None:
        return won
    shape = (1, d.count, 1) if pairing == "all" else (*rows.shape[:-1], 1)
    if d.positions is None:
        assert d.shift is not None
        return torch.where(won < 0, won, won + d.shift.view(shape))
    if d.positions.numel() == 0:
        return won
    at = (d.row_starts().view(shape) + won).clamp_(0, d.positions.numel() - 1)
    return torch.where(won < 0, won, d.positions[at])


def _at_query_positions(won: Tensor, q: TokenBatch, pairing: Literal["all", "pairs", "candidates"]) -> Tensor:
    """[..., q.max_length] counted from each query's first row, as [..., Lq] at the caller's query positions."""
    Lq = q.dense_shape[1] if q.dense_shape is not None else q.max_length
    if q.positions is None and q.shift is None:
        return torch.nn.functional.pad(won, (0, Lq - won.shape[-1]), value=-1)
    token = torch.arange(won.shape[-1], device=won.device)
    if q.positions is not None:
        rows = (q.row_starts()[:, None] + token).clamp_(0, max(0, q.positions.numel() - 1))
        target = q.positions[rows] if q.positions.numel() else rows
    else:
        assert q.shift is not None
        target = token + q.shift[:, None]
    # column Lq collects what belongs to no token and is cut off
    target = torch.where(token < q.row_lengths()[:, None], target, Lq).to(torch.int64)
    target = target if pairing == "pairs" else target[:, None]
    out = won.new_full((*won.shape[:-1], Lq + 1), -1)
    return out.scatter_(-1, target.expand(won.shape), won)[..., :Lq]
