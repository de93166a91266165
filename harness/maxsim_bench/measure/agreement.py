"""How far results agree beyond their largest error: rankings of documents, directions of gradients.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from maxsim_bench.measure.errors import dot, norm_of_difference

if TYPE_CHECKING:
    import torch

DEPTHS = (20, 50)  # of the overlaps, as published; fewer documents than this have no overlap at that depth


def rankings(got: torch.Tensor, want: torch.Tensor) -> dict[str, float]:
    """Agreement of two rankings by score, each the mean over queries.

    Args:
        got, want: [Nq, B] scores on one device.

    Returns:
        `mean_rel_err`, the mean of |got - want| / |want| over finite scores other than 0; for each depth k of `DEPTHS`
        with more than k documents `topk_overlap_k`, the share of the reference's k best that are among ours;
        `spearman`, the correlation of ranks, for two documents or more. Nothing for no score. Equal scores keep
        document order.
    """
    import torch

    if not want.numel():
        return {}
    a, b = got.double(), want.double()
    counted = a.isfinite() & b.isfinite() & (b != 0)
    found: dict[str, float] = {}
    if bool(counted.any()):
        found["mean_rel_err"] = float(((a - b).abs() / b.abs())[counted].mean())
    documents = b.shape[1]
    orders = [scores.argsort(dim=1, descending=True, stable=True) for scores in (a, b)]
    for k in DEPTHS:
        if documents > k:
            mine, theirs = (order[:, :k] for order in orders)
            found[f"topk_overlap_{k}"] = float((mine[:, :, None] == theirs[:, None, :]).any(2).double().mean())
    if documents > 1:
        ranks = [torch.empty_like(a).scatter_(1, o, _places(o)) for o in orders]
        # without ties (places are distinct) Spearman's formula is exact
        squares = ((ranks[0] - ranks[1]) ** 2).sum(1)
        found["spearman"] = float((1 - 6 * squares / (documents * (documents**2 - 1.0))).mean())
    return found


def _places(order: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.arange(order.shape[1], device=order.device, dtype=torch.float64).expand(order.shape)


def gradients(got: list[torch.Tensor], want: list[torch.Tensor]) -> dict[str, float]:
    """Directions and sizes of dQ and dD against the reference's.

    Args:
        got, want: (dQ, dD), of equal shapes on one device.

    Returns:
        `cosine_grad_q`, `cosine_grad_d` and the normwise relative errors `rel_err_grad_q`, `rel_err_grad_d`; those of a
        gradient that is 0 throughout are left out.
    """
    found: dict[str, float] = {}
    for side, g, w in zip("qd", got, want, strict=True):
        size, mine = math.sqrt(dot(w, w)), math.sqrt(dot(g, g))
        if size and mine:
            found[f"cosine_grad_{side}"] = dot(g, w) / size / mine
            found[f"rel_err_grad_{side}"] = norm_of_difference(g, w) / size
    return found
