"""What no scorer can avoid: every byte of the operands read once, and a kernel launched. Backends that score nothing.

Room: `backends`. May import: declare, `maxsim`. They stand beside a scorer in one interleaved run, under the same
timer, so that what it takes beyond them is a number of the same rows. `gives` says what their results are checked for;
a cell asks for them by variant `against=floor`, so that no comparison of scorers holds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.ceilings import processors
from maxsim_bench.backends.identity import room_hash, source_hash
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import DTYPE_BYTES

if TYPE_CHECKING:
    import torch

_GROUP_BYTES = 16  # what a thread reads at once
_WRAPS = 1 << 32


def _asked(cell: Cell) -> str | None:
    """Why a cell is no place for what does not score, None if it is."""
    if cell.op != "forward" or variant_of(cell, "against", "") != "floor":
        return "scores nothing: it stands beside the scorers of a cell that asks for it (variant against=floor)"
    return None


@dataclass(frozen=True)
class Read:
    """Reads Q and D once and writes one number a program: the sum of the 32-bit words that it read.

    `way`: "streaming" starts as many programs as there are blocks, "persistent" as many as the card holds at once.
    """

    name: str
    way: Literal["streaming", "persistent"]
    gives: str = "sums"
    exact: bool = True
    install: str | None = None

    def version(self) -> str:
        """Half the digits are of the readers, half of what launches them, which decides their times on the host."""
        return room_hash("floor")[:6] + source_hash("fused/hopper_launch.py")[:6]

    def supports(self, cell: Cell, device: str) -> str | None:
        reason = _asked(cell)
        if reason is not None:
            return reason
        if cell.layout == "masked" or variant_of(cell, "query_lengths", ""):
            return "reads every byte that it is given, and padding need not be read"
        row = (cell.d or 0) * DTYPE_BYTES[cell.dtype or "fp32"]
        if row % _GROUP_BYTES:
            return f"reads {_GROUP_BYTES} bytes at once, and a token of {row} bytes is no multiple of that"
        return None

    def tolerance(self, cell: Cell) -> float:
        return 0.0  # sums of words wrap and have no rounding

    def piece_work(self, cell: Cell, tokens: int, documents: int) -> tuple[float, float]:
        """No operation of a matrix unit, and the bytes of the operands."""
        assert cell.Nq
        assert cell.Lq
        assert cell.d
        return 0.0, float((cell.Nq * cell.Lq + tokens) * cell.d * DTYPE_BYTES[cell.dtype or "fp32"])

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        q, d = words(inputs.Q), words(inputs.D)
        if not q.is_cuda:
            return lambda: _sums(q, d)
        from maxsim_bench.backends.floor.kernels import Reader

        return Reader(self.way, q, d)

    def kernel_config(self, cell: Cell, inputs: Inputs) -> str:
        """How the operands are dealt out to programs."""
        if not inputs.Q.is_cuda:
            return "torch (a sum of words)"
        from maxsim_bench.backends.floor.kernels import plan

        return str(plan(self.way, words(inputs.Q), words(inputs.D), processors()))


@dataclass(frozen=True)
class Empty:
    """One launch of a kernel that returns at once: what the timer charges for nothing. On a processor, no work."""

    name: str = "empty_launch"
    gives: str = "nothing"
    exact: bool = True
    install: str | None = None

    def version(self) -> str:
        return room_hash("floor")

    def supports(self, cell: Cell, device: str) -> str | None:
        return _asked(cell)

    def tolerance(self, cell: Cell) -> float:
        return 0.0

    def piece_work(self, cell: Cell, tokens: int, documents: int) -> tuple[float, float]:
        """Neither operations nor bytes."""
        return 0.0, 0.0

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import torch

        nothing = torch.empty(0, device=inputs.Q.device)
        if not nothing.is_cuda:
            return lambda: nothing

        def call() -> torch.Tensor:
            torch.cuda._sleep(0)  # the kernel that the session's launch ceiling times: no cycles, no memory
            return nothing

        return call


def words(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as int32 [N / 4], in place.

    Raises:
        RuntimeError: for bytes that are no whole words, from torch.
    """
    import torch

    return x.reshape(-1).view(torch.int32)


def _sums(*operands: torch.Tensor) -> torch.Tensor:
    """[len(operands)] float64: the sum of each one's words, modulo 2^32, which float64 holds exactly."""
    import torch

    return torch.stack([x.sum() % _WRAPS for x in operands]).double()


BACKENDS = [Read("read_streaming", "streaming"), Read("read_persistent", "persistent"), Empty()]
