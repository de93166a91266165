"""Symmetric quantisers: token embeddings in, INT8 or FP8 (e4m3) codes with FP32 scales out.

Room: `quantized`. May import: fused, tokens.

A scale is absmax / 127 (INT8) or absmax / 448 (FP8) of a token or of a document, rounded up to 22 significant bits, and
the codes are made with the rounded scale. The two bits cost nothing (2^-22 of a step) and let a kernel turn an INT32
accumulator into `accumulator * scale` with one fused multiply-add that is still rounded exactly once (`hopper.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from maxsim.quantized.batch import Per, QuantizedTokens, owned_rows
from maxsim.tokens import Names, TokenBatch, named_tokens, require_embeddings, require_numbers

_BLOCK_ELEMENTS = 1 << 25  # rows are converted in blocks, at most 128 MiB of fp32 scratch at a time
_LARGEST = 2.0**100  # above it 1.5 * 2^23 * scale could overflow in the kernel; no embedding is near
_SMALLEST_SCALE = 2.0**-126  # smallest normal fp32: a scale is never subnormal, so its last two bits are free


def quantize_int8(
    X: Tensor | TokenBatch,
    per: Per = "token",
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> QuantizedTokens:
    """Symmetric INT8: codes in [-127, 127], ties to even, a zero token gets codes 0 and scale 1.

    Args:
        X: [L, d], [N, L, d], packed [T, d] with `cu_seqlens`, or a `TokenBatch`; fp16, bf16, fp32 or float64.
        per: one scale a token (default) or a document. With one scale a document, tokens much smaller than the
            largest of their document lose precision.
        mask, lengths, cu_seqlens: as for `maxsim.tokens`; refused beside a `TokenBatch`, which has its own.

    Returns:
        Codes and scales. Tokens that are masked do not take part, whatever they hold.

    Raises:
        ValueError: for a NaN, an Inf or a magnitude above 2^100 in a valid token, with the place of the first; for
            documents that share rows and one scale a document; for codes, which are quantised already; for tensors on
            the device meta; that names the argument, for what `maxsim.tokens` refuses.
    """
    return _quantize(_batch(X, mask, lengths, cu_seqlens), per, 127.0, torch.int8)


def quantize_fp8(
    X: Tensor | TokenBatch,
    per: Per = "token",
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> QuantizedTokens:
    """The same with FP8 e4m3 codes, scaled so that the largest magnitude becomes 448. Arguments as `quantize_int8`."""
    return _quantize(_batch(X, mask, lengths, cu_seqlens), per, 448.0, torch.float8_e4m3fn)


def quantize_stream(
    blocks: Iterable[Tensor | TokenBatch], per: Per = "token", *, fp8: bool = False
) -> Iterator[QuantizedTokens]:
    """Quantises a corpus block by block; holds one block. A block is anything that `quantize_int8` takes alone."""
    for block in blocks:
        yield quantize_fp8(block, per) if fp8 else quantize_int8(block, per)


def scale_of(absmax: Tensor, levels: float) -> Tensor:
    """Scales of tokens or documents with largest magnitude `absmax` (any shape, fp32 or float64, ≥ 0) as fp32.

    absmax / levels, rounded up to 22 significant bits and kept normal; 1 where absmax is 0.
    """
    scale = (absmax / levels).float().clamp_min(_SMALLEST_SCALE)
    scale = ((scale.view(torch.int32) + 3) & ~3).view(torch.float32)
    return torch.where(absmax > 0, scale, torch.ones_like(scale))


def _batch(X: Tensor | TokenBatch, mask: Tensor | None, lengths: Tensor | None, cu: Tensor | None) -> TokenBatch:
    if not isinstance(X, TokenBatch):
        return named_tokens(Names("X"), X, mask=mask, lengths=lengths, cu_seqlens=cu)
    if mask is not None or lengths is not None or cu is not None:
        raise ValueError("X is a TokenBatch, which has its own lengths: drop mask, lengths and cu_seqlens")
    return X


def _quantize(batch: TokenBatch, per: Per, levels: float, dtype: torch.dtype) -> QuantizedTokens:
    if per not in ("token", "document"):
        raise ValueError(f"per = {per!r}: choose 'token' or 'document'")
    require_embeddings("X", batch.dtype)  # a batch may hold codes, whose scales would be left out
    require_numbers("X", batch.device)
    R, d = batch.values.shape
    rows, owner = owned_rows(batch)
    valid = torch.zeros(R, dtype=torch.bool, device=batch.device)
    valid[rows] = True
    absmax = _absmax(batch.values, valid)
    _check_finite(absmax, rows, owner)
    if per == "token":
        scales = row_scales = scale_of(absmax, levels)
    else:
        if int(valid.sum()) != rows.shape[0]:
            raise ValueError("documents share rows, so one scale a document is ambiguous; use per='token'")
        largest = absmax.new_zeros(batch.count).scatter_reduce(0, owner, absmax[rows], "amax")
        scales = scale_of(largest, levels)
        row_scales = torch.ones(R, dtype=torch.float32, device=batch.device)
        row_scales[rows] = scales[owner]
    codes = _encode(batch.values, valid, row_scales, levels, dtype)
    return QuantizedTokens(replace(batch, values=codes[:, :d]), scales, per)


def _blocks(R: int, d: int) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // max(1, d))
    return (slice(i, min(i + step, R)) for i in range(0, R, step))


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _absmax(values: Tensor, valid: Tensor) -> Tensor:
    """[R] largest magnitude of each valid row (NaN if it holds one), 0 for the others."""
    R, d = values.shape
    out = torch.zeros(R, dtype=torch.float64 if values.dtype == torch.float64 else torch.float32, device=values.device)
    for block in _blocks(R, d):
        out[block] = torch.where(valid[block], _wide(values[block]).abs().amax(1), 0.0)
    return out


def _check_finite(absmax: Tensor, rows: Tensor, owner: Tensor) -> None:
    bad = ~(absmax <= _LARGEST)
    if not bool(bad.any()):
        return
    row = int(bad.nonzero()[0, 0])
    at = int((rows == row).nonzero()[0, 0])
    first = int((owner[:at] == owner[at]).sum())
    raise ValueError(
        f"token {first} of sequence {int(owner[at])} (row {row}) holds NaN, Inf or a magnitude above 2^100: "
        "mask it, or drop it before quantising"
    )


def _encode(values: Tensor, valid: Tensor, scales: Tensor, levels: float, dtype: torch.dtype) -> Tensor:
    """Codes [R, d rounded up to a multiple of 16]; what no sequence owns and the padding columns are 0."""
    R, d = values.shape
    out = torch.zeros((R, -(-d // 16) * 16), dtype=dtype, device=values.device)
    for block in _blocks(R, d):
        x = torch.where(valid[block, None], _wide(values[block]), 0.0) / scales[block, None]
        if dtype == torch.int8:
            x = x.round_()  # the cast of float to FP8 rounds to nearest even itself
        out[block, :d] = x.clamp_(-levels, levels).to(dtype)
    return out
