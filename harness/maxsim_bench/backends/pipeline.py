"""A whole query through a two-stage search: pooled vectors find candidates, their tokens are gathered, MaxSim reranks.

Room: `backends`. May import: declare, `maxsim`. A cell under variant `corpus=N` has inputs of N masked documents, B of
which each query keeps; variant `stage` says what is timed: "stage1", "gather", "rerank" or "total". Whatever the stage,
the result is (values, document numbers [Nq, B]): pooled similarities for stage1, tokens [B, Ld, d] for gather, MaxSim
scores for rerank and total. The published pipeline encodes the query as well; here queries are embeddings already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing, source_hash
from maxsim_bench.backends.tolerances import FP32_ACCUMULATE, HALF_RESULT
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

STAGES = ("stage1", "gather", "rerank", "total")
_INSTALL = "pip install 'maxsim-bench[peers]'"
_BLOCK = 1 << 14  # documents pooled at a time


@dataclass(frozen=True)
class Pipeline:
    """One way to rerank. "fused" scores the candidates where they lie; the others copy them together first."""

    name: str
    rerank: Literal["chunked", "flash", "fused"]
    exact: bool = False
    install: str | None = None
    about: str = ""

    def version(self) -> str:
        if self.rerank == "flash":
            return installed_version("flash-maxsim")
        parts = ("baselines.py",) if self.rerank == "chunked" else ("tokens.py", "operator.py", "fused")
        return source_hash("reference.py", *parts)

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward" or variant_of(cell, "corpus", "") == "":
            return "measures two-stage searches only (variant corpus=N)"
        if cell.Nq != 1 or cell.layout != "masked":
            return "takes one query against padded documents"
        stage = variant_of(cell, "stage", "total")
        if stage not in STAGES:
            return f"has the stages {', '.join(STAGES)}, not {stage}"
        if stage == "gather" and self.rerank == "fused":
            return "gathers nothing: it scores candidates where they lie"
        if self.rerank == "flash":
            if device != "cuda":
                return "needs an NVIDIA GPU"
            if cell.dtype != "fp16":
                return f"casts {cell.dtype} to fp16 silently, so it does not compute this cell"
            return missing("flash_maxsim", _INSTALL)
        return None

    def tolerance(self, cell: Cell) -> float:
        return HALF_RESULT.get(cell.dtype or "", FP32_ACCUMULATE)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        assert cell.B
        stage = variant_of(cell, "stage", "total")
        first = _first_stage(inputs, cell.B)
        if stage == "stage1":
            return first
        gather, score = self._reranker(inputs, cell.chunk or 0)
        numbers = first()[1]
        if stage == "gather":
            return lambda: (gather(numbers)[0], numbers)
        if stage == "rerank":
            candidates = gather(numbers)
            return lambda: (score(*candidates), numbers)

        def total() -> tuple[torch.Tensor, torch.Tensor]:
            found = first()[1]
            return score(*gather(found)), found

        return total

    def _reranker(self, inputs: Inputs, chunk: int) -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
        """Two functions: from document numbers [1, B] to candidates, and from candidates to scores [1, B]."""
        import maxsim
        from maxsim import baselines

        Q, D, lengths = inputs.Q, inputs.D, inputs.d_lengths
        assert lengths is not None
        if self.rerank == "fused":
            corpus = maxsim.tokens(D, lengths=lengths)
            return lambda numbers: (corpus.select(numbers[0]),), lambda batch: maxsim.maxsim(Q, batch)

        def gather(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return D.index_select(0, numbers[0]), lengths.index_select(0, numbers[0])

        if self.rerank == "chunked":
            return gather, lambda d, n: baselines.chunked(Q, d, n, chunk=min(chunk, d.shape[0]))
        from flash_maxsim import flash_maxsim

        return gather, lambda d, n: flash_maxsim(Q[0], d, n)[None]


def _first_stage(inputs: Inputs, kept: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Exact search over pooled vectors: similarities and document numbers [1, kept], best first."""
    assert inputs.d_lengths is not None
    question, pool = pooled(inputs.Q, inputs.q_lengths), pooled(inputs.D, inputs.d_lengths)

    def first() -> tuple[torch.Tensor, torch.Tensor]:
        best = (question @ pool.T).topk(kept, dim=1)
        return best.values, best.indices

    return first


def pooled(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """[N, d] in the dtype of x: the normalised sum, in fp32, of the valid tokens of each sequence; 0 if it has none."""
    import torch

    out = torch.zeros((x.shape[0], x.shape[2]), dtype=x.dtype, device=x.device)
    steps = torch.arange(x.shape[1], device=x.device)
    for i in range(0, x.shape[0], _BLOCK):
        part = x[i : i + _BLOCK].float()
        if lengths is not None:
            valid = steps < lengths[i : i + _BLOCK, None]
            part = torch.where(valid[..., None], part, 0.0)
        out[i : i + _BLOCK] = torch.nn.functional.normalize(part.sum(1), dim=-1)
    return out


BACKENDS = [
    Pipeline(
        "pipeline_chunked", "chunked", about="two-stage search, candidates copied together and reranked by chunked"
    ),
    Pipeline(
        "pipeline_flash",
        "flash",
        install=_INSTALL,
        about="two-stage search, candidates copied together and reranked by flash-maxsim",
    ),
    Pipeline("pipeline_fused", "fused", about="two-stage search, candidates reranked by ours where they lie"),
]
