"""The peer late-interaction-kernels, called as its README calls it.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing
from maxsim_bench.backends.tolerances import FP32_ACCUMULATE
from maxsim_bench.declare.cell import Cell

# Above this many document elements 0.4.5 raised an illegal memory access (B=100 000, Ld=300, d=128 on an H200).
_MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class LateInteractionKernels:
    """late-interaction-kernels 0.4.5: `maxsim` for padded documents, `maxsim_varlen` for packed ones."""

    name: str = "lik"
    exact: bool = True
    length_multiple: int = 64  # tunes a dozen launches for every power of two
    empty_documents: bool = False  # 0.4.5 scores them 0
    install: str | None = "pip install 'maxsim-bench[peers]'"

    def version(self) -> str:
        return installed_version("late-interaction-kernels")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only; its training step is another backend"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        if cell.dtype == "fp32":
            return "multiplies fp32 operands in TF32, so it does not compute this cell"
        if cell.pairing == "pairs":
            return "its pair scoring is a separate entry point with lists of pairs"
        documents = (cell.B or 0) * ((cell.Nq or 1) if cell.pairing == "candidates" else 1)
        if documents * (cell.Ld or 0) * (cell.d or 0) > _MAX_ELEMENTS:
            return "0.4.5 raises an illegal memory access above 2^31 document elements"
        return missing("late_interaction_kernels", f"{self.install}")

    def tolerance(self, cell: Cell) -> float:
        return FP32_ACCUMULATE

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import late_interaction_kernels as lik
        import torch

        Q, D = inputs.Q, inputs.D
        if inputs.cu_seqlens is not None:
            Nq, Lq, d = Q.shape
            rows, longest = Q.reshape(Nq * Lq, d), cell.Ld
            q_offsets = torch.arange(0, (Nq + 1) * Lq, Lq, dtype=torch.int32, device=Q.device)
            offsets = inputs.cu_seqlens.to(torch.int32)
            return lambda: lik.maxsim_varlen(rows, D, q_offsets, offsets, Lq, longest)
        if inputs.d_lengths is None:
            return lambda: lik.maxsim(Q, D)
        mask = torch.arange(D.shape[-2], device=D.device) < inputs.d_lengths[..., None]
        return lambda: lik.maxsim(Q, D, d_mask=mask)


BACKENDS = [LateInteractionKernels()]
