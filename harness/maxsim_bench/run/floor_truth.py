"""What is right of a backend that scores nothing: the sums of what it read, or nothing at all.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.errors import Errors, compare
from maxsim_bench.run.check import ResultError, Verdict, results

if TYPE_CHECKING:
    import torch

_WRAPS = 1 << 32
_WHOLE = 1 << 53  # up to which float64 holds every whole number
_PIECE = 1 << 22  # words added up at a time: torch widens what it adds to int64, in a copy twice the size
_RIGHT, _WRONG = Errors(0.0, 0.0, 0.0), Errors(math.inf, math.inf, math.inf)  # a sum of bits is not nearly right


class SumsTruth:
    """The sum of all 32-bit words of Q and D, modulo 2^32: what the sums that a reader wrote must add up to.

    Integers add up to the same in any order, so a block that was left out or read twice shows, whoever had it.
    """

    def __init__(self, cell: Cell, inputs: Inputs, reference: Backend) -> None:
        """Add the words up piece by piece, so a corpus needs no room beside it; the reference is not asked."""
        import torch

        self.total = (_sum_of_words(inputs.Q) + _sum_of_words(inputs.D)) % _WRAPS
        self.like = [torch.zeros(1, dtype=torch.float64, device=inputs.Q.device)]

    def judge(self, output: object, tolerance: float) -> Verdict:
        """Exactly equal, whatever the tolerance; raises `ResultError` for anything but one vector of float64."""
        sums = _only(output)
        if sums.dim() != 1 or str(sums.dtype) != "torch.float64":
            raise ResultError(f"returns {sums.dtype} {list(sums.shape)}, but sums of words are one vector of float64")
        if not bool(((sums == sums.round()) & (sums.abs() <= _WHOLE)).all()):  # NaN is neither
            return Verdict(_WRONG, "a sum of words is no whole number: it was never written")
        short = (self.total - int(sums.long().sum())) % _WRAPS  # int64 wraps, which changes nothing modulo 2^32
        if short:
            told = f"did not read what it was given, once: its words add up to {short} less (modulo 2^32)"
            return Verdict(_WRONG, told)
        return Verdict(_RIGHT, None)

    def agreement(self, output: object) -> dict[str, float]:
        """Nothing beside the errors."""
        return {}


class NothingTruth:
    """The result of no work: a tensor without elements."""

    def __init__(self, cell: Cell, inputs: Inputs, reference: Backend) -> None:
        """Nothing is computed."""
        import torch

        self.want = torch.empty(0, device=inputs.Q.device)
        self.like = [self.want]

    def judge(self, output: object, tolerance: float) -> Verdict:
        """Raises `ResultError` for a result with elements: who writes one does more than launch."""
        got = _only(output)
        if got.numel():
            raise ResultError(f"returns {got.numel()} numbers, but an empty launch gives none")
        return Verdict(compare(got.reshape(0), self.want), None)

    def agreement(self, output: object) -> dict[str, float]:
        """Nothing beside the errors."""
        return {}


def _sum_of_words(x: torch.Tensor) -> int:
    """The sum of the 32-bit words of a contiguous tensor, whose bytes are a multiple of 4."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for piece in x.reshape(-1).view(torch.int32).split(_PIECE):
        total += piece.sum(dtype=torch.int64)
    return int(total)


def _only(output: object) -> torch.Tensor:
    """The one floating-point tensor of an output."""
    got = results(output)
    if len(got) != 1:
        raise ResultError(f"returns {len(got)} tensors of floating-point numbers, not one")
    return got[0]
