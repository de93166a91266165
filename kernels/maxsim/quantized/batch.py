"""Quantised token embeddings as one value: codes, scales, and what the scales belong to.

Room: `quantized`. May import: fused, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from maxsim.tokens import TokenBatch

Per = Literal["token", "document"]


@dataclass(frozen=True, eq=False)  # a value equals itself alone: tensors have no one answer to ==
class QuantizedTokens:
    """Codes and scales of N sequences: embedding ≈ code · scale.

    Attributes:
        codes: batch whose `values` [R, d] are int8, or float8_e4m3fn. The row stride is a multiple of 16 bytes, so that
            the Hopper kernel can address rows through a tensor map; codes of rows that no sequence owns are 0.
        scales: fp32, > 0: [R], one for each row of `codes.values` (kind "token"), or [N], one for each sequence
            (kind "document"). Their two lowest mantissa bits are 0 (see `quantizers.scale_of`).
        kind: what a scale belongs to.
    """

    codes: TokenBatch
    scales: Tensor
    kind: Per

    def __post_init__(self) -> None:
        expected = self.codes.values.shape[0] if self.kind == "token" else self.codes.count
        if self.scales.dtype != torch.float32 or tuple(self.scales.shape) != (expected,):
            raise ValueError(
                f"scales are {self.scales.dtype} {tuple(self.scales.shape)}, but one fp32 scale a {self.kind} means "
                f"float32 ({expected},)"
            )

    @property
    def count(self) -> int:
        """Number of sequences."""
        return self.codes.count

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return self.codes.d

    @property
    def device(self) -> torch.device:
        """Where every tensor lives."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.values.numel() * self.codes.values.element_size() + self.scales.numel() * 4

    def row_scales(self) -> Tensor:
        """[R] fp32: the scale of every row of `codes.values`; 1 where no sequence owns the row."""
        if self.kind == "token":
            return self.scales
        rows, owner = owned_rows(self.codes)
        out = self.scales.new_ones(self.codes.values.shape[0])
        out[rows] = self.scales[owner]
        return out

    def dequantize(self) -> TokenBatch:
        """The fp32 batch that the codes stand for; same rows, offsets and lengths."""
        return replace(self.codes, values=self.codes.values.float() * self.row_scales()[:, None])

    def select(self, index: Tensor) -> QuantizedTokens:
        """Sequences `index` (integers [M], see `TokenBatch.select`) over the same rows; no code is copied."""
        scales = self.scales if self.kind == "token" else self.scales[index.reshape(-1)]
        return QuantizedTokens(self.codes.select(index), scales, self.kind)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> QuantizedTokens:
        """The same on another device."""
        return QuantizedTokens(
            move(self.codes, device, non_blocking), self.scales.to(device, non_blocking=non_blocking), self.kind
        )

    def pin_memory(self) -> QuantizedTokens:
        """A copy in pinned host memory, from which `maxsim.search` copies to the device without a stop in between."""
        values = self.codes.values
        wide = torch.empty((values.shape[0], values.stride(0)), dtype=values.dtype, pin_memory=True)
        wide.zero_()
        wide[:, : self.d] = values
        return replace(self, codes=replace(self.codes, values=wide[:, : self.d]), scales=self.scales.pin_memory())


def owned_rows(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Row index and owning sequence of every valid token, both int64 [number of valid tokens], in sequence order."""
    starts, lengths = batch.row_starts(), batch.row_lengths().long()
    owner = torch.repeat_interleave(torch.arange(batch.count, device=batch.device), lengths)
    before = torch.cumsum(lengths, 0) - lengths
    rows = torch.arange(owner.shape[0], device=batch.device) - before[owner] + starts[owner]
    return rows, owner


def move(batch: TokenBatch, device: torch.device | str, non_blocking: bool = False) -> TokenBatch:
    """The batch with every tensor on `device`; row strides are kept."""
    if batch.device == torch.device(device):
        return batch
    values = batch.values
    end = (values.storage_offset() + values.shape[0] * values.stride(0)) * values.element_size()
    whole = end <= values.untyped_storage().nbytes()  # the last columns of a wider tensor end short of a whole row
    if values.stride(0) > values.shape[1] and values.shape[0] > 0 and whole:
        wide = values.as_strided((values.shape[0], values.stride(0)), (values.stride(0), 1))
        values = wide.to(device, non_blocking=non_blocking)[:, : batch.d]
    else:
        values = values.to(device, non_blocking=non_blocking)

    def maybe(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.to(device, non_blocking=non_blocking)

    return replace(
        batch,
        values=values,
        starts=maybe(batch.starts),
        lengths=maybe(batch.lengths),
        shift=maybe(batch.shift),
        positions=maybe(batch.positions),
    )
