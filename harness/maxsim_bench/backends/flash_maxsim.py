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
from maxsim_bench.declare.experiment import VARIANT, axis_of


@dataclass(frozen=True)
class FlashMaxSim:
    """flash-maxsim 0.3.0: `flash_maxsim`, `flash_maxsim_packed` and `flash_maxsim_batched`, at fp16.

    Its padded kernel multiplies bf16 as given up to d = 512; packed scoring and wider embeddings are cast to fp16, and
    fp32 is multiplied in TF32. So grids compare at fp16, the type of all its published numbers but those of sec:bf16.

    Variants, both from the paper's ablations: `query_chunk=N` or `off` is its argument `query_chunk_size` (128 where
    the cell names none); `kernel=one_shot` or `split_d` holds its dispatcher to one kernel, which else goes by d > 512.
    Padded query tokens are zeroed before the call: its own `query_lengths` are lost for queries longer than a chunk.
    """

    name: str = "flash_maxsim"
    exact: bool = True
    length_multiple: int = 64  # tunes 16 launches for every query length
    install: str | None = "pip install 'maxsim-bench[peers]'"

    def version(self) -> str:
        return installed_version("flash-maxsim")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only; its training step is another backend"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        # Where roundings are what is measured, whatever it makes of bf16 is the question.
        unrounded = axis_of(cell, VARIANT + "reference") == "unrounded"
        if cell.dtype != "fp16" and not (unrounded and cell.dtype == "bf16"):
            return f"is compared at fp16: of {cell.dtype} it casts what is packed or wide, or multiplies in TF32"
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
        if inputs.q_lengths is not None:
            valid = torch.arange(Q.shape[1], device=Q.device) < inputs.q_lengths[:, None]
            Q = torch.where(valid[..., None], Q, 0)
        if inputs.cu_seqlens is not None:
            q, offsets, longest = Q[0], inputs.cu_seqlens.to(torch.int32), cell.Ld
            return lambda: flash_maxsim.flash_maxsim_packed(q, D, offsets, max_seqlen_d=longest)[None]
        lengths = inputs.d_lengths
        if cell.pairing == "candidates":
            return lambda: flash_maxsim.flash_maxsim_batched(Q, D, lengths, shared_docs=False)
        if Q.shape[0] == 1:
            q, chunk = Q[0], _query_chunk(cell)
            return _held_to(cell, lambda: flash_maxsim.flash_maxsim(q, D, lengths, query_chunk_size=chunk)[None])
        return lambda: flash_maxsim.flash_maxsim_batched(Q, D, lengths)


def _query_chunk(cell: Cell) -> int | None:
    given = axis_of(cell, VARIANT + "query_chunk") or "128"
    return None if given == "off" else int(given)


def _held_to(cell: Cell, call: Callable[[], object]) -> Callable[[], object]:
    """The call with the package's dispatcher held to the kernel that the cell names, if it names one.

    0.3.0 has no argument for it; its dispatcher reads the threshold on d from its own module at every call.
    """
    kernel = axis_of(cell, VARIANT + "kernel")
    if kernel is None:
        return call
    from flash_maxsim import flash_maxsim_splitd as module

    threshold = {"one_shot": 1 << 30, "split_d": 0}[kernel]

    def held() -> object:
        before = module._SPLITD_THRESH
        module._SPLITD_THRESH = threshold
        try:
            return call()
        finally:
            module._SPLITD_THRESH = before

    return held


BACKENDS = [FlashMaxSim()]
