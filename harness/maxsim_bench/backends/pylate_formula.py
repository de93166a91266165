"""PyLate's scoring as its own code writes it: einsum, products with the masks, max, sum, all in the operands' dtype.

Room: `backends`. May import: declare, `maxsim`. PyLate itself pins packages that exclude the torch measured here; the
four lines of `pylate.scores.colbert_scores` (1.6.0, its torch backend) need none of them. A masked similarity is 0
there, not minus infinity: a document whose every real similarity is negative scores 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.tolerances import FP32_OPERANDS, HALF_RESULT
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of


@dataclass(frozen=True)
class PyLateFormula:
    """PyLate's scoring formula, on padded documents and queries with 0/1 masks."""

    name: str = "eager_pylate"
    exact: bool = False
    install: str | None = None

    def version(self) -> str:
        return "1.6.0-formula"

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only"
        if cell.quantiser is not None:
            return "takes operands as given; quantised operands are backends of their own"
        if cell.layout == "packed" or cell.pairing not in (None, "all"):
            return "scores every query with every padded document"
        if cell.layout == "masked" and axis_of(cell, VARIANT + "reference") != "unrounded":
            return "takes a padded similarity for 0, which wins where all real ones are negative"
        return None

    def tolerance(self, cell: Cell) -> float:
        return FP32_OPERANDS if cell.dtype == "fp32" else HALF_RESULT[cell.dtype or "fp16"]

    def similarity_bytes(self, cell: Cell) -> int:
        """Bytes of one similarity that a call writes to memory and reads again."""
        return 4 if cell.dtype == "fp32" else 2

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import torch

        from maxsim.reference import matmul_precision

        Q, D = inputs.Q, inputs.D
        masks = []
        for tokens, lengths in ((Q, inputs.q_lengths), (D, inputs.d_lengths)):
            steps = torch.arange(tokens.shape[1], device=tokens.device)
            masks.append(None if lengths is None else (steps < lengths[:, None]).to(tokens.dtype))
        queries, documents = masks

        def call() -> torch.Tensor:
            with matmul_precision("ieee"):
                scores = torch.einsum("ash,bth->abst", Q, D)
            if queries is not None:
                scores = scores * queries[:, None, :, None]
            if documents is not None:
                scores = scores * documents[None, :, None, :]
            return scores.max(dim=-1).values.sum(dim=-1)

        return call


BACKENDS = [PyLateFormula()]
