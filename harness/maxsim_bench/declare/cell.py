"""A cell: one point of a declared grid. Frozen, hashable, and the only source of a row's identity.

Room: `declare`. Imports nothing else of ours.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Op = Literal["forward", "training_step", "search", "fidelity"]
Dtype = Literal["fp16", "bf16", "fp32"]
Layout = Literal["dense", "masked", "packed"]
Pairing = Literal["all", "pairs", "candidates"]
Precision = Literal["ieee", "tf32"]
TimingPolicy = Literal["cold_l2", "clean_l2", "warm_l2", "graph", "host"]


class Cell(BaseModel):
    """What is computed, on what, and how it is timed. An axis that an experiment does not use is None, never zero.

    Attributes:
        experiment: name of the TOML that declared it.
        gpu: key of the card it is for, lower case ("h200", "a100-80gb", "cpu"); not necessarily the card at hand.
        op: what runs.
        Nq, B, Lq, Ld, d: queries, documents, tokens a query / document (the maximum, where lengths vary), dimensions.
            With pairing "candidates" B is the number of documents of each query.
        dtype: of the operands as given.
        layout: dense (no mask), masked (padded, with lengths) or packed (rows back to back, with offsets).
        pairing: every query with every document, query n with document n, or each query with its own B documents.
        length_distribution: name of the distribution that draws document lengths, e.g. "scifact", "uniform:20:512".
        inputs: "random" unit vectors, or the name of a data set whose real embeddings are used.
        dataset, split, encoder: what a fidelity cell ranks.
        seed: of the inputs.
        precision: for fp32 operands: IEEE or TF32.
        chunk: documents a block, for chunked backends; 0 means "picks itself from free memory".
        k: results kept by a search, or rerank depth of a fidelity cell.
        quantiser: "int8_per_token", "int8_per_document", "fp8_per_token", ...
        memory_cap: bytes of device memory the process may use, None for all of it.
        timing_policy: see docs/measurement.md.
        variant: anything else that changes the work, as "key=value;key=value" sorted by key (loss, backward path ...).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    gpu: str
    op: Op
    Nq: int | None = Field(default=None, ge=1)
    B: int | None = Field(default=None, ge=1)
    Lq: int | None = Field(default=None, ge=1)
    Ld: int | None = Field(default=None, ge=1)
    d: int | None = Field(default=None, ge=1)
    dtype: Dtype | None = None
    layout: Layout | None = None
    pairing: Pairing | None = None
    length_distribution: str | None = None
    inputs: str | None = None
    dataset: str | None = None
    split: str | None = None
    encoder: str | None = None
    seed: int = Field(default=0, ge=0)
    precision: Precision | None = None
    chunk: int | None = Field(default=None, ge=0)
    k: int | None = Field(default=None, ge=1)
    quantiser: str | None = None
    memory_cap: int | None = Field(default=None, ge=1)
    timing_policy: TimingPolicy | None = None
    variant: str | None = None

    @property
    def ranks(self) -> int:
        """Processes, one a GPU of one host, that compute it together: B / Nq under variant over=ranks, else 1."""
        if "over=ranks" not in (self.variant or "").split(";"):
            return 1
        return (self.B or 0) // (self.Nq or 1)

    def hash(self) -> str:
        """Sixteen hex digits of SHA-256 over every axis that is not None, so a new unused axis moves no identity."""
        return _hash(self)


@lru_cache(maxsize=1 << 14)
def _hash(cell: Cell) -> str:
    text = json.dumps(cell.model_dump(exclude_none=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def row_key(cell_hash: str, backend: str, backend_version: str) -> str:
    """The one identity of a row, for resume, merge and comparison: cell hash, backend, version or source hash."""
    return f"{cell_hash}/{backend}/{backend_version}"
