"""`maxsim_autograd`: MaxSim scores that back-propagate into the embeddings of both batches.

Room: `training`. May import: `maxsim.fused`, `maxsim.tokens`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from maxsim import fused
from maxsim.fused.forward import Path, Precision
from maxsim.tokens import IN_A_TRANSFORM, Pairing, TokenBatch, refuse_transforms
from maxsim.training.backward import BackwardPath, choose_backward, gradients
from maxsim.training.geometry import Geometry, as_grid, geometry, may_overlap

Save = Literal["argmax", "recompute"]
SAVES: tuple[Save, ...] = get_args(Save)

RECOMPUTE_ENTRIES = 1 << 22  # entries whose argmax is alive at a time when it is recomputed: 8 MiB of int16


@dataclass(frozen=True)
class _Plan:
    """What the backward pass needs to know beside tensors."""

    geo: Geometry
    pairing: Pairing
    precision: Precision
    path: Path | None
    backward: BackwardPath
    save: Save


def maxsim_autograd(
    q: TokenBatch,
    d: TokenBatch,
    q_values: Tensor | None = None,
    d_values: Tensor | None = None,
    *,
    pairing: Pairing = "all",
    precision: Precision = "ieee",
    path: Path | None = None,
    backward: BackwardPath | None = None,
    save: Save = "argmax",
) -> Tensor:
    """Scores of `fused.forward`, differentiable in `q.values` and `d.values`.

    Args:
        q, d: batches as `maxsim.tokens` builds them, so that gradients flow on to the caller's tensors.
        q_values, d_values: stand in for `q.values` and `d.values`, same shape, where the caller holds them apart.
        pairing, precision, path: of the forward pass, see `fused.forward`.
        backward: "csr" | "csr_sort" | "onehot" | "atomic" | "torch"; None takes what the measured table says. All but
            "atomic" give the same bits every run.
        save: "argmax" keeps one small integer per query token and document from forward to backward; "recompute" keeps
            nothing and finds them again, some documents at a time, for the price of a second forward pass.

    Returns:
        scores as `fused.forward`. Gradients have the dtype and shape of the embeddings and are summed in fp32; a tie
        between document tokens gives everything to the first; an empty document or query gets exactly zero. A second
        derivative raises.

    Raises:
        ValueError: for an unknown choice or one that cannot run, before anything is computed; inside a transform of
            `torch.func` and for embeddings with a tangent of forward-mode differentiation. The backward pass, of an
            upstream gradient that belongs to a transform or has a tangent.
    """
    if save not in SAVES:
        raise ValueError(f"save: {save!r} is not one of {', '.join(SAVES)}")
    q = q if q_values is None or q_values is q.values else replace(q, values=q_values)
    d = d if d_values is None or d_values is d.values else replace(d, values=d_values)
    refuse_transforms(q.values, d.values)
    geo = geometry(q, d, pairing)
    chosen = choose_backward(q, d, geo, backward)
    if chosen != "torch" and may_overlap(q) and q.values.requires_grad:
        q = _separated(q)  # torch adds rows up by itself
    plan = _Plan(geo, pairing, precision, path, chosen, save)
    if torch.compiler.is_compiling():
        from maxsim.training.compiled import scores

        return scores(q, d, plan.pairing, plan.precision, plan.path, plan.backward, plan.save)
    if torch._C._are_functorch_transforms_active():  # of something else; it takes no autograd function like this one
        raise ValueError(IN_A_TRANSFORM)
    return _MaxSim.apply(q.values, d.values, q, d, plan)


class _MaxSim(torch.autograd.Function):
    """Forward with argmax; backward by the plan's path."""

    @staticmethod
    def forward(ctx: Any, q_values: Tensor, d_values: Tensor, q: TokenBatch, d: TokenBatch, plan: _Plan) -> Tensor:
        nothing = q_values.new_empty((0, 0))
        ctx.batches, ctx.plan = (_with_values(q, nothing), _with_values(d, nothing)), plan
        scores, winner = run_forward(q, d, plan)
        ctx.save_for_backward(q_values, d_values, *(() if winner is None else (winner,)))
        return scores

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        refuse_transforms(g)
        q_values, d_values, *winner = ctx.saved_tensors
        q, d = _with_values(ctx.batches[0], q_values), _with_values(ctx.batches[1], d_values)
        query, document = ctx.needs_input_grad[:2]
        saved = winner[0] if winner else None
        if torch.is_grad_enabled():  # somebody wants a graph of this pass
            dq, dd = _Once.apply(g, q_values, d_values, q, d, saved, ctx.plan, query, document)
        else:
            dq, dd = run_backward(q, d, saved, g, ctx.plan, query=query, document=document)
        return dq, dd, None, None, None


class _Once(torch.autograd.Function):
    """The backward pass under `create_graph=True`: first derivatives as ever, differentiating them raises.

    `once_differentiable` would return them as constants where the upstream gradient is one, and a gradient penalty
    would silently have no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, q_values: Tensor, d_values: Tensor, q: TokenBatch, d: TokenBatch, winner: Tensor | None,
        plan: _Plan, query: bool, document: bool,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        return run_backward(q, d, winner, g, plan, query=query, document=document)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "MaxSim has no second derivative here: do not back-propagate through its gradients, or score with "
            "maxsim.baselines.eager, which can be differentiated twice"
        )


def run_forward(q: TokenBatch, d: TokenBatch, plan: _Plan) -> tuple[Tensor, Tensor | None]:
    """Scores, and the argmax if the plan saves it."""
    path: Path | None = "reference" if q.dtype == torch.float64 else plan.path
    if plan.save == "recompute":
        return fused.forward(q, d, pairing=plan.pairing, precision=plan.precision, path=path), None
    scores, winner = fused.forward(q, d, pairing=plan.pairing, precision=plan.precision, argmax=True, path=path)
    return scores, winner


def run_backward(
    q: TokenBatch, d: TokenBatch, winner: Tensor | None, g: Tensor, plan: _Plan, *, query: bool, document: bool
) -> tuple[Tensor | None, Tensor | None]:
    """dQ and dD from the saved argmax, or with the argmax found again."""
    geo = plan.geo
    if not (query or document):
        return None, None
    g = as_grid(g, 2)
    if q.dtype != torch.float64:  # path="reference" gives float64 scores of any operands; kernels take an fp32 g
        g = g.float()
    if winner is not None:
        return gradients(plan.backward, q, d, as_grid(winner, 3), g, geo, query=query, document=document)
    from maxsim.training.recompute import gradients_recomputed

    return gradients_recomputed(q, d, g, plan, RECOMPUTE_ENTRIES, query=query, document=document)


def _separated(batch: TokenBatch) -> TokenBatch:
    """A batch as a padded copy of its own, so that no two sequences own one row; autograd adds the copies up."""
    x, _ = batch.padded()
    n, L, dim = x.shape
    return replace(
        batch, values=x.view(n * L, dim), pitch=L, starts=None, lengths=batch.row_lengths(), dense_shape=(n, L)
    )


def _with_values(batch: TokenBatch, values: Tensor) -> TokenBatch:
    """`replace(batch, values=values)` at a tenth of its host time.

    A context keeps its batches without embeddings: those are `save_for_backward`'s, which notices in-place changes and
    lets hooks move them elsewhere.
    """
    new = object.__new__(TokenBatch)
    new.__dict__.update(batch.__dict__)
    new.__dict__["values"] = values
    return new
