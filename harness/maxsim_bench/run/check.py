"""Whether a backend returned tensors, computed them anew, and left its inputs alone; and samples of documents.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from maxsim_bench.backends.base import Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.errors import Errors

if TYPE_CHECKING:
    import torch


class ResultError(RuntimeError):
    """A backend returned something that is not the result of the cell's operator."""


@dataclass
class Verdict:
    """Errors against the reference, and what is wrong in words (None if nothing is)."""

    errors: Errors
    wrong: str | None


class Truth(Protocol):
    """What the right results of a cell are on one input set.

    `like` are tensors of the size of a result, for poisoning memory.
    """

    like: list[torch.Tensor]

    def judge(self, output: object, tolerance: float) -> Verdict:
        """Compare a backend's output; raises `ResultError` for one that is not a result of the operator at all."""
        ...

    def agreement(self, output: object) -> dict[str, float]:
        """Figures beside the errors of an output that `judge` found right; see `measure.agreement`."""
        ...


def results(output: object) -> list[torch.Tensor]:
    """The floating-point tensors of an output, in order: scores alone, or (loss, dQ, dD)."""
    import torch

    parts = list(output) if isinstance(output, (tuple, list)) else [output]
    tensors = [part.detach() for part in parts if isinstance(part, torch.Tensor)]
    if not tensors or len(tensors) != len(parts):
        raise ResultError(f"returns {type(output).__name__}, not a tensor or a tuple of tensors")
    return [tensor for tensor in tensors if tensor.is_floating_point()]


_EDGE = 4  # documents at either end that every sample holds: tails are where kernels go wrong


def draw(count: int, most: int, seed: int) -> list[int]:
    """Sorted document indices: both ends and others at random, at most `most` (or as few as the ends are)."""
    if count <= most:
        return list(range(count))
    ends = {*range(_EDGE), *range(count - _EDGE, count)}
    inner = random.Random(seed).sample(range(_EDGE, count - _EDGE), max(0, most - len(ends)))
    return sorted(ends | set(inner))


def select(cell: Cell, inputs: Inputs, sample: list[int]) -> Inputs:
    """Inputs with the documents of `sample` only (and their queries, for pairs), in copies of their own."""
    import torch

    index = torch.tensor(sample, device=inputs.D.device)
    if cell.pairing == "pairs":
        q_lengths = None if inputs.q_lengths is None else inputs.q_lengths[index]
        inputs = replace(inputs, Q=inputs.Q[index], q_lengths=q_lengths)
    if inputs.cu_seqlens is not None:
        offsets = inputs.cu_seqlens.tolist()
        rows = torch.cat([inputs.D[offsets[i] : offsets[i + 1]] for i in sample])
        lengths = torch.tensor([offsets[i + 1] - offsets[i] for i in sample], device=inputs.D.device)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return replace(inputs, D=rows, d_lengths=lengths.int(), cu_seqlens=starts)
    axis = 1 if cell.pairing == "candidates" else 0
    d_lengths = None if inputs.d_lengths is None else inputs.d_lengths.index_select(axis, index)
    return replace(inputs, D=inputs.D.index_select(axis, index), d_lengths=d_lengths)


_SUMMED_BYTES = 1 << 30
_SUMMED_ROWS = 1 << 19  # 128 dimensions of these, widened to int64, are half a GiB


def checksum(inputs: Inputs) -> list[tuple[int, int]]:
    """A number pair for each input tensor that changes when it is written to: sums of its bits, plain and by row.

    The second sum weighs each row with its position, so that exchanged rows show as well. Overflow wraps and is fine.
    """
    return [_bits(tensor) for tensor in inputs.tensors()]


def _bits(tensor: torch.Tensor) -> tuple[int, int]:
    import torch

    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    if tensor.device.type == "cpu" and tensor.nbytes > _SUMMED_BYTES and tensor.dim() > 1:
        tensor = tensor[:: -(-tensor.nbytes // _SUMMED_BYTES)]  # of a corpus in host memory every so many rows
    flat = tensor.contiguous().view(width).flatten(end_dim=-2) if tensor.dim() > 1 else tensor.view(width)[:, None]
    # in blocks: a sum into int64 widens its operand first, four times the size of an fp16 corpus
    rows = torch.cat([block.sum(dim=-1, dtype=torch.int64) for block in flat.split(_SUMMED_ROWS)])
    weights = torch.arange(1, rows.numel() + 1, device=rows.device)
    return int(rows.sum()), int((rows * weights).sum())


def poison_free_memory(like: list[torch.Tensor]) -> None:
    """Fill memory of the size of expected results with NaN and free it, so that an allocator hands out NaN next."""
    import torch

    blocks = [torch.full_like(t, float("nan"), dtype=torch.float32) for t in like for _ in range(2)]
    del blocks


def poison_outputs(output: object) -> None:
    """Overwrite what a backend returned with NaN: one that hands the same answer out again gives itself away."""
    import torch

    with torch.inference_mode():  # the only mode in which tensors made under it may be written to
        for tensor in results(output):
            tensor.fill_(float("nan"))


def judge_as_returned(truth: Truth, output: object, tolerance: float) -> Verdict:
    """Judge an output the way its caller would read it: on the current stream, without waiting for the device.

    One that becomes right by waiting was made on a stream that the current one does not wait for.
    """
    verdict = truth.judge(output, tolerance)
    if verdict.wrong is None or results(output)[0].device.type != "cuda":
        return verdict
    import torch

    torch.cuda.synchronize()
    if truth.judge(output, tolerance).wrong is None:
        told = (
            "not synchronised: its result is right only after waiting for the whole device; it works on another stream"
        )
        return Verdict(verdict.errors, told)
    return verdict


def stale(call: Callable[[], object], first: object, truth: Truth, tolerance: float) -> str | None:
    """Whether a second call computes anew: its predecessor's result is poisoned, then it must be right again.

    None if so, else what is wrong.
    """
    poison_outputs(first)
    verdict = judge_as_returned(truth, call(), tolerance)
    if verdict.wrong is None or "another stream" in verdict.wrong:
        return verdict.wrong
    return "returns a stale answer: its first result was overwritten, and the next call handed that out again"
