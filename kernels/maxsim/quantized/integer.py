"""What a quantised score is, to the last bit: the integer reference, and the path of a machine without a GPU.

Room: `quantized`. May import: fused, tokens.

For codes a, b (INT8), query scales p_i and document scales s_j (or one s for the document):

    c_ij = Σ_k a_ik · b_jk            exact, INT32
    v_ij = fp32(c_ij) ⊗ s_j           ⊗: one IEEE fp32 rounding; fp32(c) is exact below 2^24 (d ≤ 1040)
    m_i  = max_j v_ij                 over valid tokens; −inf if there is none
    r_i  = m_i ⊗ p_i
    score = fp32(Σ_i r_i)             over valid tokens, summed in float64, rounded once

A positive factor and a rounding are monotone, so with one scale a document max_j v_ij = fp32(max_j c_ij) ⊗ s: the same
bits from a maximum over integers. The float64 sum of fp32 terms is exact while their magnitudes span less than 2^20, so
its order does not show.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens, owned_rows
from maxsim.tokens import TokenBatch

_EXACT_IN_FP32 = 1 << 24
_BLOCK_ELEMENTS = 1 << 24  # similarities held at a time: 64 MiB in fp32


def score_integer(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> Tensor:
    """Scores [Nq, B] fp32 of every query with every document, in the order of operations above, on any device.

    A query that is a `TokenBatch` (fp16, bf16, fp32) meets the codes as it is: products and sums are then fp32 in the
    order of the library. FP8 codes likewise.
    """
    query = q.codes if isinstance(q, QuantizedTokens) else q
    q_rows, q_owner = owned_rows(query)
    values = query.values[q_rows]
    p = q.row_scales()[q_rows] if isinstance(q, QuantizedTokens) else None
    wide = _dtype(q, d)
    values = values.to(wide)
    out = torch.empty((query.count, d.count), dtype=torch.float32, device=query.device)
    rows, owner = owned_rows(d.codes)
    scales = d.row_scales()
    bounds = torch.searchsorted(owner, torch.arange(d.count + 1, device=owner.device)).tolist()
    for first, last in _document_blocks(bounds, max(1, values.shape[0])):
        at = rows[bounds[first] : bounds[last]]
        similarity = (values @ d.codes.values[at].to(wide).T).float() * scales[at]
        best = torch.full((values.shape[0], last - first), -torch.inf, device=out.device)
        column = (owner[bounds[first] : bounds[last]] - first).expand(values.shape[0], -1)
        best = best.scatter_reduce(1, column, similarity, "amax")
        terms = best if p is None else best * p[:, None]
        total = torch.zeros((query.count, last - first), dtype=torch.float64, device=out.device)
        out[:, first:last] = total.index_add_(0, q_owner, terms.double()).float()
    return out


def _dtype(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> torch.dtype:
    """fp32 holds every partial sum of an INT8 product exactly up to d = 1040; beyond, float64 does."""
    if not isinstance(q, QuantizedTokens):
        return torch.float64 if q.dtype == torch.float64 else torch.float32
    exact = q.codes.dtype != torch.int8 or d.d * 127 * 127 < _EXACT_IN_FP32
    return torch.float32 if exact else torch.float64


def _document_blocks(bounds: list[int], query_rows: int) -> list[tuple[int, int]]:
    """Ranges of documents whose tokens times `query_rows` stay below the block size; one document at least."""
    limit = max(1, _BLOCK_ELEMENTS // query_rows)
    blocks, first = [], 0
    for n in range(1, len(bounds)):
        if n == len(bounds) - 1 or bounds[n + 1] - bounds[first] > limit or n - first >= limit:
            blocks.append((first, n))
            first = n
    return blocks
