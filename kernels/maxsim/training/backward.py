"""Which gradient path runs: the caller's choice, or a table of what was measured.

Room: `training`. May import: `maxsim.tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from maxsim.tokens import TokenBatch
from maxsim.training import csr, launch, torch_path
from maxsim.training.csr import Gradients
from maxsim.training.geometry import Geometry, may_overlap

BackwardPath = Literal["csr", "csr_sort", "onehot", "atomic", "torch"]
BACKWARDS: tuple[BackwardPath, ...] = get_args(BackwardPath)

_PATHS: dict[str, Callable[..., Gradients]] = {
    "csr": csr.csr,
    "csr_sort": csr.csr_sort,
    "onehot": csr.onehot,
    "atomic": csr.atomic,
    "torch": torch_path.gradients,
}


def gradients(
    path: BackwardPath, q: TokenBatch, d: TokenBatch, winner: Tensor, g: Tensor, geo: Geometry, *,
    query: bool, document: bool,
    query_dtype: torch.dtype | None = None, document_dtype: torch.dtype | None = None,
) -> Gradients:  # fmt: skip
    """dQ and dD by one path; arguments and results as in `csr.csr`."""
    return _PATHS[path](
        q, d, winner, g, geo, query=query, document=document, query_dtype=query_dtype, document_dtype=document_dtype
    )


def choose_backward(q: TokenBatch, d: TokenBatch, geo: Geometry, wanted: BackwardPath | None = None) -> BackwardPath:
    """The path that runs for these batches.

    Args:
        wanted: a path by name, or None for the first rule of `paths.json` that fits.

    Raises:
        ValueError: for an unknown path, or one that cannot give these gradients.
    """
    if wanted is not None and wanted not in BACKWARDS:
        raise ValueError(f"backward: {wanted!r} is not one of {', '.join(BACKWARDS)}")
    if wanted not in (None, "torch") and q.dtype == torch.float64:
        raise ValueError(f"backward: {wanted!r} sums in fp32, Q is {q.dtype}; use 'torch' or None")
    shares_rows = may_overlap(d)
    if wanted in ("csr", "onehot") and shares_rows:
        raise ValueError(f"backward: {wanted!r} needs documents of their own rows, but D shares some; use 'csr_sort'")
    if wanted not in (None, "torch") and q.device.type != "cuda" and not launch.runs_interpreted():
        raise ValueError(f"backward: {wanted!r} needs an NVIDIA GPU, Q is on {q.device}; use 'torch' or None")
    if wanted is not None:
        return wanted
    if q.device.type != "cuda" or q.dtype == torch.float64:
        return "torch"
    return "csr_sort" if shares_rows else _measured(geo)


def _measured(geo: Geometry) -> Any:  # a path by name, checked when the table is read
    """The first rule of the table whose bounds hold; each names the shape and card that set it."""
    facts = {
        "entries_per_document": geo.queries_per_document << csr.log_tokens_of(geo),
        "Ld": geo.Ld,
        "documents": geo.documents,
    }
    for rule in _table():
        if all(low <= facts[name] <= high for name, (low, high) in rule["when"].items()):
            return rule["path"]
    raise AssertionError("the last rule of paths.json has no condition")


@cache
def _table() -> list[dict[str, Any]]:
    rules = json.loads(files("maxsim.training").joinpath("paths.json").read_text())["rules"]
    unknown = {rule["path"] for rule in rules} - set(BACKWARDS)
    if unknown or rules[-1]["when"]:
        raise ValueError(f"maxsim/training/paths.json: unknown paths {sorted(unknown)} or no rule without a condition")
    return list(rules)
