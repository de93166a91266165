"""The gradients in plain torch: what runs on a CPU and in float64, and what the kernels are tested against.

Room: `training`. May import: torch, `maxsim.tokens`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maxsim.tokens import TokenBatch
from maxsim.training.geometry import Geometry

BLOCK_ELEMENTS = 1 << 24  # gathered elements alive at a time: 64 MiB of fp32


def gradients(
    q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *, query: bool, document: bool,
    query_dtype: torch.dtype | None = None, document_dtype: torch.dtype | None = None,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """dQ [Rq, d] and dD [Rd, d] in the embeddings' dtype, summed in fp32 (float64 for float64), query by query.

    Deterministic. Arguments as in `csr.csr`.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    dq = torch.zeros(q.values.shape, dtype=wide, device=q.device) if query else None
    dd = torch.zeros(d.values.shape, dtype=wide, device=d.device) if document else None
    q_starts, d_starts = q.row_starts(), d.row_starts()
    step = max(1, BLOCK_ELEMENTS // max(1, geo.K * geo.Lq * q.d))
    token = torch.arange(geo.Lq, device=q.device)
    for n in range(0, geo.Nq, step):
        won = winner[n : n + step].long()
        pair, k, i = (won >= 0).nonzero(as_tuple=True)
        m = k if geo.shared else (pair + n) * geo.K + k
        q_rows, d_rows = q_starts[pair + n] + token[i], d_starts[m] + won[pair, k, i]
        weight = g[n : n + step][pair, k].to(wide)[:, None]
        if dq is not None:
            _add_rows(dq, q_rows, weight * d.values[d_rows].to(wide))
        if dd is not None:
            _add_rows(dd, d_rows, weight * q.values[q_rows].to(wide))
    dq = None if dq is None else dq.to(query_dtype or q.dtype)
    return dq, None if dd is None else dd.to(document_dtype or d.dtype)


def _add_rows(total: Tensor, rows: Tensor, x: Tensor) -> None:
    """total[rows] += x, rows repeated or not, in one fixed order.

    On a CPU `index_add_` adds in order and an accumulating `index_put_` by atomics. On a GPU it is the other way round:
    `index_put_` sorts the rows first, which is also what `index_add_` becomes under torch's deterministic algorithms.
    """
    if total.device.type == "cpu":
        total.index_add_(0, rows, x)
    else:
        total.index_put_((rows,), x, accumulate=True)
