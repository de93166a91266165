"""Correctness before speed: what the right results of a cell are, and what is wrong with the ones a backend gave.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.errors import Errors, compare, distances
from maxsim_bench.run.work import work_of

if TYPE_CHECKING:
    import torch

# Up to this many operations the reference scores the whole cell; beyond, a sample of its documents.
_WHOLE = {"cuda": 2e12, "cpu": 1e9}
_SAMPLE_OPERATIONS = {"cuda": 2e11, "cpu": 1e8}
_FEWEST_DOCUMENTS, _EDGE = 8, 4

# A sampled reference multiplies matrices of another shape than the whole cell's, so not even the reference itself is
# equal to it bit by bit: only the order of fp32 additions differs.
_SAMPLE_ROUNDING = 1e-5

# Largest relative error on unit vectors that a rounding of fp32 operands to a narrower type explains (bf16: 2^-9 each).
_CAST_ERROR = 2e-2


class ResultError(RuntimeError):
    """A backend returned something that is not the result of the cell's operator."""


@dataclass
class Verdict:
    """Errors against the reference, and what is wrong in words (None if nothing is)."""

    errors: Errors
    wrong: str | None


class Truth:
    """The reference's results on one input set, computed before any backend could touch the inputs."""

    def __init__(self, cell: Cell, inputs: Inputs, reference: Backend) -> None:
        """Score all documents, or a sample of them: the first and last few, and others drawn from the cell's seed."""
        self.cell = cell
        device = inputs.Q.device.type
        flops = work_of(cell).flops
        self.documents = documents_of(cell, inputs)
        self.sample: list[int] | None = None
        if cell.op == "forward" and flops > _WHOLE[device]:
            most = int(_SAMPLE_OPERATIONS[device] / (flops / self.documents))
            self.sample = draw(self.documents, max(_FEWEST_DOCUMENTS, most), cell.seed)
        part = inputs if self.sample is None else select(cell, inputs, self.sample)
        changed = cell if self.sample is None else _resized(cell, len(self.sample))
        self.want = results(reference.prepare(changed, part)())

    def judge(self, output: object, tolerance: float) -> Verdict:
        """Compare a backend's output with the reference.

        Args:
            output: what the backend's callable returned.
            tolerance: admitted relative error; on a sample at least that of another order of summation.

        Raises:
            ResultError: for an output that has not the reference's shapes.
        """
        got = [t if self.sample is None else _columns(self.cell, t, self.sample) for t in self._shaped(output)]
        if self.sample is not None:
            tolerance = max(tolerance, _SAMPLE_ROUNDING)
        errors = [_errors(self.cell, g, w) for g, w in zip(got, self.want, strict=True)]
        worst = Errors(max(e.max_abs for e in errors), max(e.mean_abs for e in errors), max(e.max_rel for e in errors))
        if worst.max_rel <= tolerance:
            return Verdict(worst, None)
        return Verdict(worst, self._diagnosis(got, worst, tolerance))

    def _shaped(self, output: object) -> list[torch.Tensor]:
        got = results(output)
        if len(got) != len(self.want):
            raise ResultError(f"returns {len(got)} tensors, but the operator has {len(self.want)} results")
        for g, w in zip(got, self.want, strict=True):
            shape = list(w.shape)
            if self.sample is not None:
                shape[_document_axis(self.cell)] = self.documents
            if list(g.shape) != shape:
                raise ResultError(f"returns shape {list(g.shape)}, but the result has {shape}")
        return got

    def _diagnosis(self, got: list[torch.Tensor], errors: Errors, tolerance: float) -> str:
        """What kind of wrong it is, as far as the numbers show."""
        told = f"relative error {errors.max_rel:.3g}, admitted {tolerance:g}"
        g, w = got[0], self.want[0]
        if bool((g.isnan() & ~w.isnan()).any()):
            told += "; NaN where the reference has numbers: part of the result was never written, or padding was read"
        if self.cell.op != "forward":
            return told
        axis = _document_axis(self.cell)
        wrong = distances(g.double(), w.double()) > max(tolerance, 1e-4) * w.double().abs()
        others = [i for i in range(wrong.dim()) if i != axis]
        documents = wrong.amax(dim=others) if others else wrong
        first = int(documents.int().argmax())
        if bool(documents.any()) and first > 0 and bool(documents[first:].all()):
            index = first if self.sample is None else self.sample[first]
            return f"{told}; skips the tail: wrong from document {index} to the last"
        if self.cell.dtype == "fp32" and errors.max_rel <= _CAST_ERROR:
            return f"{told}; as large as a cast of fp32 operands to a narrower type makes it"
        return told


def results(output: object) -> list[torch.Tensor]:
    """The floating-point tensors of an output, in order: scores alone, or (loss, dQ, dD)."""
    import torch

    parts = list(output) if isinstance(output, (tuple, list)) else [output]
    tensors = [part.detach() for part in parts if isinstance(part, torch.Tensor)]
    if not tensors or len(tensors) != len(parts):
        raise ResultError(f"returns {type(output).__name__}, not a tensor or a tuple of tensors")
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _errors(cell: Cell, got: torch.Tensor, want: torch.Tensor) -> Errors:
    """Scores elementwise; gradients relative to the largest one, for most of a gradient is zero or small."""
    errors = compare(got, want)
    if cell.op == "forward" or not want.numel():
        return errors
    largest = float(want.abs().max())
    return replace(errors, max_rel=errors.max_abs / largest if largest and errors.max_abs else errors.max_abs)


def draw(count: int, most: int, seed: int) -> list[int]:
    """Sorted document indices: both ends and others at random, at most `most` (or as few as the ends are)."""
    if count <= most:
        return list(range(count))
    ends = {*range(_EDGE), *range(count - _EDGE, count)}
    inner = random.Random(seed).sample(range(_EDGE, count - _EDGE), max(0, most - len(ends)))
    return sorted(ends | set(inner))


def documents_of(cell: Cell, inputs: Inputs) -> int:
    """Documents along the result's document axis."""
    if cell.pairing == "candidates":
        return inputs.D.shape[1]
    return inputs.D.shape[0] if inputs.cu_seqlens is None else inputs.cu_seqlens.shape[0] - 1


def _document_axis(cell: Cell) -> int:
    return 0 if cell.pairing == "pairs" else 1


def _columns(cell: Cell, scores: torch.Tensor, sample: list[int]) -> torch.Tensor:
    import torch

    return scores.index_select(_document_axis(cell), torch.tensor(sample, device=scores.device))


def _resized(cell: Cell, documents: int) -> Cell:
    update: dict[str, object] = {"B": documents}
    if cell.pairing == "pairs":
        update["Nq"] = documents
    return cell.model_copy(update=update)


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


def checksum(inputs: Inputs) -> list[tuple[int, int]]:
    """A number pair for each input tensor that changes when it is written to: sums of its bits, plain and by row.

    The second sum weighs each row with its position, so that exchanged rows show as well. Overflow wraps and is fine.
    """
    return [_bits(tensor) for tensor in inputs.tensors()]


def _bits(tensor: torch.Tensor) -> tuple[int, int]:
    import torch

    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.contiguous().view(width).flatten(end_dim=-2) if tensor.dim() > 1 else tensor.view(width)[:, None]
    rows = flat.sum(dim=-1, dtype=torch.int64)
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


def stale(call: Callable[[], object], first: object, truth: Truth, tolerance: float) -> str | None:
    """Whether a second call computes anew: its predecessor's result is poisoned, then it must be right again."""
    poison_outputs(first)
    if truth.judge(call(), tolerance).wrong is None:
        return None
    return "returns a stale answer: its first result was overwritten, and the next call handed that out again"
