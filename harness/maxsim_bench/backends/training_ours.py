"""Our training step: the default path, each backward path by name, and the pieces of a step one by one.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.fused import token_batches
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.tolerances import TF32_OPERANDS
from maxsim_bench.backends.training_loss import loss_of, refusal, step, variant_of
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import DTYPE_BYTES

_SOURCES = ("tokens.py", "reference.py", "fused", "training")

# Normwise, against gradients of another order of fp32 summation: where two similarities of a query token differ by less
# than rounding, the whole gradient of that token goes to another document token. The audit compares at equal argmax.
NEAR_TIES = 2e-2

_NUMBER, _SCORE = 4, 4  # bytes of a row's offset; of a score and of its upstream gradient


@dataclass(frozen=True)
class TrainFused:
    """`maxsim_autograd`; `backward` and `save` pin what the measured table would choose.

    `lean` is one-hot products from a saved argmax: nothing but 2 bytes a query token and document is kept or made.
    """

    name: str = "train_fused"
    backward: str | None = None
    save: str = "argmax"
    exact: bool = True
    install: str | None = None
    about: str = "our training step: fused forward, the backward path that the measured table chooses"

    def version(self) -> str:
        return source_hash(*_SOURCES)

    def supports(self, cell: Cell, device: str) -> str | None:
        if device != "cuda" and self.backward is not None:
            return "its kernels need an NVIDIA GPU"
        if variant_of(cell, "stage", "step") != "step":
            return "measures whole steps; their pieces are the backend train_stage"
        return refusal(cell)

    def tolerance(self, cell: Cell) -> float:
        return max(NEAR_TIES, TF32_OPERANDS)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim.training import maxsim_autograd

        q, d = leaves(inputs)
        options: dict[str, Any] = {
            "pairing": cell.pairing or "all", "precision": cell.precision or "ieee",
            "backward": self.backward, "save": self.save,
        }  # fmt: skip
        run = step(cell, lambda Q, D: maxsim_autograd(q, d, Q, D, **options), q.values, d.values)
        return lambda: in_shape(run(), inputs)


@dataclass(frozen=True)
class TrainStage:
    """One piece of our training step by itself, named by the cell's variant: forward, csr_build, dq, dd or backward.

    What the piece needs from earlier ones is made while preparing. A row's operations and bytes are those of the piece
    alone, every operand once; E entries are (query token, document) pairs, and n of them meet one document:

    - forward: all products; reads Q and D, writes scores and the argmax.
    - csr_build: no products; reads the argmax, writes E entries and where each document row's begin.
    - dq: 2 d operations an entry; reads the argmax, the scores' gradients and the document rows that won, writes dQ.
    - dd: 2 d operations an entry; reads entries, offsets, the scores' gradients and Q, writes dD.
    - backward: both gradients; the CSR between its launches is not compulsory and not charged.

    Rows that won are not all rows: n winners drawn evenly from Ld tokens hit Ld (1 - (1 - 1/Ld)^n) of them, which is
    what random unit vectors do. A gather is charged once a row, for a row that wins again comes from a cache.
    """

    name: str = "train_stage"
    exact: bool = True
    install: str | None = None

    def version(self) -> str:
        return source_hash(*_SOURCES)

    def supports(self, cell: Cell, device: str) -> str | None:
        if device != "cuda":
            return "its kernels need an NVIDIA GPU"
        if variant_of(cell, "stage", "step") == "step":
            return "measures the pieces of a step; whole steps are other backends"
        return refusal(cell)

    def tolerance(self, cell: Cell) -> float:
        return NEAR_TIES

    def piece_work(self, cell: Cell, tokens: int, documents: int) -> tuple[float, float]:
        """Operations and compulsory bytes of the piece; see the class.

        Args:
            tokens, documents: of all documents there are, real tokens only.
        """
        assert cell.Nq is not None
        assert cell.Lq is not None
        assert cell.Ld is not None
        assert cell.d is not None
        row = cell.d * DTYPE_BYTES[cell.dtype or "fp32"]
        meets = cell.Nq if cell.pairing in (None, "all") else 1  # queries that a document meets
        pairs, n = documents * meets, meets * cell.Lq
        entries = documents * n
        argmax = entries * (2 if cell.Ld <= 32767 else 4)
        numbered = meets << max(0, (cell.Lq - 1).bit_length())  # numbers that an entry may have, as the CSR stores it
        csr = entries * (2 if numbered <= 65536 else 4) + _NUMBER * (tokens + documents)
        mean = tokens / max(1, documents)
        won = documents * mean * (1.0 - (1.0 - 1.0 / mean) ** n) if mean > 1 else float(tokens)
        queries, scores = cell.Nq * cell.Lq * row, _SCORE * pairs
        gathered = 2.0 * cell.d * entries  # operations of one side's gradient
        stage = variant_of(cell, "stage", "step")
        pieces: dict[str, tuple[float, float]] = {
            "forward": (2.0 * n * cell.d * tokens, queries + tokens * row + scores + argmax),
            "csr_build": (0.0, argmax + csr),
            "dq": (gathered, argmax + scores + won * row + queries),
            "dd": (gathered, csr + scores + queries + tokens * row),
            "backward": (2 * gathered, argmax + scores + queries + won * row + queries + tokens * row),
        }
        flops, moved = pieces[stage]
        return flops, float(moved)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import torch

        from maxsim import fused
        from maxsim.training import csr
        from maxsim.training.geometry import as_grid, geometry

        q, d = leaves(inputs)
        pairing = cell.pairing or "all"
        geo = geometry(q, d, pairing)
        stage = variant_of(cell, "stage", "step")

        def forward() -> tuple[torch.Tensor, torch.Tensor]:
            found = fused.forward(q, d, pairing=pairing, argmax=True)
            assert isinstance(found, tuple)
            return found

        if stage == "forward":
            return forward
        scores, winner = forward()
        leaf = scores.requires_grad_()
        g = as_grid(torch.autograd.grad(loss_of(cell)(leaf), leaf)[0], 2)
        winner = as_grid(winner, 3)

        def offsets(rows: csr.Rows) -> torch.Tensor:  # bits: a cast would be timed as well
            return rows.begin[:, :: rows.parts].view(torch.float32)

        if stage == "csr_build":
            return lambda: offsets(csr.build(d, winner, geo))
        if stage == "dd":
            rows = csr.build(d, winner, geo)
            return lambda: csr.document_gradient(q, d, winner, rows, g, geo)
        if stage == "dq":
            return lambda: csr.csr(q, d, winner, g, geo, query=True, document=False)[0]
        if stage == "backward":
            return lambda: csr.csr(q, d, winner, g, geo, query=True, document=True)
        raise ValueError(f"variant stage={stage}: not one of forward, csr_build, dq, dd, backward")


def leaves(inputs: Inputs) -> tuple[Any, Any]:
    """Token batches over rows of their own autograd leaves: checked once, trained on for many steps."""
    batches: Any = token_batches(inputs)
    q, d = (replace(batch, values=batch.values.detach()) for batch in batches)
    return q, d


def in_shape(result: tuple[Any, Any, Any], inputs: Inputs) -> tuple[Any, Any, Any]:
    """(loss, dQ, dD) with the gradients viewed in the shapes of the inputs."""
    loss, dQ, dD = result
    return loss, dQ.view(inputs.Q.shape), dD.view(inputs.D.shape)


BACKENDS = [
    TrainFused(),
    TrainFused("train_lean", backward="onehot", about="our training step in the least memory, by one-hot products"),
    TrainFused("train_recompute", save="recompute", about="our training step, the argmax recomputed instead of saved"),
    TrainFused("train_csr", backward="csr", about="our training step by an inverse-grid CSR"),
    TrainFused("train_csr_sort", backward="csr_sort", about="our training step by a CSR from the library's sort"),
    TrainFused("train_atomic", backward="atomic", about="our training step by atomic additions"),
    TrainStage(),
]
