"""Query tokens laid out for tiles of rows: every kernel of this room reads its queries through one of these.

Room: `quantized`. May import: fused, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens
from maxsim.tokens import TokenBatch


@dataclass(frozen=True)
class QueryTiles:
    """Rows of Nq queries, each query in a slot of its own so that no sum crosses queries.

    Attributes:
        values: [rows, d] codes or embeddings; the row stride is a multiple of 16 bytes where they are codes.
        scales: [rows] fp32; 0 marks a row that holds no token.
        group: rows whose maxima are summed together, dividing the tile height: a power of two that holds a short
            query, or the tile height.
        parts: groups a query.
        count: Nq.
    """

    values: Tensor
    scales: Tensor
    group: int
    parts: int
    count: int

    @property
    def rows(self) -> int:
        """Rows in all: count · parts · group."""
        return self.count * self.parts * self.group

    def output(self, B: int) -> Tensor:
        """Uninitialised result of a kernel: [count · parts, B], fp64 where parts are still to be added."""
        dtype = torch.float32 if self.parts == 1 else torch.float64
        return torch.empty((self.count * self.parts, B), dtype=dtype, device=self.values.device)

    def finish(self, out: Tensor) -> Tensor:
        """Scores [count, B] fp32 from a kernel's result."""
        if self.parts == 1:
            return out
        return out.view(self.count, self.parts, out.shape[1]).sum(1).float()


def query_tiles(q: QuantizedTokens | TokenBatch, tile: int) -> QueryTiles:
    """Lays out the queries for tiles of `tile` rows (a power of two). A dense query that fits is not copied.

    An embedding that is not quantised gets scale 1, so that kernels treat both alike.
    """
    batch = q.codes if isinstance(q, QuantizedTokens) else q
    longest = max(1, batch.max_length)
    group = min(tile, 1 << (longest - 1).bit_length())
    parts = -(-longest // group)
    span = group * parts
    rows = batch.count * span
    scales = q.row_scales() if isinstance(q, QuantizedTokens) else None
    if batch.starts is None and batch.lengths is None and batch.pitch == batch.max_length == span:
        if scales is None:
            scales = torch.ones(rows, dtype=torch.float32, device=batch.device)
        values = batch.values
        if values.shape[0] > rows:  # a view costs microseconds of the host, so it is made only where it is needed
            values, scales = values[:rows], scales[:rows]
        return QueryTiles(values, scales, group, parts, batch.count)
    place = torch.arange(span, device=batch.device)
    held = place < batch.row_lengths()[:, None]
    source = torch.where(held, batch.row_starts()[:, None] + place, 0).flatten()
    width = -(-batch.d // 16) * 16
    values = torch.zeros((rows, width), dtype=batch.dtype, device=batch.device)
    row_scales = torch.zeros(rows, dtype=torch.float32, device=batch.device)
    if batch.values.shape[0] > 0 and rows > 0:
        raw = batch.values.view(torch.uint8) if batch.values.element_size() == 1 else batch.values
        target = values.view(torch.uint8) if values.element_size() == 1 else values
        target[:, : batch.d] = raw[source]
        row_scales = torch.where(held.flatten(), 1.0 if scales is None else scales[source], row_scales)
    return QueryTiles(values[:, : batch.d], row_scales, group, parts, batch.count)
