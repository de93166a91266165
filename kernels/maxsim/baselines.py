"""What people run today in PyTorch, written fairly: eager, in blocks of documents, and through the compiler.

Room: `baselines`. In: padded tensors and lengths. Out: scores [Nq, B] in the operands' dtype, as users of such code get
them: 16-bit similarities, maxima and result. May import: `maxsim.tokens`, `maxsim.reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from maxsim.reference import matmul_precision

CPU_BLOCK_BYTES = 256 << 20  # similarities per block where the free memory of a device is not the limit
FREE_SHARE = 0.5  # of the free device memory goes to one block: a product, its masked copy's mask and the maxima fit


def eager(
    Q: Tensor, D: Tensor, lengths: Tensor | None = None, q_lengths: Tensor | None = None, *, tf32: bool = False
) -> Tensor:
    """Materialise every similarity, mask, take the maxima, add.

    Args:
        Q: [Nq, Lq, d]. D: [B, Ld, d]. Same dtype and device.
        lengths: [B] valid tokens of the documents; q_lengths: [Nq] of the queries; None: all are valid.
        tf32: fp32 operands are multiplied in TF32 on a GPU; otherwise in IEEE fp32 whatever the global switches say.

    Returns:
        [Nq, B] in the dtype of Q; -inf for an empty document, 0 for an empty query.
    """
    with matmul_precision("tf32" if tf32 else "ieee"):
        return _score(Q, D, lengths, q_lengths)


def chunked(
    Q: Tensor,
    D: Tensor,
    lengths: Tensor | None = None,
    q_lengths: Tensor | None = None,
    *,
    chunk: int = 0,
    tf32: bool = False,
) -> Tensor:
    """`eager` over `chunk` documents at a time; chunk = 0 takes what fits in half of the free memory."""
    if chunk < 0:
        raise ValueError(f"chunk: {chunk} documents; give at least 1, or 0 to choose from free memory")
    size = chunk or _documents_that_fit(Q, D)
    out = Q.new_empty((Q.shape[0], D.shape[0]))
    with matmul_precision("tf32" if tf32 else "ieee"):
        for first in range(0, D.shape[0], size):
            part = slice(first, first + size)
            out[:, part] = _score(Q, D[part], None if lengths is None else lengths[part], q_lengths)
    return out


def compiled(*, cudagraphs: bool, tf32: bool = False) -> Callable[..., Tensor]:
    """`eager` through torch.compile's max-autotune, with or without CUDA graphs: a function of the same arguments.

    With CUDA graphs the result is overwritten by the next call.
    """
    compiled_score = _compile(cudagraphs)

    def run(Q: Tensor, D: Tensor, lengths: Tensor | None = None, q_lengths: Tensor | None = None) -> Tensor:
        if cudagraphs:
            torch.compiler.cudagraph_mark_step_begin()
        with matmul_precision("tf32" if tf32 else "ieee"):
            return compiled_score(Q, D, lengths, q_lengths)

    return run


@cache
def _compile(cudagraphs: bool) -> Callable[..., Tensor]:
    """One compiled function a mode, so that measuring many cells compiles each shape once."""
    return torch.compile(_score, mode="max-autotune" if cudagraphs else "max-autotune-no-cudagraphs", dynamic=False)


def _score(Q: Tensor, D: Tensor, lengths: Tensor | None, q_lengths: Tensor | None) -> Tensor:
    """The expression itself: einsum, masked_fill, amax, sum."""
    if D.shape[0] == 0 or D.shape[1] == 0 or Q.shape[1] == 0:  # amax has nothing to reduce
        scores = Q.new_full((Q.shape[0], D.shape[0]), 0.0 if Q.shape[1] == 0 else float("-inf"))
        return scores if q_lengths is None else scores.masked_fill((q_lengths == 0)[:, None], 0.0)
    similarity = torch.einsum("qid,bjd->qbij", Q, D)
    if lengths is not None:
        padding = torch.arange(D.shape[1], device=D.device) >= lengths[:, None]
        similarity = similarity.masked_fill(padding[None, :, None, :], float("-inf"))
    best = similarity.amax(-1)
    if q_lengths is not None:
        padding = torch.arange(Q.shape[1], device=Q.device) >= q_lengths[:, None]
        best = best.masked_fill(padding[:, None, :], 0.0)
    return best.sum(-1)


def _documents_that_fit(Q: Tensor, D: Tensor) -> int:
    """Documents whose similarities fill a share of the free memory; at least one."""
    per_document = max(1, Q.shape[0] * Q.shape[1] * D.shape[1] * Q.element_size())
    copies = 2  # the product and its masked copy are alive together
    budget = CPU_BLOCK_BYTES
    if Q.device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(Q.device)
        held = torch.cuda.memory_allocated(Q.device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(Q.device) * whole) - held  # a cap that `free` ignores
        budget = int(FREE_SHARE * min(free + torch.cuda.memory_reserved(Q.device) - held, max(0, allowed)))
    return max(1, min(D.shape[0], budget // (copies * per_document)))
