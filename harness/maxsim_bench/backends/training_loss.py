"""What a training step is: scores, a loss over them, and gradients to both sides. Shared by every backend of the step.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

LOSSES = ("cross_entropy", "sum")


def variant_of(cell: Cell, name: str, default: str) -> str:
    """The value of `name` in the cell's variant."""
    pairs = dict(pair.split("=", 1) for pair in (cell.variant or "").split(";") if pair)
    return pairs.get(name, default)


def loss_of(cell: Cell) -> Callable[[torch.Tensor], torch.Tensor]:
    """From scores to the scalar that is differentiated, fp32.

    "cross_entropy" (default): query n's document is number n of the batch ("all"), or the first of its candidates; for
    "pairs", where nothing competes, minus the mean. "sum": all scores added, what the paper's tab:train differentiates.
    Scores are divided by the variant `tau` before the cross-entropy, where the cell names one.
    The labels are made on the first call and kept: in a training loop they come with the batch.
    """
    import torch

    name = variant_of(cell, "loss", "cross_entropy")
    if name not in LOSSES:
        raise ValueError(f"variant loss={name}: not one of {', '.join(LOSSES)}")
    if name == "sum":
        return lambda scores: scores.float().sum()
    if cell.pairing == "pairs":
        return lambda scores: -scores.float().mean()
    kept: list[torch.Tensor] = []
    tau = float(variant_of(cell, "tau", "1"))

    def cross_entropy(scores: torch.Tensor) -> torch.Tensor:
        if not kept:
            rows = torch.arange(scores.shape[0], device=scores.device)
            kept.append(rows % scores.shape[1] if cell.pairing in (None, "all") else torch.zeros_like(rows))
        logits = scores.float() if tau == 1.0 else scores.float() / tau
        return torch.nn.functional.cross_entropy(logits, kept[0])

    return cross_entropy


def refusal(cell: Cell) -> str | None:
    """Why no backend of the training step runs this cell, None if they may."""
    if cell.op != "training_step":
        return "measures training steps only"
    if cell.quantiser is not None:
        return "trains on operands as given"
    if variant_of(cell, "encoder", ""):
        return "starts from embeddings; steps with an encoder are the backends full_step_*"
    if variant_of(cell, "over", "") == "ranks":
        return "runs in one process; steps over several ranks are the backends ddp_*"
    return None


def step(
    cell: Cell, score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], Q: torch.Tensor, D: torch.Tensor
) -> Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Forward, loss and backward as one callable.

    Args:
        score: differentiable, from leaves of the shapes of Q and D to scores.

    Returns:
        a callable that gives (loss, dQ, dD), the gradients in dtype and shape of the inputs.
    """
    import torch

    Q, D = Q.detach().requires_grad_(), D.detach().requires_grad_()
    loss_from = loss_of(cell)

    def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        loss = loss_from(score(Q, D))
        dQ, dD = torch.autograd.grad(loss, (Q, D))
        return loss.detach(), dQ, dD

    return run
