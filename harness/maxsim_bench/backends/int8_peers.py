"""The quantised paths of the peers, called as their documentation calls them; quantised with their own quantisers.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing
from maxsim_bench.backends.int8_ours import FP8_E4M3, INT8_PER_TOKEN, admitted, quantised_bytes
from maxsim_bench.declare.cell import Cell

_INSTALL = "pip install 'maxsim-bench[peers]'"


@dataclass(frozen=True)
class FlashMaxSimInt8:
    """flash-maxsim 0.3.0 over symmetric INT8 documents with fp16 scales a token; one query.

    `mixed` False: `flash_maxsim_int8x8` with the query quantised beforehand; True: `flash_maxsim_int8_symmetric`, which
    dequantises the documents on chip and multiplies in fp16.
    """

    name: str = "flash_maxsim_int8"
    mixed: bool = False
    exact: bool = False
    length_multiple: int = 64  # tunes eleven launches for every query length
    install: str | None = _INSTALL
    about: str = "flash-maxsim 0.3.0, query and documents as INT8 codes, a scale a token"

    @property
    def unit(self) -> str:
        """Matrix unit that the products run on."""
        return "fp16" if self.mixed else "int8"

    def version(self) -> str:
        return installed_version("flash-maxsim")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        if cell.Nq != 1 or cell.pairing not in (None, "all"):
            return "its INT8 scoring takes one query"
        if cell.dtype != "fp16":
            return f"casts {cell.dtype} to fp16 silently, so it does not compute this cell"
        if cell.layout == "packed":
            return "its INT8 scoring takes padded documents"
        if cell.quantiser not in (None, "int8_per_token"):
            return f"quantises a scale a token, the cell asks for {cell.quantiser}"
        return missing("flash_maxsim", _INSTALL)

    def tolerance(self, cell: Cell) -> float:
        return admitted(INT8_PER_TOKEN, cell)

    def document_bytes(self, cell: Cell, tokens: int, documents: int) -> int:
        """Bytes of the quantised documents, with 2 for the fp16 scale of every token."""
        return quantised_bytes(cell, tokens, 2 * tokens)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import flash_maxsim as peer

        codes, scales = peer.quantize_int8_symmetric(inputs.D)
        q, scales, lengths = inputs.Q[0], scales.squeeze(-1).contiguous(), inputs.d_lengths
        if self.mixed:
            return lambda: peer.flash_maxsim_int8_symmetric(q, codes, scales, lengths)[None]
        q_codes, q_scales = peer.quantize_query_int8(q)
        return lambda: peer.flash_maxsim_int8x8(q, codes, scales, q_codes, q_scales, lengths)[None]


@dataclass(frozen=True)
class LateInteractionKernelsFp8:
    """late-interaction-kernels 0.4.5, `maxsim_inference_fp8` with scales a token. It has no INT8 path."""

    name: str = "lik_fp8"
    exact: bool = False
    length_multiple: int = 64  # tunes a dozen launches for every query length
    empty_documents: bool = False  # 0.4.5 scores them 0
    install: str | None = _INSTALL
    unit: str = "fp8"

    def version(self) -> str:
        return installed_version("late-interaction-kernels")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "measured on the forward operator only"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        if cell.pairing not in (None, "all"):
            return "scores every query with every document"
        if cell.layout == "packed":
            return "its FP8 scoring takes padded documents"
        if cell.quantiser not in (None, "fp8_per_token"):
            return f"quantises fp8_per_token, the cell asks for {cell.quantiser}"
        if (cell.B or 0) * (cell.Ld or 0) * (cell.d or 0) > 2**31:
            return "0.4.5 raises an illegal memory access above 2^31 document elements"
        return missing("late_interaction_kernels", _INSTALL)

    def tolerance(self, cell: Cell) -> float:
        return admitted(FP8_E4M3, cell)

    def document_bytes(self, cell: Cell, tokens: int, documents: int) -> int:
        """Bytes of the quantised documents, with 4 for the fp32 scale of every token."""
        return quantised_bytes(cell, tokens, 4 * tokens)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import torch
        from late_interaction_kernels import fp8 as peer

        D, mask = inputs.D, None
        if inputs.d_lengths is not None:
            mask = torch.arange(D.shape[1], device=D.device) < inputs.d_lengths[:, None]
        q, q_scale = peer.quantize_fp8_per_token(inputs.Q)
        d, d_scale = peer.quantize_fp8_per_token(D)
        return lambda: peer.maxsim_inference_fp8(q, d, scale_Q=q_scale, scale_D=d_scale, d_mask=mask)


BACKENDS = [
    FlashMaxSimInt8(),
    FlashMaxSimInt8(
        name="flash_maxsim_int8_mixed",
        mixed=True,
        about="flash-maxsim 0.3.0, fp16 query and INT8 documents, dequantised on chip",
    ),
    LateInteractionKernelsFp8(),
]
