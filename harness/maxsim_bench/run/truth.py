"""What the right results of a cell are: the FP32 reference on the cell's own inputs, and what is wrong with others.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of
from maxsim_bench.measure import agreement
from maxsim_bench.measure.errors import Errors, compare, distances, dot, norm_of_difference
from maxsim_bench.run.check import ResultError, Truth, Verdict, draw, results, select
from maxsim_bench.run.floor_truth import NothingTruth, SumsTruth
from maxsim_bench.run.staging import Staging
from maxsim_bench.run.work import work_of

if TYPE_CHECKING:
    import torch

# Up to this many operations the reference scores the whole cell; beyond, a sample of its documents.
_WHOLE = {"cuda": 2e12, "cpu": 1e9}
_SAMPLE_OPERATIONS = {"cuda": 2e11, "cpu": 1e8}
_FEWEST_DOCUMENTS = 8

# A sampled reference multiplies matrices of another shape than the whole cell's, so not even the reference itself is
# equal to it bit by bit: only the order of fp32 additions differs.
_SAMPLE_ROUNDING = 1e-5

# Half a unit in the last place of each of two operands, where the reference has them in fp32 as they were drawn.
_INPUT_ROUNDING = {"fp16": 2.0**-10, "bf16": 2.0**-8, "fp32": 0.0}

# Largest relative error on unit vectors that a rounding of fp32 operands to a narrower type explains (bf16: 2^-9 each).
_CAST_ERROR = 2e-2


_STEP_RESULTS = 3  # loss, dQ, dD
_EQUALLY_GOOD = 1e-6  # relative: two orders of summation differ by as much
_SEARCH_BLOCK_BYTES = 1 << 28  # of a corpus in host memory, scored at a time


def truth_of(cell: Cell, inputs: Inputs, reference: Backend) -> Truth:
    """The truth of a cell, for its operator. A quantised cell is compared with the embeddings as given."""
    given = cell.model_copy(update={"quantiser": None})
    if axis_of(cell, VARIANT + "corpus") is not None:
        from maxsim_bench.run.pipeline_truth import PipelineTruth  # which builds on this module

        return PipelineTruth(given, inputs, reference)
    return SearchTruth(given, inputs, reference) if cell.op == "search" else ScoreTruth(given, inputs, reference)


# What a backend may say that it gives (attribute `gives`) → what that is judged by. The harness knows what is right of
# each kind; a backend only says which kind it is.
_KINDS: dict[str, Callable[[Cell, Inputs, Backend], Truth]] = {
    "result": truth_of, "sums": SumsTruth, "nothing": NothingTruth,
}  # fmt: skip


def truths_of(cell: Cell, inputs: Inputs, reference: Backend, backends: Mapping[str, Backend]) -> dict[str, Truth]:
    """Name → what this backend's results are judged by, made once for all that give the same kind of result.

    Raises:
        KeyError: for a backend that says it gives what nobody can judge.
    """
    kinds = {name: getattr(backend, "gives", "result") for name, backend in backends.items()}
    made = {kind: _KINDS[kind](cell, inputs, reference) for kind in dict.fromkeys(kinds.values())}
    return {name: made[kind] for name, kind in kinds.items()}


class ScoreTruth:
    """The reference's results on one input set, computed before any backend could touch the inputs."""

    def __init__(self, cell: Cell, inputs: Inputs, reference: Backend) -> None:
        """Score all documents, or a sample of them: the first and last few, and others drawn from the cell's seed."""
        self.cell = cell
        self.rounding = 0.0
        if inputs.exact is not None:
            self.rounding = _INPUT_ROUNDING[cell.dtype or "fp32"]
            inputs, cell = (
                replace(inputs, Q=inputs.exact[0], D=inputs.exact[1]),
                cell.model_copy(update={"dtype": "fp32"}),
            )
        device = inputs.Q.device.type
        flops = work_of(cell).flops
        self.documents = documents_of(cell, inputs)
        self.sample: list[int] | None = None
        if cell.op == "forward" and flops > _WHOLE[device]:
            most = int(_SAMPLE_OPERATIONS[device] / (flops / self.documents))
            self.sample = draw(self.documents, max(_FEWEST_DOCUMENTS, most), cell.seed)
        part = inputs if self.sample is None else select(cell, inputs, self.sample)
        changed = cell if self.sample is None else resized(cell, len(self.sample))
        self.want = results(reference.prepare(changed, part)())
        self.like = self.want

    def judge(self, output: object, tolerance: float) -> Verdict:
        """Compare a backend's output with the reference.

        Args:
            output: what the backend's callable returned.
            tolerance: admitted relative error; on a sample at least that of another order of summation, against
                unrounded inputs more by their rounding.

        Raises:
            ResultError: for an output that has not the reference's shapes.
        """
        got = [t if self.sample is None else _columns(self.cell, t, self.sample) for t in self._shaped(output)]
        if self.sample is not None:
            tolerance = max(tolerance, _SAMPLE_ROUNDING)
        tolerance += self.rounding
        errors = [_errors(self.cell, g, w) for g, w in zip(got, self.want, strict=True)]
        worst = Errors(max(e.max_abs for e in errors), max(e.mean_abs for e in errors), max(e.max_rel for e in errors))
        if worst.max_rel <= tolerance:
            return Verdict(worst, None)
        return Verdict(worst, self._diagnosis(got, worst, tolerance))

    def agreement(self, output: object) -> dict[str, float]:
        """Rankings where all scores are known, gradients of a whole step; nothing of a sample or of a step's pieces."""
        got = [t.to(w.device) for t, w in zip(results(output), self.want, strict=True)]
        if self.cell.op == "training_step" and len(got) == _STEP_RESULTS:
            return agreement.gradients(got[1:], self.want[1:])
        if self.cell.op == "forward" and self.sample is None and got[0].dim() == 2:
            return agreement.rankings(got[0], self.want[0])
        return {}

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
        told = told_error(errors, tolerance)
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


class SearchTruth:
    """Scores of every document by the reference, and the best k of them."""

    def __init__(self, cell: Cell, inputs: Inputs, reference: Backend) -> None:
        """Score the corpus block by block on the device of the queries, wherever the documents lie."""
        import torch

        assert cell.k is not None, "a search that no backend supports without k was not sent here"
        forward = cell.model_copy(update={"op": "forward", "k": None})
        documents = documents_of(cell, inputs)
        step = max(1, _SEARCH_BLOCK_BYTES // max(1, inputs.D.nbytes // max(1, documents)))
        move = _mover(inputs)
        parts = []
        for start in range(0, documents, step):
            stop = min(start + step, documents)
            here = move(_stretch(inputs, start, stop))
            parts += results(reference.prepare(resized(forward, stop - start), here)())
        assert cell.B is not None
        self.scores = torch.cat(parts, dim=1)
        if documents < cell.B:  # they fill the corpus again and again
            self.scores = self.scores[:, torch.arange(cell.B, device=self.scores.device) % documents]
        self.best = self.scores.topk(min(cell.k, cell.B), dim=1).values
        self.like = [self.best]

    def judge(self, output: object, tolerance: float) -> Verdict:
        """Returned scores are those of the documents named, and those documents are the best there are.

        Both within `tolerance`, so that documents of nearly equal scores may change places.
        """
        got, ids = self._shaped(output)
        true = self.scores.gather(1, ids)
        claimed, chosen = compare(got, true), compare(true.sort(dim=1, descending=True).values, self.best)
        if claimed.max_rel > tolerance:
            return Verdict(claimed, f"returned scores are not their documents': {told_error(claimed, tolerance)}")
        if chosen.max_rel > tolerance:
            return Verdict(claimed, f"better documents were missed: {told_error(chosen, tolerance)}")
        return Verdict(claimed, None)

    def agreement(self, output: object) -> dict[str, float]:
        """`exact_topk`: the share of queries whose documents are the k best, or score like them to within rounding."""
        _, ids = self._shaped(output)
        chosen = self.scores.gather(1, ids).sort(dim=1, descending=True).values
        same = (chosen - self.best).abs() <= _EQUALLY_GOOD * self.best.abs()
        return {"exact_topk": float((same | (chosen == self.best)).all(dim=1).double().mean())}

    def _shaped(self, output: object) -> tuple[torch.Tensor, torch.Tensor]:
        shape = list(self.best.shape)
        got, ids = named_documents(output, shape, self.scores.shape[1], self.scores.device)
        if list(got.shape) != shape:
            raise ResultError(f"returns no pair of scores and document numbers of shape {shape}")
        return got, ids


def named_documents(
    output: object, shape: list[int], documents: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair (values, document numbers of `shape`) on `device`; the numbers exist, and no query names one twice.

    Raises:
        ResultError: for anything else.
    """
    parts = list(output) if isinstance(output, (tuple, list)) else []
    if len(parts) != 2 or list(parts[1].shape) != shape:
        raise ResultError(f"returns no pair of scores and document numbers of shape {shape}")
    got, ids = (part.to(device) for part in parts)
    ids = ids.long()
    if bool(((ids < 0) | (ids >= documents)).any()):
        raise ResultError("returns document numbers that do not exist")
    ordered = ids.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise ResultError("returns a document twice")
    return got, ids


def _stretch(inputs: Inputs, first: int, last: int) -> Inputs:
    """Documents first..last-1 for all queries, over the same memory: a corpus is not copied to be read once."""
    if inputs.cu_seqlens is not None:
        starts = inputs.cu_seqlens[first : last + 1]
        low, high = starts[[0, -1]].tolist()
        return replace(inputs, D=inputs.D[low:high], d_lengths=starts.diff().int(), cu_seqlens=starts - low)
    d_lengths = None if inputs.d_lengths is None else inputs.d_lengths[first:last]
    return replace(inputs, D=inputs.D[first:last], d_lengths=d_lengths)


def _mover(inputs: Inputs) -> Callable[[Inputs], Inputs]:
    """A function that puts the documents of a stretch of these inputs on the device of their queries."""
    device = inputs.Q.device
    if inputs.D.device == device:
        return lambda part: part
    # The card reaches pinned memory by itself.
    return _onto(device, None if inputs.D.is_pinned() else Staging(device.type))


def _onto(device: torch.device, staging: Staging | None) -> Callable[[Inputs], Inputs]:
    """A function that copies the documents of inputs to `device`, through buffers where some are given."""
    import torch

    def moved(part: Inputs) -> Inputs:
        lengths = None if part.d_lengths is None else part.d_lengths.to(device)
        offsets = None if part.cu_seqlens is None else part.cu_seqlens.to(device)
        if staging is None:
            return replace(part, D=part.D.to(device), d_lengths=lengths, cu_seqlens=offsets)
        D = torch.empty_like(part.D, device=device)
        staging.to_device(D, part.D)
        return replace(part, D=D, d_lengths=lengths, cu_seqlens=offsets)

    return moved


def told_error(errors: Errors, tolerance: float) -> str:
    return f"relative error {errors.max_rel:.3g}, admitted {tolerance:g}"


def _errors(cell: Cell, got: torch.Tensor, want: torch.Tensor) -> Errors:
    """Scores elementwise; gradients normwise, |got - want| / |want| (Frobenius).

    Where two similarities of a query token are nearly equal, rounding picks another winner and moves that token's whole
    gradient: elementwise that is an error of 100 % in two rows, and right all the same.
    """
    errors = compare(got, want)
    if cell.op != "training_step" or not want.numel() or not math.isfinite(errors.max_abs):
        return errors
    size, difference = math.sqrt(dot(want, want)), norm_of_difference(got, want)
    return replace(errors, max_rel=difference / size if size and difference else difference)


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


def resized(cell: Cell, documents: int) -> Cell:
    update: dict[str, object] = {"B": documents}
    if cell.pairing == "pairs":
        update["Nq"] = documents
    return cell.model_copy(update=update)
