"""What is right in a two-stage search: which candidates the first stage finds, and what the second gives for them.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.backends.pipeline import pooled
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of
from maxsim_bench.measure.errors import compare
from maxsim_bench.run.check import ResultError, Verdict, results, select
from maxsim_bench.run.truth import named_documents, resized, told_error

if TYPE_CHECKING:
    import torch

# Pooled similarities are rounded to fp16 (2^-11) before the best are taken, so the last ones may change places.
_POOLED_ROUNDING = 1e-3


class PipelineTruth:
    """A two-stage search's candidates by their pooled vectors, and whatever its stage gives for each of them."""

    def __init__(self, cell: Cell, inputs: Inputs, reference: Backend) -> None:
        """Similarities of all documents; scores are computed for the candidates that an output names."""
        assert cell.B
        self.cell, self.reference = cell, reference
        self.inputs = inputs
        question, pool = pooled(inputs.Q, inputs.q_lengths), pooled(inputs.D, inputs.d_lengths)
        self.similarities = question.double() @ pool.double().T
        self.best = self.similarities.topk(cell.B, dim=1).values
        self.like = [self.best]

    def judge(self, output: object, tolerance: float) -> Verdict:
        """The candidates are as good as the best by pooled similarity, and what is returned for each is right."""
        got, ids = named_documents(output, list(self.best.shape), self.similarities.shape[1], self.similarities.device)
        chosen = compare(self.similarities.gather(1, ids).sort(dim=1, descending=True).values, self.best)
        if chosen.max_rel > max(tolerance, _POOLED_ROUNDING):
            return Verdict(chosen, f"better candidates were missed: {told_error(chosen, tolerance)}")
        want = self._wanted(ids)
        if list(got.shape) != list(want.shape):
            raise ResultError(f"returns shape {list(got.shape)}, but the stage gives {list(want.shape)}")
        errors = compare(got, want)
        return Verdict(errors, None if errors.max_rel <= tolerance else told_error(errors, tolerance))

    def _wanted(self, ids: torch.Tensor) -> torch.Tensor:
        stage = axis_of(self.cell, VARIANT + "stage")
        if stage == "stage1":
            return self.similarities.gather(1, ids)
        part = select(self.cell, self.inputs, ids[0].tolist())
        if stage == "gather":
            return part.D
        return results(self.reference.prepare(resized(self.cell, ids.shape[1]), part)())[0]

    def agreement(self, output: object) -> dict[str, float]:
        """Nothing: candidates are not a ranking by score."""
        return {}
