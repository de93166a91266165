"""A Triton kernel that only reads: one candidate for the read bandwidth of a card.

Room: `measure`. Imports nothing else of ours. Imported only where a GPU is measured, for it imports Triton.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

_BLOCK = 8192  # elements a step: 32 KiB of fp32 in flight a program
_STEPS = 8


@triton.jit
def _read(source, sink, count, BLOCK: tl.constexpr, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton
    """Each program sums STEPS blocks of BLOCK elements and writes one number, so that no load can be left out."""
    program = tl.program_id(0).to(tl.int64)
    offsets = program * BLOCK * STEPS + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for step in tl.static_range(STEPS):
        at = offsets + step * BLOCK
        total += tl.load(source + at, mask=at < count, other=0.0)
    tl.store(sink + program, tl.sum(total, axis=0))


def streaming_read(source: torch.Tensor) -> Callable[[], object]:
    """A callable that reads `source` ([N] fp32 on a GPU) once and returns partial sums [ceil(N / 65536)] fp32."""
    count = source.numel()
    programs = triton.cdiv(count, _BLOCK * _STEPS)
    sink = torch.empty(programs, dtype=torch.float32, device=source.device)

    def call() -> torch.Tensor:
        _read[(programs,)](source, sink, count, BLOCK=_BLOCK, STEPS=_STEPS, num_warps=8)
        return sink

    return call
