"""The ground truth: MaxSim in float64, checkable by eye; and the blocked FP32 reference of fidelity rows.

Room: the lowest floor of `maxsim`. In: two `TokenBatch`es. Out: scores. May import: torch, `maxsim.tokens`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from maxsim.tokens import Pairing, TokenBatch, documents_per_query, score_shape

BLOCK_ELEMENTS = 1 << 24  # similarities alive at a time in the blocked reference: 64 MiB of fp32


def float64(q: TokenBatch, d: TokenBatch, *, pairing: Pairing = "all") -> tuple[Tensor, Tensor]:
    """Scores and argmax by materialising every similarity in float64.

    Args:
        q: Nq queries.
        d: B documents ("all"), Nq ("pairs") or Nq * K ("candidates": query n meets documents n*K .. n*K + K - 1).

    Returns:
        scores float64 [Nq, B] | [Nq] | [Nq, K], and the row of the document (0 is its first) that wins for each query
        token, int64 [..., Lq]: the first on ties, -1 for a masked query token or an empty document.
    """
    K = documents_per_query(q, d, pairing)
    (Q, q_valid), (D, d_valid) = q.padded(), d.padded()
    groups = (1 if pairing == "all" else q.count, K)
    D, d_valid = D.unflatten(0, groups), d_valid.unflatten(0, groups)[..., None, :]
    Q, q_valid = Q[:, None], q_valid[:, None]
    S = Q.double() @ D.double().mT  # [Nq, K, Lq, Ld]
    best, argmax = S.masked_fill(~d_valid, float("-inf")).max(-1)
    scores = best.masked_fill(~q_valid, 0.0).sum(-1)
    argmax = argmax.masked_fill(~(q_valid & d_valid.any(-1)), -1)
    shape = score_shape(q, d, pairing)
    return scores.view(shape), argmax.view(*shape, argmax.shape[-1])


def blocked_fp32(q: TokenBatch, d: TokenBatch, *, pairing: Pairing = "all", tf32: bool = False) -> Tensor:
    """The FP32 reference: scores fp32 [Nq, B] | [Nq] | [Nq, K] of `blocked`, without the argmax."""
    return blocked(q, d, pairing=pairing, tf32=tf32)[0]


def blocked(
    q: TokenBatch, d: TokenBatch, *, pairing: Pairing = "all", tf32: bool = False, argmax: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Scores by fp32 matrix products over exactly upcast operands, some documents at a time.

    IEEE arithmetic whatever the process-wide switches and autocast say, unless `tf32` asks for TF32 (GPUs only; a CPU
    stays IEEE). At most `BLOCK_ELEMENTS` similarities, or those of one query with one document, exist at a time.

    Returns:
        scores fp32 [Nq, B] | [Nq] | [Nq, K]; with `argmax` also what `float64` gives, from fp32 similarities.
    """
    shape = score_shape(q, d, pairing)
    K = documents_per_query(q, d, pairing)
    scores = torch.empty((q.count, K), dtype=torch.float32, device=q.device)
    winners = torch.empty((q.count, K, max(1, q.max_length)), dtype=torch.int64, device=q.device) if argmax else None
    pair = max(1, q.max_length) * max(1, d.max_length)
    with torch.no_grad(), matmul_precision("tf32" if tf32 else "ieee"), torch.autocast(q.device.type, enabled=False):
        if pairing == "all":
            n_step = max(1, min(q.count, BLOCK_ELEMENTS // pair))
            k_step = max(1, BLOCK_ELEMENTS // (pair * n_step))
        else:
            k_step = max(1, min(K, BLOCK_ELEMENTS // pair))
            n_step = max(1, BLOCK_ELEMENTS // (pair * k_step)) if k_step == K else 1
        for n in range(0, q.count, n_step):
            n_end = min(n + n_step, q.count)
            Q, q_valid = q.padded(n, n_end)
            for k in range(0, K, k_step):
                k_end = min(k + k_step, K)
                offset = 0 if pairing == "all" else n * K
                count = (k_end - k) if pairing == "all" or k_step < K else (n_end - n) * K
                D, d_valid = d.padded(offset + k, offset + k + count)
                masks = None if q.full() else q_valid, None if d.full() else d_valid
                block, won = _block(Q.float(), D.float(), *masks, shared=pairing == "all", argmax=argmax)
                scores[n:n_end, k:k_end] = block
                if winners is not None and won is not None:
                    winners[n:n_end, k:k_end] = won
    return scores.view(shape), None if winners is None else winners.view(*shape, winners.shape[-1])


def _block(
    Q: Tensor, D: Tensor, q_valid: Tensor | None, d_valid: Tensor | None, *, shared: bool, argmax: bool
) -> tuple[Tensor, Tensor | None]:
    """Scores [n, k] fp32 of queries [n, Lq, d] with documents [k, Ld, d] (shared) or [n * k, Ld, d]; the argmax.

    None for a mask: all are valid. A pass over the similarities costs as much as their product, so none is in vain.
    """
    n, Lq, dim = Q.shape
    if shared:  # one product [n * Lq, d] x [d, k * Ld]
        S = (Q.reshape(n * Lq, dim) @ D.reshape(-1, dim).T).view(n, Lq, *D.shape[:2])
        d_valid = None if d_valid is None else d_valid[None, None]
    else:
        D = D.unflatten(0, (n, -1))
        d_valid = None if d_valid is None else d_valid.unflatten(0, (n, -1))[:, None]
        S = torch.einsum("nid,nkjd->nikj", Q, D)
    if d_valid is not None:
        S.masked_fill_(~d_valid, float("-inf"))
    best, won = S.max(-1) if argmax else (S.amax(-1), None)
    if q_valid is not None:
        best = best.masked_fill(~q_valid[..., None], 0.0)
    scores = best.sum(1)
    if won is None:
        return scores, None
    if q_valid is not None:
        won = won.masked_fill(~q_valid[..., None], -1)
    if d_valid is not None:
        won = won.masked_fill(~d_valid.any(-1), -1)
    return scores, won.transpose(1, 2)


def _process_wide_precision() -> str:
    """The older switch, "highest", "high" or "medium", also where it cannot be read because newer ones disagree."""
    cuda = torch.backends.cuda.matmul
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # some newer switch disagrees
        try:
            return "high" if cuda.allow_tf32 else "highest"  # "medium" cannot be told from "high" here
        except RuntimeError:  # that of CUDA: the older one says the other thing
            return "highest" if cuda.fp32_precision == "tf32" else "high"


class _Switches:
    """The process-wide switches of fp32 products, and which threads multiply under them.

    They are saved when the first block opens and restored when the last one closes, and set to another precision only
    while no thread multiplies. A thread that waits for that multiplies nothing itself, even inside a block of its own:
    so of threads that wait for each other's precision one always goes on.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._inside: set[int] = set()  # threads in a block, but for those that wait
        self._blocks = 0  # that are open, in all threads
        self._precision: str | None = None  # None: the caller's
        self._before: tuple[str, str, str] = ("", "", "")
        self._outer = threading.local()

    def enter(self, precision: str) -> str | None:
        """Opens a block; gives the precision of the block around it in this thread, None if there is none."""
        outer: str | None = getattr(self._outer, "precision", None)
        with self._free:
            self._take(precision)
            self._blocks += 1
        self._outer.precision = precision
        return outer

    def leave(self, outer: str | None) -> None:
        """Closes the innermost block of this thread; `outer` as `enter` gave it."""
        self._outer.precision = outer
        with self._free:
            self._blocks -= 1
            self._stop()
            if self._blocks == 0:
                _restore(self._before)
                self._precision = None
            elif outer is not None:
                self._take(outer)

    def _stop(self) -> None:
        self._inside.discard(threading.get_ident())
        self._free.notify_all()

    def _take(self, precision: str) -> None:
        self._stop()
        self._free.wait_for(lambda: not self._inside or self._precision == precision)
        if self._blocks == 0:
            self._before = _saved()
        if self._precision != precision:
            _set(precision)
            self._precision = precision
        self._inside.add(threading.get_ident())


def _saved() -> tuple[str, str, str]:
    """What `_restore` puts back: the older switch, that of CUDA, that of the processor."""
    cpu = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch replaces the module by an object
    return _process_wide_precision(), torch.backends.cuda.matmul.fp32_precision, cpu.fp32_precision


def _set(precision: str) -> None:
    """The older switch is set along with those of torch >= 2.9: who reads it is refused where they disagree."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]  # as above


def _restore(saved: tuple[str, str, str]) -> None:
    everywhere, cuda, cpu = saved
    torch.set_float32_matmul_precision(everywhere)
    torch.backends.cuda.matmul.fp32_precision = cuda
    torch.backends.mkldnn.matmul.fp32_precision = cpu  # type: ignore[attr-defined]  # as above


_SWITCHES = _Switches()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """fp32 matrix products with "ieee" or "tf32" arithmetic, on CPU and GPU, then the caller's switches back.

    The switches are process-wide. Blocks of several threads share them: those of one precision run together, one of
    the other waits until none of them is left, so a block must not wait for another thread that opens one. Within a
    thread blocks nest, in any precision. The caller's switches are saved before the first block and are back after the
    last: until then a thread that multiplies outside of any block sees what the blocks set, and what it sets itself is
    lost.

    The older switch is set along with the per-backend ones of torch >= 2.9: where they disagree, whoever reads the
    older one (torch.compile does) is refused.
    """
    outer = _SWITCHES.enter(precision)
    try:
        yield
    finally:
        _SWITCHES.leave(outer)
