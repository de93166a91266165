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

from dataclasses import replace

import torch
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens, owned_rows
from maxsim.reference import matmul_precision
from maxsim.tokens import TokenBatch

_EXACT_IN_FP32 = 1 << 24
_BLOCK_ELEMENTS = 1 << 24  # similarities held at a time: 64 MiB in fp32


def score_integer(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> Tensor:
    """Scores [Nq, B] fp32 of every query with every document, in the order of operations above, on any device.

    A query that is a `TokenBatch` (fp16, bf16, fp32) meets the codes as it is: products and sums are then fp32 in the
    order of the library. FP8 codes likewise. IEEE arithmetic whatever the process-wide switches and autocast say, which
    would round codes to 16 bits.
    """
    with matmul_precision("ieee"), torch.autocast(d.device.type, enabled=False):
        return _score(q, d)


def _score(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> Tensor:
    query = q.codes if isinstance(q, QuantizedTokens) else q
    q_rows, q_owner = owned_rows(query)
    wide = _dtype(q, d)
    values = _rows(query.values, q_rows).to(wide)
    p = q.row_scales()[q_rows] if isinstance(q, QuantizedTokens) else None
    codes, scales = d.codes, replace(d.codes, values=d.row_scales()[:, None])
    if codes.values.element_size() == 1:
        codes = replace(codes, values=codes.values.view(torch.uint8))  # FP8 has no gather on every device
    out = torch.empty((query.count, d.count), dtype=torch.float32, device=query.device)
    step = max(1, _BLOCK_ELEMENTS // (max(1, values.shape[0]) * max(1, codes.max_length)))
    for first in range(0, d.count, step):
        last = min(first + step, d.count)
        x, valid = codes.padded(first, last)
        x = x.view(d.codes.dtype).to(wide)
        similarity = (values @ x.flatten(0, 1).T).float().view(-1, *valid.shape) * scales.padded(first, last)[0][..., 0]
        best = similarity.masked_fill_(~valid, -torch.inf).amax(-1)
        terms = best if p is None else best * p[:, None]
        total = torch.zeros((query.count, last - first), dtype=torch.float64, device=out.device)
        out[:, first:last] = total.index_add_(0, q_owner, terms.double()).float()
    return out


def _rows(values: Tensor, rows: Tensor) -> Tensor:
    """`values[rows]`, for codes of one byte too."""
    return values[rows] if values.element_size() > 1 else values.view(torch.uint8)[rows].view(values.dtype)


def _dtype(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> torch.dtype:
    """fp32 holds every partial sum of an INT8 product exactly up to d = 1040; beyond, float64 does."""
    if not isinstance(q, QuantizedTokens):
        return torch.float64 if q.dtype == torch.float64 else torch.float32
    exact = q.codes.dtype != torch.int8 or d.d * 127 * 127 < _EXACT_IN_FP32
    return torch.float32 if exact else torch.float64
