"""The gradients that every training step is compared with: blocked fp32 similarities, their argmax, sums in fp32.

Room: `backends`. May import: declare, `maxsim`. Not a backend of its own: the backend `reference` answers for this
operator too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.training_loss import loss_of, variant_of
from maxsim_bench.backends.training_ours import in_shape, leaves
from maxsim_bench.declare.cell import Cell


def reference_step(cell: Cell, inputs: Inputs) -> Callable[[], object]:
    """A callable that gives (loss, dQ, dD), or what the cell's stage gives: scores, CSR offsets, dQ, dD, or both."""
    import torch

    from maxsim.reference import blocked
    from maxsim.training.geometry import as_grid, geometry
    from maxsim.training.torch_path import gradients

    q, d = leaves(inputs)
    pairing = cell.pairing or "all"
    geo = geometry(q, d, pairing)

    def run() -> Any:
        scores, winner = blocked(q, d, pairing=pairing, argmax=True)
        stage = variant_of(cell, "stage", "step")
        if stage == "forward":
            return scores
        assert winner is not None
        winner = as_grid(winner, 3)[..., : geo.Lq]
        if stage == "csr_build":
            return _offsets(winner, geo).view(torch.float32)
        leaf = scores.requires_grad_()
        loss = loss_of(cell)(leaf)
        g = as_grid(torch.autograd.grad(loss, leaf)[0], 2)
        dq, dd = gradients(q, d, winner, g, geo, query=stage != "dd", document=stage != "dq")
        if stage == "step":
            return in_shape((loss.detach(), dq, dd), inputs)
        return {"dq": dq, "dd": dd, "backward": (dq, dd)}[stage]

    return run


def _offsets(winner: Any, geo: Any) -> Any:
    """int32 [documents, Ld + 1]: how many entries of a document have a winner before row j."""
    import torch

    per_document = winner.permute(1, 0, 2).flatten(1) if geo.shared else winner.flatten(0, 1)
    counts = torch.zeros((geo.documents, geo.Ld + 2), dtype=torch.int32, device=winner.device)
    ones = (per_document >= 0).to(torch.int32)
    counts.scatter_add_(1, per_document.clamp_min(-1) + 1, ones)  # winner j is counted at j + 1, none at 0
    counts[:, 0] = 0
    return counts.cumsum(1, dtype=torch.int32)[:, : geo.Ld + 1].contiguous()
