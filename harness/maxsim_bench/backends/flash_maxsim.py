"""The peer flash-maxsim (the paper's own implementation), called as its README calls it.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing
from maxsim_bench.backends.tolerances import FP32_ACCUMULATE
from maxsim_bench.declare.cell import Cell


@dataclass(frozen=True)
class FlashMaxSim:
    """flash-maxsim 0.3.0: `flash_maxsim`, `flash_maxsim_packed` and `flash_maxsim_batched`. Casts all to fp16."""

    name: str = "flash_maxsim"
    exact: bool = True
    install: str | None = "pip install 'maxsim-bench[peers]'"

    def version(self) -> str:
        return installed_version("flash-maxsim")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only; its training step is another backend"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        if cell.dtype != "fp16":
            return f"casts {cell.dtype} to fp16 silently, so it does not compute this cell"
        if cell.layout == "packed" and cell.Nq != 1:
            return "its packed scoring takes one query"
        if cell.pairing == "pairs":
            return "its pair scoring takes Python lists, one tensor a document"
        return missing("flash_maxsim", f"{self.install}")

    def tolerance(self, cell: Cell) -> float:
        return FP32_ACCUMULATE

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import flash_maxsim
        import torch

        Q, D = inputs.Q, inputs.D
        if inputs.cu_seqlens is not None:
            q, offsets, longest = Q[0], inputs.cu_seqlens.to(torch.int32), cell.Ld
            return lambda: flash_maxsim.flash_maxsim_packed(q, D, offsets, max_seqlen_d=longest)[None]
        lengths = inputs.d_lengths
        if cell.pairing == "candidates":
            return lambda: flash_maxsim.flash_maxsim_batched(Q, D, lengths, shared_docs=False)
        if Q.shape[0] == 1:
            q = Q[0]
            return lambda: flash_maxsim.flash_maxsim(q, D, lengths)[None]
        return lambda: flash_maxsim.flash_maxsim_batched(Q, D, lengths)


BACKENDS = [FlashMaxSim()]
