"""One contrastive step whose negatives lie on several ranks, in the three ways that the paper compares.

Room: `backends`. May import: declare, `maxsim`. Every function runs on every rank at once: rank r holds its queries
Q [b, Lq, d] and their documents D [b, Ld, d], query n belongs to document n, and every other document of every rank is
a negative. All return (loss, dQ, dD): the mean cross-entropy over the queries of all ranks, and the gradients of this
rank's own Q and D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TILE = 2048  # documents, as published
Step = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]
Score = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its number, how many there are, and the temperature of the loss."""

    rank: int
    world: int
    tau: float

    def targets(self, b: int, device: torch.device) -> torch.Tensor:
        """Numbers, among the documents of all ranks, of those that this rank's queries belong to."""
        import torch

        return torch.arange(self.rank * b, (self.rank + 1) * b, device=device)


def conventional(Q: torch.Tensor, D: torch.Tensor, place: Place) -> Step:
    """Gather every document with its gradient, materialise fp32 similarities, differentiate by autograd."""
    import torch

    from maxsim.reference import matmul_precision

    q, d = Q.detach().requires_grad_(), D.detach().requires_grad_()
    with matmul_precision("ieee"):  # TF32 was not enabled in the published runs
        documents = _gathered(d, place).float()
        scores = torch.einsum("qid,bjd->qbij", q.float(), documents).amax(-1).sum(-1)
        target = place.targets(Q.shape[0], Q.device)
        loss = torch.nn.functional.cross_entropy(scores / place.tau, target) / place.world
        dQ, dD = torch.autograd.grad(loss, (q, d))
    return _total(loss.detach(), place), dQ, dD


def tiled(Q: torch.Tensor, D: torch.Tensor, place: Place, score: Score) -> Step:
    """Gather documents without gradient; score them a tile at a time, then again, a tile's gradient at a time.

    Beside the documents and their gradients only a matrix of scores [b, B] is alive.
    """
    import torch

    documents = gather(D, place)
    tiles = [slice(i, i + TILE) for i in range(0, documents.shape[0], TILE)]
    with torch.no_grad():
        scores = torch.cat([score(Q, documents[tile]).float() for tile in tiles], dim=1)
    leaf = (scores / place.tau).requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, place.targets(Q.shape[0], Q.device)) / place.world
    g = torch.autograd.grad(loss, leaf)[0] / place.tau
    dQ = torch.zeros(Q.shape, dtype=torch.float32, device=Q.device)
    d_documents = torch.empty_like(documents)
    for tile in tiles:
        q, d = Q.detach().requires_grad_(), documents[tile].detach().requires_grad_()
        dq, d_documents[tile] = torch.autograd.grad(score(q, d), (q, d), g[:, tile])
        dQ += dq
    return _total(loss.detach(), place), dQ.to(Q.dtype), scatter_sum(d_documents, place)


def sharded(Q: torch.Tensor, D: torch.Tensor, place: Place, score: Score) -> Step:
    """Documents stay where they are: gather the queries, which are shorter, and add up the softmax over the ranks."""
    import torch

    b = Q.shape[0]
    q, d = gather(Q, place).requires_grad_(), D.detach().requires_grad_()
    scores = score(q, d)
    logits = scores.detach().float() / place.tau  # [B, b]: all queries, this rank's documents
    largest = _reduced(logits.amax(1), place, "max")
    total = _reduced((logits - largest[:, None]).exp_().sum(1), place, "sum")
    own = torch.arange(b, device=Q.device)
    rows = place.targets(b, Q.device)  # the queries whose document lies here
    positive = logits[rows, own]
    loss = (largest[rows] + total[rows].log() - positive).sum() / (b * place.world)
    g = (logits - largest[:, None]).exp_() / total[:, None]
    g[rows, own] -= 1.0
    g /= place.tau * b * place.world
    dQ, dD = torch.autograd.grad(scores, (q, d), g.to(scores.dtype))
    return _total(loss, place), scatter_sum(dQ, place), dD


def gather(x: torch.Tensor, place: Place) -> torch.Tensor:
    """[world · b, ...]: the tensors of all ranks, in their order."""
    if place.world == 1:
        return x.detach()
    import torch
    import torch.distributed as dist

    out = torch.empty((place.world * x.shape[0], *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather(list(out.chunk(place.world)), x.detach().contiguous())
    return out


def scatter_sum(x: torch.Tensor, place: Place) -> torch.Tensor:
    """[b, ...]: this rank's part of the sum of x [world · b, ...] over all ranks."""
    if place.world == 1:
        return x
    import torch
    import torch.distributed as dist

    part = x.shape[0] // place.world
    if dist.get_backend() == "nccl":
        out = torch.empty((part, *x.shape[1:]), dtype=x.dtype, device=x.device)
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out
    dist.all_reduce(x)  # gloo has no reduce-scatter
    return x[place.rank * part : (place.rank + 1) * part].clone()


def _gathered(x: torch.Tensor, place: Place) -> torch.Tensor:
    """`gather` whose gradient goes back to the ranks that the documents came from."""
    import torch

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return gather(x, place)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return scatter_sum(g, place)

    gathered: torch.Tensor = x if place.world == 1 else Gather.apply(x)
    return gathered


def _reduced(x: torch.Tensor, place: Place, how: str) -> torch.Tensor:
    if place.world > 1:
        import torch.distributed as dist

        dist.all_reduce(x, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM)
    return x


def _total(loss: torch.Tensor, place: Place) -> torch.Tensor:
    """The sum of every rank's share of the loss."""
    return _reduced(loss, place, "sum")
