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

_SOURCES = ("tokens.py", "reference.py", "fused", "training")

# Normwise, against gradients of another order of fp32 summation: where two similarities of a query token differ by less
# than rounding, the whole gradient of that token goes to another document token. The audit compares at equal argmax.
NEAR_TIES = 2e-2


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
    """One piece of a step by itself, named by the cell's variant: forward, csr_build, dq, dd or backward.

    What the piece needs from earlier ones is made while preparing.
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
        g = as_grid(torch.autograd.grad(loss_of(cell)(leaf), leaf)[0], geo)
        winner = as_grid(winner, geo)

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
    TrainFused("train_lean", backward="onehot"),
    TrainFused("train_recompute", save="recompute"),
    TrainFused("train_csr", backward="csr"),
    TrainFused("train_csr_sort", backward="csr_sort"),
    TrainFused("train_atomic", backward="atomic"),
    TrainStage(),
]
