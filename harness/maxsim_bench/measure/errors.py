"""How far scores are from the reference.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Scores smaller than this part of the largest one count as if they were that large in a relative error: a score that
# happens to cancel to nearly 0 has no correct digits in any order of summation.
RELATIVE_FLOOR = 0.1

_PIECE = 1 << 20  # elements compared at a time: 8 MiB in float64


@dataclass(frozen=True)
class Errors:
    """Largest and mean absolute error, and largest relative error. `inf` where one side is NaN or infinite alone."""

    max_abs: float
    mean_abs: float
    max_rel: float

    @property
    def exact(self) -> bool:
        """Not one value differs."""
        return self.max_abs == 0.0


def compare(got: torch.Tensor, want: torch.Tensor) -> Errors:
    """Errors of `got` against `want`.

    Two equal infinities, and two NaN, differ by 0; a NaN on one side only, or an infinity against anything else, is an
    infinite error. Relative errors are taken against max(|want|, 0.1 · largest finite |want|).

    Args:
        got, want: equal shapes, any float dtype; compared in float64 on the device of `want`.

    Raises:
        ValueError: for shapes that differ.
    """
    import torch

    if got.shape != want.shape:
        raise ValueError(f"result has shape {list(got.shape)}, the reference has {list(want.shape)}")
    if want.numel() == 0:
        return Errors(0.0, 0.0, 0.0)
    scale = max(float(b.abs().nan_to_num(nan=0.0, posinf=0.0).max()) for (b,) in pieces(want))
    max_abs = total = max_rel = 0.0
    for a, b in pieces(got.to(want.device), want):
        difference = distances(a, b)
        floor = b.abs().nan_to_num(nan=0.0, posinf=0.0).clamp_min(RELATIVE_FLOOR * scale)
        relative = torch.where(difference == 0, 0.0, difference / floor)
        max_abs, max_rel = max(max_abs, float(difference.max())), max(max_rel, float(relative.max()))
        total += float(difference.sum())
    return Errors(max_abs, total / want.numel(), max_rel)


def pieces(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The same `_PIECE` elements of each tensor at a time, flat and in float64, so that gradients as large as the
    inputs are compared without room for eight times their size."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].numel(), _PIECE):
        yield [tensor[start : start + _PIECE].double() for tensor in flat]


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    """Inner product of two tensors of equal shapes, flattened, in float64."""
    return math.fsum(float(x @ y) for x, y in pieces(a, b))


def norm_of_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Euclidean norm of a - b, flattened, in float64."""
    return math.sqrt(math.fsum(float((x - y).square().sum()) for x, y in pieces(a, b)))


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise |a - b| by the rules of `compare`, float64 like its arguments."""
    import torch

    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs())
    return difference.nan_to_num(nan=math.inf, posinf=math.inf)
