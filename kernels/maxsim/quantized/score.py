"""Quantised scoring: checks the operands and picks the path.

Room: `quantized`. May import: fused, tokens.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens
from maxsim.quantized.integer import score_integer
from maxsim.tokens import TokenBatch, require_embeddings, require_numbers

Path = Literal["reference", "portable", "hopper"]


def score(q: QuantizedTokens | TokenBatch, d: QuantizedTokens, *, path: Path | None = None) -> Tensor:
    """MaxSim of every query with every document over quantised documents.

    Args:
        q: queries quantised in the format of `d` (the fast mode), or a `TokenBatch` of embeddings, whose tokens meet
            INT8 documents dequantised on chip, tile by tile.
        d: quantised documents, dense, masked or packed; one scale a token or a document.
        path: "hopper" (sm_90), "portable" (sm_80 and later, FP8 sm_89; a CPU under TRITON_INTERPRET=1) or "reference"
            (any device); None picks the first that can run.

    Returns:
        [Nq, B] fp32; −inf for a document without tokens, 0 for a query without tokens. For INT8 queries all paths
        return the same bits (`integer.py` has the order of operations).

    Raises:
        ValueError: for operands that do not belong together, or a path that cannot run them.
    """
    _check(q, d)
    chosen, why_not = _choose(q, d)
    if path is None:
        path = chosen
    if path == "reference":
        return score_integer(q, d)
    if path == "portable":
        from maxsim.quantized.portable import INTERPRETED, score_portable

        if chosen == "reference" and not (INTERPRETED and d.device.type == "cpu"):
            raise ValueError(f"path = 'portable' cannot run this: {why_not}. Leave path out")

        return score_portable(q, d)
    if path != "hopper":
        raise ValueError(f"path = {path!r}: choose 'hopper', 'portable', 'reference' or None")
    if chosen != "hopper" or not isinstance(q, QuantizedTokens):
        raise ValueError(f"path = 'hopper' cannot run this: {why_not}. Leave path out")
    from maxsim.quantized.hopper import score_hopper

    return score_hopper(q, d)


def _check(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> None:
    if not isinstance(d, QuantizedTokens):
        raise ValueError(f"documents are {type(d).__name__}: quantise them first (maxsim.quantize_int8)")
    if not isinstance(q, QuantizedTokens | TokenBatch):
        raise ValueError(
            f"queries are {type(q).__name__}: quantise them (maxsim.quantize_int8) or wrap them (maxsim.tokens)"
        )
    if q.d != d.d:
        raise ValueError(f"queries have d = {q.d}, documents d = {d.d}")
    if q.device != d.device:
        raise ValueError(f"queries are on {q.device}, documents on {d.device}: move one of them")
    require_numbers("queries", q.device)
    if isinstance(q, QuantizedTokens):
        if q.codes.dtype != d.codes.dtype:
            raise ValueError(f"query codes are {q.codes.dtype}, document codes {d.codes.dtype}: quantise both alike")
        return
    require_embeddings("queries", q.dtype)  # a batch may hold codes, whose scales would be left out
    if d.codes.dtype != torch.int8:
        raise ValueError(f"document codes are {d.codes.dtype}: a query in {q.dtype} meets INT8 documents only")


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _choose(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> tuple[Path, str]:
    """The path to take, and why it is not a faster one."""
    if d.device.type != "cuda":
        return "reference", f"the operands are on {d.device}"
    if not isinstance(q, QuantizedTokens):
        if q.dtype == torch.float64:
            return "reference", "a float64 query goes to the reference"
        return "portable", "the queries are not quantised"
    major, minor = _capability(d.device)
    if d.codes.dtype != torch.int8 and (major, minor) < (8, 9):
        return "reference", f"sm_{major}{minor} does not convert FP8; INT8 documents run on it"
    if (major, minor) != (9, 0):
        return "portable", f"the device is sm_{major}{minor}, the kernel is for sm_90"
    from maxsim.quantized.hopper import unsupported

    reason = unsupported(q, d)
    return ("hopper", "") if reason is None else ("portable", reason)
