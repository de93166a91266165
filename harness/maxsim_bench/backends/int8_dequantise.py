"""What INT8 costs without a fused kernel: write the documents back as fp32, then score eagerly.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.inputs import padded_documents
from maxsim_bench.backends.int8_ours import INT8_PER_TOKEN, admitted, quantised_bytes
from maxsim_bench.backends.tolerances import TF32_OPERANDS
from maxsim_bench.declare.cell import Cell


@dataclass(frozen=True)
class DequantiseEager:
    """Per-token INT8 documents to fp32 in memory, then eager MaxSim (TF32 on a GPU), both inside the timed call."""

    name: str = "dequantise_eager"
    exact: bool = False
    install: str | None = None

    def version(self) -> str:
        return source_hash("tokens.py", "baselines.py", "quantized")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only"
        if cell.quantiser not in (None, "int8_per_token"):
            return f"quantises int8_per_token, the cell asks for {cell.quantiser}"
        if cell.pairing not in (None, "all"):
            return "scores every query with every document"
        return None

    def tolerance(self, cell: Cell) -> float:
        return admitted(INT8_PER_TOKEN, cell) + TF32_OPERANDS

    def document_bytes(self, cell: Cell, tokens: int, documents: int) -> int:
        """Bytes of the quantised documents, which it must read; that it writes and reads them as fp32 is its own doing.

        With 4 for the fp32 scale of every token. Its products are judged by the unit of the cell's operands, as the
        other eager baselines' are.
        """
        return quantised_bytes(cell, tokens, 4 * tokens)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim import baselines
        from maxsim.quantized import quantize_int8

        assert cell.Ld is not None
        D, lengths = padded_documents(inputs, cell.Ld)
        quantised = quantize_int8(D, lengths=lengths)
        codes, scales = quantised.codes.values.contiguous(), quantised.scales[:, None]
        Q, shape, tf32 = inputs.Q.float(), D.shape, D.is_cuda
        return lambda: baselines.eager(Q, (codes.float() * scales).view(shape), lengths, tf32=tf32)


BACKENDS = [DequantiseEager()]
