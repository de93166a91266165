"""Ours over quantised documents: INT8 per token or per document, FP8, and queries as given against INT8 documents.

Room: `backends`. May import: declare, `maxsim`. Quantising happens before the timed region; the kernel is chosen by
`maxsim.quantized.score`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.fused import token_batches
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.declare.cell import Cell

# Relative to the score, on unit vectors. A code is off by at most half a step, 1/254 of a token's largest element;
# random signs and the sum over query tokens average that down. One scale a document has the step of its largest token.
# e4m3 keeps four significant bits, and a maximum over many tokens picks upward errors.
INT8_PER_TOKEN = 1e-2
INT8_PER_DOCUMENT = 1e-2
FP8_E4M3 = 4e-2

# A document of one or two tokens is a sum of few signed similarities and may score near zero, where the same absolute
# error is a larger relative one. Ragged cells hold such documents.
_RAGGED = 10


def admitted(base: float, cell: Cell) -> float:
    """Largest relative error of a score in a cell: `base` where every document has all its Ld tokens."""
    return base if cell.layout in (None, "dense") else _RAGGED * base


def quantised_bytes(cell: Cell, tokens: int, scales_bytes: int) -> int:
    """Bytes of documents quantised to one byte a dimension, `tokens` in all, beside scales of so many bytes in all."""
    assert cell.d is not None
    return tokens * cell.d + scales_bytes


@dataclass(frozen=True)
class Quantized:
    """`maxsim.quantized.score` with documents of one quantiser.

    Attributes:
        name: of the backend.
        quantiser: as in `Cell.quantiser`, and as index files record it.
        error: relative, where every document is long; see `admitted`.
        queries: "codes" quantises them too, one scale a token; "as_given" leaves them in the cell's dtype.
        unit: matrix unit that the products run on, for the ceiling of a row; None is that of the cell's dtype.
    """

    name: str
    quantiser: str
    error: float
    queries: Literal["codes", "as_given"] = "codes"
    unit: str | None = None
    exact: bool = False
    install: str | None = None
    about: str = ""

    def version(self) -> str:
        return source_hash("tokens.py", "quantized")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op not in ("forward", "fidelity"):
            return "scores; it neither trains nor searches"
        if cell.quantiser not in (None, self.quantiser):
            return f"quantises {self.quantiser}, the cell asks for {cell.quantiser}"
        if cell.pairing not in (None, "all"):
            return "quantised scoring meets every query with every document"
        return None

    def tolerance(self, cell: Cell) -> float:
        return admitted(self.error, cell)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim import TokenBatch
        from maxsim.quantized import quantize_fp8, quantize_int8, score

        q, d = token_batches(inputs)
        assert isinstance(q, TokenBatch)
        assert isinstance(d, TokenBatch)
        quantise = quantize_int8 if self.quantiser.startswith("int8") else quantize_fp8
        documents = quantise(d, "token" if self.quantiser.endswith("token") else "document")
        if self.queries == "as_given":
            return lambda: score(q, documents)
        codes = quantise(q)
        return lambda: score(codes, documents)

    def document_bytes(self, cell: Cell, tokens: int, documents: int) -> int:
        """Bytes of the quantised documents, with 4 for the fp32 scale of every token or document."""
        return quantised_bytes(cell, tokens, 4 * (tokens if self.quantiser.endswith("token") else documents))


BACKENDS = [
    Quantized("fused_int8", "int8_per_token", INT8_PER_TOKEN, unit="int8", about="ours on INT8 codes, a scale a token"),
    Quantized(
        "fused_int8_doc",
        "int8_per_document",
        INT8_PER_DOCUMENT,
        unit="int8",
        about="ours on INT8 codes, a scale a document",
    ),
    Quantized(
        "fused_int8_mixed",
        "int8_per_token",
        INT8_PER_TOKEN,
        queries="as_given",
        about="ours on queries as given and INT8 documents, a scale a token",
    ),
    Quantized("fused_fp8", "fp8_per_token", FP8_E4M3, unit="fp8", about="ours on FP8 (e4m3), a scale a token"),
    Quantized(
        "fused_fp8_doc", "fp8_per_document", FP8_E4M3, unit="fp8", about="ours on FP8 (e4m3), a scale a document"
    ),
]
