"""The backward pass that saved nothing: the argmax is found again, some documents at a time.

Room: `training`. May import: `maxsim.fused`, `maxsim.tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from maxsim import fused
from maxsim.tokens import TokenBatch
from maxsim.training.backward import gradients
from maxsim.training.geometry import Geometry, as_grid, gradient_buffer, slot_rows

if TYPE_CHECKING:
    from maxsim.training.autograd import _Plan


def gradients_recomputed(
    q: TokenBatch, d: TokenBatch, g: Tensor, plan: _Plan, entries: int, *, query: bool, document: bool
) -> tuple[Tensor | None, Tensor | None]:
    """dQ and dD of [Nq, K] upstream gradients, at most about `entries` argmax values alive at a time.

    Documents of a dense batch are taken in groups of consecutive ones; dD of a group is written where it belongs and dQ
    is summed over groups in fp32, so the sum has one order for one shape. A batch whose documents are not slots of a
    rectangle (packed, selected, left-padded) is one group: same result, more memory.
    """
    whole = _group(plan.geo, entries) >= plan.geo.documents or slot_rows(d) is None or plan.pairing != "all"
    if whole:
        winner = _argmax(q, d, plan)
        return gradients(plan.backward, q, d, as_grid(winner, 3), g, plan.geo, query=query, document=document)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    total = torch.zeros(q.values.shape, dtype=wide, device=q.device) if query else None
    dd = gradient_buffer(d) if document else None
    for first, last in _groups(plan.geo, entries):
        part = _documents(d, first, last)
        geo = replace(plan.geo, K=last - first)
        winner = as_grid(_argmax(q, part, plan), 3)
        dq_part, dd_part = gradients(
            plan.backward, q, part, winner, g[:, first:last], geo,
            query=query, document=document, query_dtype=wide,
        )  # fmt: skip
        if total is not None and dq_part is not None:
            total += dq_part
        if dd is not None and dd_part is not None:
            dd[first * d.pitch : last * d.pitch] = dd_part
    return None if total is None else total.to(q.dtype), dd


def _argmax(q: TokenBatch, d: TokenBatch, plan: _Plan) -> Tensor:
    path = "reference" if q.dtype == torch.float64 else plan.path
    return fused.forward(q, d, pairing=plan.pairing, precision=plan.precision, argmax=True, path=path)[1]


def _group(geo: Geometry, entries: int) -> int:
    """Documents whose argmax fits in `entries`, at least one."""
    return max(1, entries // max(1, geo.Nq * geo.Lq))


def _groups(geo: Geometry, entries: int) -> Iterator[tuple[int, int]]:
    step = _group(geo, entries)
    for first in range(0, geo.documents, step):
        yield first, min(first + step, geo.documents)


def _documents(d: TokenBatch, first: int, last: int) -> TokenBatch:
    """Documents first .. last - 1 of a dense batch, in place."""
    return replace(
        d,
        values=d.values[first * d.pitch : last * d.pitch],
        count=last - first,
        lengths=None if d.lengths is None else d.lengths[first:last],
        dense_shape=None if d.dense_shape is None else (last - first, d.dense_shape[1]),
    )
