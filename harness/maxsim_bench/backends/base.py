"""What a backend is, and the inputs it is given. One small adapter a backend; adding one is one file.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Inputs:
    """The tensors of one cell, the same for every backend of it.

    Attributes:
        Q: [Nq, Lq, d] query token embeddings (padded where `q_lengths` is given).
        D: [B, Ld, d] dense or masked; [T, d] packed; [Nq, B, Ld, d] for pairing "candidates".
        q_lengths: [Nq] int32 or None.
        d_lengths: [B] int32 (masked and packed layouts) or None; [Nq, B] for candidates.
        cu_seqlens: [B + 1] int64 offsets of a packed D, else None.
        exact: Q and D in fp32 before they were rounded to the cell's dtype, where the cell is judged against those.
    """

    Q: torch.Tensor
    D: torch.Tensor
    q_lengths: torch.Tensor | None = None
    d_lengths: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    exact: tuple[torch.Tensor, torch.Tensor] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that backends are given."""
        return [t for t in (self.Q, self.D, self.q_lengths, self.d_lengths, self.cu_seqlens) if t is not None]


class Backend(Protocol):
    """An implementation of the operator under test.

    `prepare` does whatever may happen before the timed region (casts, padding, quantising, packing) and returns a
    callable without arguments that does the work and returns the result: for `forward` float scores [Nq, B]
    ([Nq, B] candidates, [B] pairs), for `training_step` the tuple (loss, dQ, dD).
    `exact` says whether its result must equal the FP32 reference within `tolerance(cell)`, a relative bound.

    A backend may also say, for the fidelity audit, which meets many lengths (both default to what needs no care):
    `length_multiple`, 1: it compiles or tunes for every length of query, so lengths are rounded up to this many
    tokens; `empty_documents`, True: False if it does not answer a document without tokens as docs/semantics.md does,
    so it is not asked.

    `about` is one line for `maxsim-bench list backends`; without it that line is the first of the class's docstring,
    which suits a class with one backend.

    One that is no scorer says what its callable returns, and so what it is checked for, in `gives` (default "result",
    what the operator returns): "sums", float64 sums of the 32-bit words of Q and D, or "nothing", an empty tensor.
    """

    name: str
    exact: bool
    install: str | None  # the command that makes it available, None for what is always there

    def version(self) -> str:
        """Package version for a peer, hash of the sources that decide the result for ours."""
        ...

    def supports(self, cell: Cell, device: str) -> str | None:
        """None if this cell can run on this device ("cuda" or "cpu"), else the reason in words."""
        ...

    def tolerance(self, cell: Cell) -> float:
        """Largest admitted relative error of a score against the FP32 reference; its reason stands in `tolerances`."""
        ...

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        """The callable to time. Raises what the implementation raises."""
        ...
