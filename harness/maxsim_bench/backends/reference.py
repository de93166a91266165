"""The FP32 reference as a backend: IEEE fp32 over exactly upcast operands, in document blocks.

Room: `backends`. May import: declare, `maxsim`. What every other backend's scores are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.ddp import reference_rank_0
from maxsim_bench.backends.full_step import reference_loss
from maxsim_bench.backends.fused import token_batches
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.backends.training_reference import reference_step
from maxsim_bench.declare.cell import Cell


@dataclass(frozen=True)
class Reference:
    """The FP32 reference, `maxsim.reference.blocked_fp32`; compared with itself it must come out exact."""

    name: str = "reference"
    exact: bool = True
    install: str | None = None

    def version(self) -> str:
        return source_hash("tokens.py", "reference.py", "training/torch_path.py")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op == "search":
            return "scores every document; it keeps no best ones"
        if cell.quantiser is not None:
            return "takes operands as given"
        return None

    def tolerance(self, cell: Cell) -> float:
        return 0.0

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim.reference import blocked_fp32

        if cell.op == "training_step" and variant_of(cell, "encoder", ""):
            return reference_loss(cell, inputs)
        if cell.op == "training_step" and variant_of(cell, "over", "") == "ranks":
            return reference_rank_0(cell, inputs)
        if cell.op == "training_step":
            return reference_step(cell, inputs)
        q, d = token_batches(inputs)
        return lambda: blocked_fp32(q, d, pairing=cell.pairing or "all")


BACKENDS = [Reference()]
