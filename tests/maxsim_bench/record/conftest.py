"""Rows to store: a builder, and hypothesis strategies over what a row can hold."""

from __future__ import annotations

from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row


def make_row(B: int = 1, backend: str = "fused", **changes: Any) -> Row:
    """An `ok` row of a small cell, or whatever `changes` make of it."""
    cell = Cell(experiment="tiny", gpu="h200", op="forward", Nq=1, B=B, Lq=2, Ld=3, d=4, dtype="fp16")
    fields: dict[str, Any] = {"status": "ok", "latency_ms": 0.1 + B, "samples": 10, "measured_at": f"2026-01-01T{B:04}"}
    if changes.get("status", "ok") != "ok":
        fields = {"error": "because"}
    return Row(**{"cell": cell, "backend": backend, "backend_version": "v1", "gpu": "NVIDIA H200", **fields, **changes})


@pytest.fixture(scope="session")
def row() -> Any:
    """The builder `make_row`."""
    return make_row
