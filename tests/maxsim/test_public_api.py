"""Names and keywords that others call are frozen here: changing one is a decision, not an accident."""

from __future__ import annotations

import inspect

import maxsim
from maxsim import integrations

SIGNATURES = {
    "maxsim": "Q D q_mask d_mask q_lengths d_lengths q_cu_seqlens d_cu_seqlens pairing precision path",
    "tokens": "values mask lengths cu_seqlens role",
    "quantize_int8": "X per",
}


def test_the_public_names_are_these() -> None:
    """Everything a user may import from the package, and nothing else."""
    assert sorted(maxsim.__all__) == [
        "LaunchPlan", "QuantizedTokens", "TokenBatch", "explain", "maxsim", "maxsim_argmax", "quantize_fp8",
        "quantize_int8", "search", "tokens",
    ]  # fmt: skip
    assert all(hasattr(maxsim, name) for name in maxsim.__all__)


def test_keywords_keep_their_names_and_order() -> None:
    """Callers name these; a new one may be added at the end."""
    for name, expected in SIGNATURES.items():
        found = list(inspect.signature(getattr(maxsim, name)).parameters)
        assert found[: len(expected.split())] == expected.split(), name


def test_the_adapters_are_called_without_arguments() -> None:
    """One call each, as the README says."""
    for patch in (integrations.patch_pylate, integrations.patch_colpali_engine):
        assert not inspect.signature(patch).parameters
