"""Scoring what looks like an earlier call: no decision and no check is made twice, only addresses are new.

Room: `fused`. May import: `maxsim.tokens`, the Hopper modules.

A launch of the Hopper kernel depends on shapes, strides, dtype, device and alignment of its operands, on nothing they
hold. All of that is the key of a table; behind it lie the compiled kernel, the grid and the integers of the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from maxsim.fused import hopper
from maxsim.fused.hopper_launch import Boxes, DirectLaunch, RepeatedLaunch, tensor_map
from maxsim.fused.hopper_plan import HopperPlan
from maxsim.fused.launch import LaunchPlan
from maxsim.tokens import Pairing, TokenBatch, refuse_transforms

_MOST = 1024  # layouts remembered; packed batches of ever new sizes must not grow the table without bound

_SEEN: dict[tuple[Any, ...], _Repeat] = {}


def scores(Q: object, D: object, pairing: str, precision: str, path: str | None) -> Tensor | None:
    """Scores as `fused.forward`, [Nq, B] | [Nq] | [Nq, K], where the like was scored before; else None.

    Args:
        Q, D: token batches, or dense tensors [Lq, d] | [Nq, Lq, d] and [Ld, d] | [B, Ld, d] without padding. Nothing
            is differentiated.
    """
    layouts = layout(Q), layout(D)
    try:  # costs nothing while nothing is raised
        found = _SEEN.get((*layouts, pairing, precision, path))
    except TypeError:  # a choice that cannot be a key is none of those offered: `check` says so by its name
        return None
    return None if found is None else found(Q, D)


def remember(
    Q: object,
    D: object,
    q: TokenBatch,
    d: TokenBatch,
    pairing: Pairing,
    precision: str,
    path: str | None,
    plan: LaunchPlan,
) -> None:
    """Make `scores` answer for operands laid out like Q and D, which were just scored as `q` and `d` by `plan`.

    Only where that is the plan of the Hopper kernel, and the rows scored are the memory of Q and D.
    """
    layouts = layout(Q), layout(D)
    if not isinstance(plan, HopperPlan) or None in layouts or not _in_place(Q, q) or not _in_place(D, d):
        return
    prepared = hopper.prepare(q, d, pairing, plan)
    kernels = [one.direct for one in (prepared.score, prepared.add)[: min(plan.sums, 2)] if one.direct is not None]
    if len(kernels) < min(plan.sums, 2):
        return  # no call of this process has compiled them
    if len(_SEEN) >= _MOST:
        _SEEN.clear()
    _SEEN[layouts[0], layouts[1], pairing, precision, path] = _Repeat(q, d, prepared, kernels)


def layout(x: object) -> tuple[Any, ...] | None:
    """Everything about an operand that a launch depends on but its address; None for what is never remembered.

    Raises:
        ValueError: inside a transform of `torch.func`.
    """
    try:  # costs nothing while nothing is raised
        if type(x) is TokenBatch:
            return x.layout
        if type(x) is Tensor and not x.is_neg():  # not a subclass, which may be no memory at all
            return x.shape, x.stride(), x.dtype, x.get_device(), x.data_ptr() % 16
    except RuntimeError:  # no memory; of a sparse tensor `tokens` says so by the argument's name
        pass
    refuse_transforms(x.values if isinstance(x, TokenBatch) else x)
    return None


def _in_place(x: object, batch: TokenBatch) -> bool:
    """Whether the rows of `batch` are the memory of `x`, and not a copy of it."""
    return x is batch or (isinstance(x, Tensor) and x.data_ptr() == batch.values.data_ptr())


class _Repeat:
    """The launches that score one layout, as plain values."""

    def __init__(
        self, q: TokenBatch, d: TokenBatch, prepared: hopper.Prepared, kernels: Sequence[DirectLaunch]
    ) -> None:
        plan = prepared.plan
        self.index = q.values.get_device()
        q_boxes, d_boxes = Boxes(q.values, plan.G, plan.BK), Boxes(d.values, plan.BR, plan.BK)
        self.q_box, self.d_box = q_boxes.description, d_boxes.description
        self.score = RepeatedLaunch(
            kernels[0], prepared.grid, [q_boxes.encoded(), d_boxes.encoded()], 6, prepared.integers
        )
        self.add = None
        if plan.sums > 1:
            self.add = RepeatedLaunch(kernels[1], prepared.add_grid, [], 2, (q.count, prepared.sums[2], plan.sums))
        # made "like" a tensor of one element that looks large, for a shape, a dtype and a device take longer to say
        element = _element(q.device)
        self.scores, self.part = element.expand(prepared.shape), element.expand(prepared.sums)
        self.make = torch.zeros_like if plan.added else torch.empty_like

    def __call__(self, Q: Any, D: Any) -> Tensor | None:
        """Scores of operands of this layout; None where their device is not the current one."""
        if torch._C._cuda_getDevice() != self.index:
            return None
        q, q_starts, q_lengths = _addresses(Q)
        d, d_starts, d_lengths = _addresses(D)
        maps = tensor_map(q, *self.q_box), tensor_map(d, *self.d_box)
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        if self.add is None:
            scores = self.make(self.scores, memory_format=torch.contiguous_format)
            self.score(stream, maps, (scores.data_ptr(), 0, q_starts, q_lengths, d_starts, d_lengths))
            return scores
        scores = torch.empty_like(self.scores, memory_format=torch.contiguous_format)
        part = self.make(self.part, memory_format=torch.contiguous_format)
        self.score(stream, maps, (part.data_ptr(), 0, q_starts, q_lengths, d_starts, d_lengths))
        self.add(stream, (), (part.data_ptr(), scores.data_ptr()))
        return scores


@lru_cache(maxsize=64)
def _element(device: torch.device) -> Tensor:
    """One number on a device, which the scores of every layout are made like; what it holds is never looked at."""
    return torch.empty(1, dtype=torch.float32, device=device)


def _addresses(x: Any) -> tuple[int, int, int]:
    """Addresses of the rows, of the starts and of the lengths; 0 for what there is not."""
    if type(x) is Tensor:
        return x.data_ptr(), 0, 0
    starts, lengths = x.starts, x.lengths
    return (
        x.values.data_ptr(),
        0 if starts is None else starts.data_ptr(),
        0 if lengths is None else lengths.data_ptr(),
    )
