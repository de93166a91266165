"""The same operator as two custom ops, which `torch.compile` keeps whole instead of tracing into kernel launches.

Room: `training`. May import: `maxsim.tokens`. Imported only while compiling: elsewhere, dispatching a custom op would
cost more host time than the kernels of a small step take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maxsim.tokens import TokenBatch, score_shape
from maxsim.training.autograd import _Plan, run_backward, run_forward
from maxsim.training.geometry import geometry

# torch.library infers the schema from annotations, so what travels is tensors, lists of integers and a string:
# sizes = [count, pitch, max_length, total_rows or -1, dense N or -1, dense L or -1],
# choices = "pairing,precision,path,backward,save".


def scores(q: TokenBatch, d: TokenBatch, *choices: Any) -> Tensor:
    """Scores as `maxsim_autograd`; choices = (pairing, precision, path, backward, save)."""
    shape = list(score_shape(q, d, choices[0]))
    named = ",".join(str(choice or "") for choice in choices)
    return _scores(
        q.values, q.starts, q.lengths, _sizes(q), d.values, d.starts, d.lengths, _sizes(d), shape, named
    )[0]  # fmt: skip


def _sizes(batch: TokenBatch) -> list[int]:
    N, L = batch.dense_shape or (-1, -1)
    rows = -1 if batch.total_rows is None else batch.total_rows
    return [batch.count, batch.pitch, batch.max_length, rows, N, L]


def _batch(values: Tensor, starts: Tensor | None, lengths: Tensor | None, sizes: list[int]) -> TokenBatch:
    count, pitch, max_length, rows, N, L = sizes
    return TokenBatch(
        values=values, count=count, pitch=pitch, max_length=max_length, starts=starts, lengths=lengths,
        dense_shape=None if N < 0 else (N, L), total_rows=None if rows < 0 else rows,
    )  # fmt: skip


def _plan(q: TokenBatch, d: TokenBatch, choices: str) -> _Plan:
    pairing, precision, path, backward, save = choices.split(",")
    names: Any = (pairing, precision, path or None, backward, save)
    return _Plan(geometry(q, d, names[0]), *names)


@torch.library.custom_op("maxsim::scores", mutates_args=())
def _scores(
    q_values: Tensor, q_starts: Tensor | None, q_lengths: Tensor | None, q_sizes: list[int],
    d_values: Tensor, d_starts: Tensor | None, d_lengths: Tensor | None, d_sizes: list[int],
    shape: list[int], choices: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, d = _batch(q_values, q_starts, q_lengths, q_sizes), _batch(d_values, d_starts, d_lengths, d_sizes)
    out, winner = run_forward(q, d, _plan(q, d, choices))
    if winner is None:
        return out, q_values.new_empty((0,), dtype=torch.int16)
    return out, winner.contiguous()


@_scores.register_fake
def _(
    q_values: Tensor, q_starts: Any, q_lengths: Any, q_sizes: list[int],
    d_values: Tensor, d_starts: Any, d_lengths: Any, d_sizes: list[int], shape: list[int], choices: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from maxsim.fused.forward import argmax_dtype

    d = _batch(d_values, d_starts, d_lengths, d_sizes)
    _, _, path, _, save = choices.split(",")
    # the reference scores in float64 whatever it is given, and is what float64 operands go to
    wide = torch.float64 if path == "reference" or q_values.dtype == torch.float64 else torch.float32
    saved = (0,) if save == "recompute" else (*shape, q_sizes[2])
    kind = torch.int16 if save == "recompute" else argmax_dtype(d)
    return q_values.new_empty(shape, dtype=wide), q_values.new_empty(saved, dtype=kind)


@torch.library.custom_op("maxsim::gradients", mutates_args=())
def _gradients(
    g: Tensor, winner: Tensor,
    q_values: Tensor, q_starts: Tensor | None, q_lengths: Tensor | None, q_sizes: list[int],
    d_values: Tensor, d_starts: Tensor | None, d_lengths: Tensor | None, d_sizes: list[int],
    choices: str, query: bool, document: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, d = _batch(q_values, q_starts, q_lengths, q_sizes), _batch(d_values, d_starts, d_lengths, d_sizes)
    plan = _plan(q, d, choices)
    saved = None if plan.save == "recompute" else winner
    dq, dd = run_backward(q, d, saved, g, plan, query=query, document=document)
    none = q_values.new_empty((0,))
    return none if dq is None else dq, none.clone() if dd is None else dd


@_gradients.register_fake
def _(
    g: Tensor, winner: Tensor, q_values: Tensor, q_starts: Any, q_lengths: Any, q_sizes: list[int],
    d_values: Tensor, d_starts: Any, d_lengths: Any, d_sizes: list[int],
    choices: str, query: bool, document: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dq = q_values.new_empty(q_values.shape if query else (0,))
    return dq, d_values.new_empty(d_values.shape if document else (0,))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q_values, q_starts, q_lengths, q_sizes, d_values, d_starts, d_lengths, d_sizes, _, choices = inputs
    ctx.save_for_backward(q_values, q_starts, q_lengths, d_values, d_starts, d_lengths, output[1])
    ctx.sizes, ctx.choices = (q_sizes, d_sizes), choices


def _backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    q_values, q_starts, q_lengths, d_values, d_starts, d_lengths, winner = ctx.saved_tensors
    query, document = ctx.needs_input_grad[0], ctx.needs_input_grad[4]
    dq, dd = _gradients(
        g, winner, q_values, q_starts, q_lengths, ctx.sizes[0], d_values, d_starts, d_lengths, ctx.sizes[1],
        ctx.choices, query, document,
    )  # fmt: skip
    return (dq if query else None, None, None, None, dd if document else None, None, None, None, None, None)


_scores.register_autograd(_backward, setup_context=_setup_context)
