"""Lets PyLate and colpali-engine score and train through `maxsim`, with the scores they would have computed.

Room: beside `operator.py`. May import: operator. One call patches, another restores; nothing happens at import.

    import maxsim.integrations
    maxsim.integrations.patch_pylate()
    maxsim.integrations.patch_colpali_engine()
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from maxsim.operator import maxsim

_patched: dict[str, list[tuple[ModuleType, str, Any]]] = {}


def patch_pylate() -> int:
    """Route `pylate.scores.colbert_scores`, `colbert_kd_scores` and `colbert_scores_pairwise` through `maxsim`.

    PyLate multiplies similarities by its masks, so a masked token scores 0 rather than taking no part. To return the
    same scores, masked tokens are set to zero vectors here; use `maxsim.maxsim` with masks for scores that padding
    cannot win.

    Returns:
        How many names were replaced, captures inside PyLate's own modules included.

    Raises:
        ImportError: if pylate is not installed.
    """
    return _patch(
        "pylate",
        "pylate.scores",
        {
            "colbert_scores": _pylate_scores,
            "colbert_kd_scores": _pylate_scores,
            "colbert_scores_pairwise": _pylate_pairwise,
        },
    )


def patch_colpali_engine() -> int:
    """Route colpali-engine's `maxsim_inbatch` and `maxsim_kd` (scoring and losses) through `maxsim`.

    colpali-engine pads with zero vectors and masks nothing, so zero padding takes part in a maximum there; the scores
    here are the same, in the embeddings' dtype as those of its own PyTorch code.

    Returns:
        How many names were replaced.

    Raises:
        ImportError: if colpali_engine is not installed.
    """
    return _patch(
        "colpali_engine",
        "colpali_engine.utils.maxsim",
        {"maxsim_inbatch": _colpali_scores, "maxsim_kd": _colpali_scores},
    )


def unpatch(package: str) -> None:
    """Put back what `patch_...` replaced in `package` ("pylate" or "colpali_engine"); nothing if it was not patched."""
    for module, name, original in reversed(_patched.pop(package, [])):
        setattr(module, name, original)


def _patch(package: str, home: str, replacements: dict[str, Callable[..., Tensor]]) -> int:
    """Replace the functions at `home` and every capture of them as a module attribute in `package`."""
    unpatch(package)
    source = importlib.import_module(home)
    originals = {getattr(source, name): new for name, new in replacements.items()}
    done = _patched.setdefault(package, [])
    for module in _loaded_modules(package):
        for name, value in list(vars(module).items()):
            if callable(value) and _hashable(value) and value in originals:
                done.append((module, name, value))
                setattr(module, name, originals[value])
    return len(done)


def _loaded_modules(package: str) -> list[ModuleType]:
    """The package's modules, importing those that score or train so that their captures exist before patching."""
    root = importlib.import_module(package)
    names = [package]
    for info in pkgutil.walk_packages(root.__path__, f"{package}.", onerror=lambda name: None):
        if any(part in info.name for part in (".scores", ".losses", ".loss", ".rank", ".utils", ".evaluation")):
            names.append(info.name)
    modules = []
    for name in names:
        try:
            modules.append(importlib.import_module(name))
        except ImportError:  # an optional dependency of that module is absent, so nobody can call it either
            continue
    return modules


def _hashable(value: object) -> bool:
    return type(value).__hash__ is not None


def _pylate_scores(
    queries_embeddings: Any,
    documents_embeddings: Any,
    queries_mask: Any = None,
    documents_mask: Any = None,
    backend: str | None = None,
) -> Tensor:
    """[Nq, Lq, d] with [B, Ld, d] or [Nq, K, Ld, d] to [Nq, B] or [Nq, K], in the embeddings' dtype."""
    from pylate.utils.tensor import convert_to_tensor

    Q, D = convert_to_tensor(queries_embeddings), convert_to_tensor(documents_embeddings)
    if queries_mask is not None:
        Q = Q * convert_to_tensor(queries_mask).to(Q.dtype)[..., None]
    if documents_mask is not None:
        D = D * convert_to_tensor(documents_mask).to(D.dtype)[..., None]
    return maxsim(Q, D, pairing="candidates" if D.ndim == 4 else "all").to(Q.dtype)


def _pylate_pairwise(queries_embeddings: Any, documents_embeddings: Any, backend: str | None = None) -> Tensor:
    """Query n with document n: lists of [Lq, d] and [Ld, d], or stacked tensors, to [B]."""
    import torch
    from pylate.utils.tensor import convert_to_tensor

    queries = [convert_to_tensor(q) for q in queries_embeddings]
    documents = [convert_to_tensor(d) for d in documents_embeddings]
    scores = maxsim(
        torch.cat(queries), torch.cat(documents), q_cu_seqlens=_offsets(queries), d_cu_seqlens=_offsets(documents),
        pairing="pairs",
    )  # fmt: skip
    return scores.to(queries[0].dtype)


def _offsets(sequences: list[Tensor]) -> Tensor:
    """[N + 1] int64 offsets of sequences laid back to back, on their device."""
    import torch

    lengths = torch.tensor([0, *(len(s) for s in sequences)], dtype=torch.int64)
    return lengths.cumsum(0).to(sequences[0].device)


def _colpali_scores(query: Tensor, doc: Tensor) -> Tensor:
    """[Nq, Lq, d] with [B, Ld, d] or [Nq, K, Ld, d] to [Nq, B] or [Nq, K], in the embeddings' dtype."""
    return maxsim(query, doc, pairing="candidates" if doc.ndim == 4 else "all").to(query.dtype)
