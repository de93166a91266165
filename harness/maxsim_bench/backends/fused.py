"""Ours: `maxsim.maxsim`, through the launch its own table chooses.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.tolerances import FP32_ACCUMULATE, FP32_OPERANDS, TF32_OPERANDS
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    from maxsim import TokenBatch

_SOURCES = ("tokens.py", "reference.py", "operator.py", "fused")


@dataclass(frozen=True)
class Fused:
    """The fused operator; `path` pins one kernel ("portable", "hopper"), None leaves the choice to the launch table."""

    name: str = "fused"
    path: Literal["portable", "hopper"] | None = None
    exact: bool = True
    install: str | None = None
    about: str = "ours: `maxsim.maxsim`, one fused kernel, chosen by its launch table"

    def version(self) -> str:
        return source_hash(*_SOURCES)

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator; training, search and quantised scoring are backends of their own"
        if cell.quantiser is not None:
            return "takes operands as given; quantised operands are backends of their own"
        if device != "cuda" and self.path is not None:
            return "its kernels need an NVIDIA GPU"
        return None

    def tolerance(self, cell: Cell) -> float:
        if cell.dtype != "fp32":
            return FP32_ACCUMULATE
        return TF32_OPERANDS if cell.precision == "tf32" else FP32_OPERANDS

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import maxsim

        return forward_call(maxsim, cell, inputs, self.path)

    def kernel_config(self, cell: Cell, inputs: Inputs) -> str:
        """The launch that the prepared callable makes: kernel, tile, why, what binds."""
        import maxsim

        q, d = token_batches(inputs)
        pairing, precision = cell.pairing or "all", cell.precision or "ieee"
        return str(maxsim.explain(q, d, pairing=pairing, precision=precision, path=self.path))


def forward_call(package: Any, cell: Cell, inputs: Inputs, path: str | None = None) -> Callable[[], object]:
    """A call of `package.maxsim` on a cell's inputs; `package` is `maxsim`, or another revision of it."""
    q, d = token_batches(inputs, package)
    pairing, precision = cell.pairing or "all", cell.precision or "ieee"
    return lambda: package.maxsim(q, d, pairing=pairing, precision=precision, path=path)


def token_batches(inputs: Inputs, package: Any = None) -> tuple[TokenBatch, TokenBatch]:
    """Query and document `TokenBatch`, validated once, as a user who scores the same corpus repeatedly keeps them.

    `package`: another revision of `maxsim`, whose batches these are to be.
    """
    import maxsim as installed

    maxsim = package or installed
    q = maxsim.tokens(inputs.Q, lengths=inputs.q_lengths)
    if inputs.cu_seqlens is not None:
        return q, maxsim.tokens(inputs.D, cu_seqlens=inputs.cu_seqlens)
    D, lengths = inputs.D, inputs.d_lengths
    if D.ndim == 4:
        D, lengths = D.flatten(0, 1), None if lengths is None else lengths.flatten()
    return q, maxsim.tokens(D, lengths=lengths)


BACKENDS = [
    Fused(),
    Fused(
        name="fused_portable",
        path="portable",
        about="ours, held to the portable Triton kernel that needs no Hopper card",
    ),
]
