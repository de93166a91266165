"""Whether a backend returned tensors, computed them anew, and left its inputs alone; and samples of documents.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from maxsim_bench.backends.base import Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.errors import Errors
from maxsim_bench.measure.failures import describe, kind_of

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


_SUMMED_BYTES = 1 << 30  # of a tensor in host memory; of a larger one every so many rows
# Of any one temporary: up to this size torch's allocator asks the driver for 2 MiB at a time, above it for 20 MiB,
# which a process that holds a cell's inputs under a memory cap may not have.
_PIECE_BYTES = 1 << 20


def checksum(inputs: Inputs) -> list[tuple[int, int]]:
    """A number pair for each input tensor that changes when it is written to: sums of its bits, plain and by row.

    The second sum weighs each row with its position, so that exchanged rows show as well. Overflow wraps and is fine.
    Takes four temporaries of `_PIECE_BYTES` at most, whatever the size of the (contiguous) tensors.
    """
    return [_bits(tensor) for tensor in inputs.tensors()]


def _bits(tensor: torch.Tensor) -> tuple[int, int]:
    import torch

    rows, sums = _words(tensor), torch.zeros(2, dtype=torch.int64, device=tensor.device)
    if tensor.device.type == "cpu" and tensor.nbytes > _SUMMED_BYTES:
        rows = rows[:: -(-tensor.nbytes // _SUMMED_BYTES)]
    widened = 1 if rows.dtype == torch.int64 else max(1, rows.shape[1])  # narrower words are widened before their sum
    step = max(1, _PIECE_BYTES // (8 * widened))
    for start in range(0, rows.shape[0], step):
        piece = rows[start : start + step].sum(dim=-1, dtype=torch.int64)
        sums[0] += piece.sum()
        sums[1] += piece.mul_(torch.arange(start + 1, start + 1 + len(piece), device=piece.device)).sum()
    plain, weighted = sums.tolist()
    return plain, weighted


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as integers [rows, words of a row]: of 64 bits where they divide a row, else as wide as its own.

    Sums of 64-bit words need no wider copy of them.
    """
    import torch

    own = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    rows = tensor.contiguous().flatten(end_dim=-2) if tensor.dim() > 1 else tensor[:, None]
    whole = rows.shape[1] * rows.element_size() % 8 == 0 and rows.storage_offset() * rows.element_size() % 8 == 0
    return rows.view(torch.int64 if whole else own)


DO_NOT_FIT = "the inputs and the reference's results do not fit: "


class NoRoomError(MemoryError):
    """What the harness itself needs beside a cell's inputs does not fit: the backend is not to blame."""


@contextmanager
def beside_inputs() -> Iterator[None]:
    """Around work of the harness in the middle of a backend's: running out of memory in it is a `NoRoomError`."""
    try:
        yield
    except Exception as error:
        if kind_of(error) != "oom" or isinstance(error, NoRoomError):
            raise
        raise NoRoomError(DO_NOT_FIT + describe(error)) from None


def poison_free_memory(like: list[torch.Tensor], room: int) -> None:
    """Fill memory of the size of expected results with NaN and free it, so that an allocator hands out NaN next.

    Args:
        like: tensors of the size of results; two of each are filled, as fp32.
        room: bytes that may be taken at once; results that do not fit into what is left of it are passed over.
    """
    import torch

    blocks = []
    for tensor in (*like, *like):
        if 4 * tensor.numel() <= room:
            blocks.append(torch.full_like(tensor, float("nan"), dtype=torch.float32))
            room -= blocks[-1].nbytes
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
    with beside_inputs():
        verdict = truth.judge(output, tolerance)
    if verdict.wrong is None or results(output)[0].device.type != "cuda":
        return verdict
    import torch

    torch.cuda.synchronize()
    with beside_inputs():
        again = truth.judge(output, tolerance)
    if again.wrong is None:
        told = (
            "not synchronised: its result is right only after waiting for the whole device; it works on another stream"
        )
        return Verdict(verdict.errors, told)
    return verdict


def stale(call: Callable[[], object], truth: Truth, tolerance: float) -> str | None:
    """Whether a call whose last result was poisoned (`poison_outputs`) and let go of computes anew: it must be right.

    None if so, else what is wrong.
    """
    verdict = judge_as_returned(truth, call(), tolerance)
    if verdict.wrong is None or "another stream" in verdict.wrong:
        return verdict.wrong
    return "returns a stale answer: its first result was overwritten, and the next call handed that out again"
