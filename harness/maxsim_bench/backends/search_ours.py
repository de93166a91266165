"""`maxsim.search` over a corpus in host memory: as given, quantised, and quantised with exact rescoring.

Room: `backends`. May import: declare, `maxsim`. For op "search" `inputs.Q` lies on the device that scores and
`inputs.D` in host memory (pinned, where the copy is to be what binds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.fused import token_batches
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.int8_ours import INT8_PER_TOKEN, quantised_bytes
from maxsim_bench.backends.tolerances import FP32_ACCUMULATE
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import DTYPE_BYTES, drawn_documents

if TYPE_CHECKING:
    import torch

    from maxsim import TokenBatch
    from maxsim.quantized import QuantizedTokens

_BLOCK_DOCUMENTS = 4096
_DEPTH = 10  # candidates a result that are scored again


@dataclass(frozen=True)
class Search:
    """Top-k by `maxsim.search`; the result is (scores [Nq, k], document numbers [Nq, k]).

    Attributes:
        quantiser: of the corpus; None searches the embeddings as given.
        rescore: score the best k · 10 of the quantised scan again, exactly.
        unit: matrix unit that the scan's products run on, for the ceiling of a row; None is that of the cell's dtype.
            What rescoring multiplies on another is not counted.
    """

    name: str
    quantiser: str | None = None
    rescore: bool = False
    unit: str | None = None
    exact: bool = True
    install: str | None = None
    about: str = ""

    def version(self) -> str:
        return source_hash("tokens.py", "operator.py", "fused", "quantized", "blocks.py", "search.py")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "search":
            return "finds the best documents; scoring all of them is another backend"
        if cell.k is None:
            return "needs k, the number of results"
        if cell.quantiser not in (None, self.quantiser):
            return f"searches {self.quantiser or 'embeddings as given'}, the cell asks for {cell.quantiser}"
        if cell.pairing not in (None, "all"):
            return "searches one corpus for all queries"
        if drawn_documents(cell) != cell.B and (self.rescore or cell.layout not in (None, "dense")):
            return "repeats documents (variant drawn) that are dense, and without scoring the best again"
        return None

    def tolerance(self, cell: Cell) -> float:
        return FP32_ACCUMULATE if self.quantiser is None or self.rescore else INT8_PER_TOKEN

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim import TokenBatch
        from maxsim.search import search

        assert cell.k is not None
        assert cell.B is not None
        k = cell.k
        q, d = token_batches(inputs)
        assert isinstance(q, TokenBatch)
        assert isinstance(d, TokenBatch)
        held = self._held(d, q.device)
        if self.rescore:
            return lambda: search(q, held, k, rescore=True, originals=d, depth=_DEPTH)
        if d.count == cell.B:
            return lambda: search(q, held, k)
        # the documents that were drawn again and again, the last time as many as are left
        blocks = [held] * (cell.B // d.count)
        if rest := cell.B % d.count:
            _, first = token_batches(replace(inputs, D=inputs.D[:rest]))
            assert isinstance(first, TokenBatch)
            blocks.append(self._held(first, q.device))
        return lambda: search(q, blocks, k)

    def _held(self, d: TokenBatch, device: torch.device) -> TokenBatch | QuantizedTokens:
        """The documents as they are searched."""
        if self.quantiser is None:
            return d
        return _quantised(d, "token" if self.quantiser.endswith("token") else "document", device)

    def document_bytes(self, cell: Cell, tokens: int, documents: int) -> float:
        """Bytes of the corpus as scanned (embeddings, or codes and 4 for each fp32 scale) and of what is rescored.

        Queries choose their candidates independently of each other, as random ones do, and a document that several
        chose counts once.
        """
        assert cell.d is not None
        assert cell.k is not None
        embeddings = tokens * cell.d * DTYPE_BYTES[cell.dtype or "fp32"]
        if self.quantiser is None:
            return embeddings
        codes = quantised_bytes(cell, tokens, 4 * (tokens if self.quantiser.endswith("token") else documents))
        if not self.rescore:
            return codes
        chosen = min(1.0, cell.k * _DEPTH / documents)  # share of the corpus that is one query's candidates
        return codes + embeddings * (1 - (1 - chosen) ** (cell.Nq or 1))


def _quantised(d: TokenBatch, per: Literal["token", "document"], device: torch.device) -> QuantizedTokens:
    """INT8 codes of `d` where it lies, pinned if that is host memory; of dense documents made on `device` in blocks."""
    import torch

    from maxsim.quantized import QuantizedTokens, quantize_int8

    if d.device == device:
        return quantize_int8(d, per)
    if d.starts is not None or d.lengths is not None:
        return quantize_int8(d, per).pin_memory()
    L = d.pitch
    width = -(-d.d // 16) * 16
    codes = torch.zeros((d.count * L, width), dtype=torch.int8, pin_memory=True)
    scales = torch.empty(d.count * L if per == "token" else d.count, dtype=torch.float32, pin_memory=True)
    each = L if per == "token" else 1  # scales a document
    for first in range(0, d.count, _BLOCK_DOCUMENTS):
        last = min(first + _BLOCK_DOCUMENTS, d.count)
        block = quantize_int8(d.values[first * L : last * L].to(device).view(last - first, L, d.d), per)
        codes[first * L : last * L, : d.d].copy_(block.codes.values)
        scales[first * each : last * each].copy_(block.scales)
    return QuantizedTokens(replace(d, values=codes[:, : d.d]), scales, per)


BACKENDS = [
    Search("search", about="ours: exact top k over a corpus in host memory, `maxsim.search`"),
    Search(
        "search_int8",
        quantiser="int8_per_token",
        unit="int8",
        exact=False,
        about="ours: top k over INT8 documents",
    ),
    Search(
        "search_int8_rescored",
        quantiser="int8_per_token",
        rescore=True,
        unit="int8",
        about="search_int8, whose best k · 10 are scored again exactly",
    ),
]
