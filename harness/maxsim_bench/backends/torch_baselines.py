"""What people run today in PyTorch: materialise and reduce, in one piece, in blocks, or through the compiler.

Room: `backends`. May import: declare, `maxsim`. The code measured is in `maxsim.baselines`; this adapts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.inputs import padded_documents
from maxsim_bench.backends.tolerances import FP32_OPERANDS, HALF_RESULT, TF32_OPERANDS
from maxsim_bench.declare.cell import Cell

Arithmetic = Literal["as_given", "fp32", "tf32"]


@dataclass(frozen=True)
class TorchBaseline:
    """One of `maxsim.baselines`, with the operands as given or cast up before the timed region.

    Attributes:
        name: of the backend.
        style: eager | chunked | compiled | compiled_graphs.
        arithmetic: "as_given" multiplies and sums in the cell's dtype; "fp32" and "tf32" cast the operands up first.
        cast_inside: the casts are part of every call, as in several of the paper's tables.
    """

    name: str
    style: Literal["eager", "chunked", "compiled", "compiled_graphs"]
    arithmetic: Arithmetic = "as_given"
    cast_inside: bool = False
    exact: bool = False
    install: str | None = None
    about: str = ""

    def version(self) -> str:
        return source_hash("reference.py", "baselines.py")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only"
        if cell.quantiser is not None:
            return "takes operands as given; quantised operands are backends of their own"
        if cell.pairing not in (None, "all"):
            return "scores every query with every document"
        if self.style.startswith("compiled") and device != "cuda":
            return "max-autotune is a search over GPU kernels; on a processor it needs a C++ compiler"
        if self.style == "chunked" and cell.chunk is not None and cell.B is not None and cell.chunk > cell.B:
            return f"chunk {cell.chunk} is larger than the corpus of {cell.B}"
        if self.arithmetic == "tf32" and device != "cuda":
            return "TF32 is a mode of NVIDIA matrix units"
        return None

    def tolerance(self, cell: Cell) -> float:
        if self._tf32(cell):
            return TF32_OPERANDS
        if self.arithmetic != "as_given" or cell.dtype == "fp32":
            return FP32_OPERANDS
        return HALF_RESULT[cell.dtype or "fp16"]

    def similarity_bytes(self, cell: Cell) -> int:
        """Bytes of one similarity that a call writes to memory and reads again."""
        return 4 if self.arithmetic != "as_given" or cell.dtype == "fp32" else 2

    def _tf32(self, cell: Cell) -> bool:
        return self.arithmetic == "tf32" or (cell.dtype == "fp32" and cell.precision == "tf32")

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim import baselines

        assert cell.Ld is not None
        Q, (D, lengths) = inputs.Q, padded_documents(inputs, cell.Ld)
        if self.cast_inside:
            return lambda: baselines.eager(Q.float(), D.float(), lengths, tf32=self._tf32(cell))
        if self.arithmetic != "as_given":
            Q, D = Q.float(), D.float()
        tf32 = self._tf32(cell)
        if self.style == "eager":
            return lambda: baselines.eager(Q, D, lengths, tf32=tf32)
        if self.style == "chunked":
            return lambda: baselines.chunked(Q, D, lengths, chunk=cell.chunk or 0, tf32=tf32)
        compiled = baselines.compiled(cudagraphs=self.style == "compiled_graphs", tf32=tf32)
        return lambda: compiled(Q, D, lengths)


BACKENDS = [
    TorchBaseline("eager", "eager", about="PyTorch: all similarities in memory, in the operands' dtype"),
    TorchBaseline("eager_fp32", "eager", "fp32", about="eager on operands cast to fp32 beforehand, IEEE products"),
    TorchBaseline("eager_tf32", "eager", "tf32", about="eager on operands cast to fp32 beforehand, TF32 products"),
    TorchBaseline(
        "eager_tf32_cast", "eager", "tf32", cast_inside=True, about="eager_tf32 with the casts in every call"
    ),
    TorchBaseline("chunked", "chunked", about="eager over a block of documents at a time"),
    TorchBaseline("compiled", "compiled", about="eager through torch.compile (max-autotune), without CUDA graphs"),
    TorchBaseline("compiled_tf32", "compiled", "tf32", about="eager_tf32 through torch.compile, without CUDA graphs"),
    TorchBaseline("compiled_graphs", "compiled_graphs", about="eager through torch.compile, with CUDA graphs"),
    TorchBaseline(
        "compiled_graphs_tf32", "compiled_graphs", "tf32", about="eager_tf32 through torch.compile, with CUDA graphs"
    ),
]
