# Arguments of kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"
"""Documents picked out of pinned host memory by the device itself, for rescoring: one launch, no copy on the host.

Room: `quantized`. May import: fused, tokens.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from maxsim.tokens import TokenBatch

_ROWS = 16  # of a program: 4 KiB at d = 128 in fp16, so that many requests are under way on the bus


@triton.jit
def _copy_rows(
    source_ptr, number_ptr, start_ptr, length_ptr, out_ptr, stride, pitch, L, d, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, HAS_STARTS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
):  # fmt: skip
    """Rows of document number_ptr[i], d elements each, to rows i * L .. of out_ptr [n * L, d]."""
    i = tl.program_id(0).to(tl.int64)
    number = tl.load(number_ptr + i)
    start = number * pitch
    if HAS_STARTS:
        start = tl.load(start_ptr + number)
    length = L
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(length_ptr + number), L)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    for column in range(0, d, WIDTH):
        at = column + tl.arange(0, WIDTH)
        inside = (row < length)[:, None] & (at < d)[None, :]
        x = tl.load(source_ptr + (start + row)[:, None] * stride + at[None, :], mask=inside)
        tl.store(out_ptr + (i * L + row)[:, None] * d + at[None, :], x, mask=inside)


def gathered(source: TokenBatch, numbers: Tensor) -> TokenBatch:
    """Documents `numbers` (int64 [n], each in [0, N)) of `source` on the device of `numbers`, one after another.

    `source` lies where a kernel on that device can read it: there, or in pinned host memory. Nothing is waited for.
    What is left of a document's L rows beyond its length is not written.
    """
    device, d = numbers.device, source.d
    starts, lengths = (None if x is None else x.to(device, non_blocking=True) for x in (source.starts, source.lengths))
    L, n = max(1, source.max_length), numbers.numel()
    values = torch.empty((n * L, d), dtype=source.dtype, device=device)
    if n > 0:
        _copy_rows[(n, triton.cdiv(L, _ROWS))](
            source.values, numbers, numbers if starts is None else starts, numbers if lengths is None else lengths,
            values, source.values.stride(0), source.pitch, L, d, ROWS=_ROWS, WIDTH=min(128, triton.next_power_of_2(d)),
            HAS_STARTS=starts is not None, HAS_LENGTHS=lengths is not None,
        )  # fmt: skip
    return replace(
        source, values=values, count=n, pitch=L, starts=None, lengths=None if lengths is None else lengths[numbers],
        shift=None, positions=None, dense_shape=None, total_rows=None,
    )  # fmt: skip
