"""How far scores are from the reference.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Scores smaller than this part of the largest one count as if they were that large in a relative error: a score that
# happens to cancel to nearly 0 has no correct digits in any order of summation.
RELATIVE_FLOOR = 0.1


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
    a, b = got.detach().to(want.device, torch.float64), want.detach().to(torch.float64)
    difference = distances(a, b)
    finite = b[b.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    floor = b.abs().nan_to_num(nan=0.0, posinf=0.0).clamp_min(RELATIVE_FLOOR * scale)
    relative = torch.where(difference == 0, 0.0, difference / floor)
    return Errors(float(difference.max()), float(difference.mean()), float(relative.max()))


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise |a - b| by the rules of `compare`, float64 like its arguments."""
    import torch

    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs())
    return difference.nan_to_num(nan=math.inf, posinf=math.inf)
