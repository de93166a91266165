"""Contrastive steps over several ranks as backends: the conventional one, and fused scoring tiled or sharded.

Room: `backends`. May import: declare, `maxsim`. A cell under variant `over=ranks` has Nq queries a rank and B documents
on all ranks together, so B / Nq ranks. `ddp_ranks` holds the processes, `ddp_steps` what each of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.ddp_steps import Place, Step, conventional, sharded, tiled
from maxsim_bench.backends.identity import installed_version, missing, source_hash
from maxsim_bench.backends.tolerances import TF32_OPERANDS
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.backends.training_ours import NEAR_TIES
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

_INSTALL = "pip install 'maxsim-bench[peers]'"


def _ours(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    import maxsim

    scores: torch.Tensor = maxsim.maxsim(Q, D)
    return scores


def _flash(Q: torch.Tensor, D: torch.Tensor) -> Any:
    import torch
    from flash_maxsim import flash_maxsim_batched, flash_maxsim_batched_train

    if torch.is_grad_enabled():
        return flash_maxsim_batched_train(Q, D, True)
    return flash_maxsim_batched(Q, D)


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor, Place], Step]] = {
    "ddp_conventional": conventional,
    "ddp_tiled": partial(tiled, score=_ours),
    "ddp_sharded": partial(sharded, score=_ours),
    "ddp_flash_tiled": partial(tiled, score=_flash),
    "ddp_flash_sharded": partial(sharded, score=_flash),
}


@dataclass(frozen=True)
class Ddp:
    """One of `STEPS`, made by all ranks at once; what it returns is rank 0's. Memory is rank 0's too."""

    name: str
    package: str | None = None  # of the peer that scores
    exact: bool = False
    install: str | None = None
    about: str = ""

    def version(self) -> str:
        if self.package is not None:
            return installed_version(self.package)
        if self.name == "ddp_conventional":
            return source_hash("reference.py")
        return source_hash("tokens.py", "reference.py", "operator.py", "fused", "training")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "training_step" or variant_of(cell, "over", "") != "ranks":
            return "measures training steps over ranks only (variant over=ranks)"
        if cell.layout not in (None, "dense") or cell.pairing not in (None, "all"):
            return "takes dense documents, and scores every query with every document"
        if self.package is not None:
            if device != "cuda":
                return "needs an NVIDIA GPU"
            if cell.dtype != "fp16":
                return f"casts {cell.dtype} to fp16 silently, so it does not compute this cell"
            reason = missing(self.package.replace("-", "_"), _INSTALL)
            if reason is not None:
                return reason
        return _no_room(cell, device)

    def tolerance(self, cell: Cell) -> float:
        return max(NEAR_TIES, TF32_OPERANDS)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim_bench.backends.ddp_ranks import ranks_for

        tau = float(variant_of(cell, "tau", "1"))
        if cell.ranks > 1:
            return ranks_for(cell.ranks, inputs.Q.device.type).prepare(self.name, tau, inputs.Q, inputs.D)
        Q, D = inputs.Q.clone(), inputs.D.clone()
        return lambda: STEPS[self.name](Q, D, Place(0, 1, tau))


def _no_room(cell: Cell, device: str) -> str | None:
    world = cell.ranks
    if not world or not cell.Nq or world * cell.Nq != cell.B:
        return f"{cell.B} documents cannot be dealt out to ranks of {cell.Nq} queries each"
    if device == "cuda":
        import torch

        if torch.cuda.device_count() < world:
            return f"needs {world} GPUs of one host, here are {torch.cuda.device_count()}"
    return None


def reference_rank_0(cell: Cell, inputs: Inputs) -> Callable[[], object]:
    """What rank 0 must return, by the reference over the queries and documents of all ranks in one process."""
    from dataclasses import replace

    import torch

    from maxsim_bench.backends.ddp_ranks import rank_queries
    from maxsim_bench.backends.training_reference import reference_step

    everyone = torch.cat([rank_queries(inputs.Q, rank) for rank in range(cell.ranks)])
    tau = variant_of(cell, "tau", "1")
    whole = cell.model_copy(update={"Nq": cell.B, "variant": f"loss=cross_entropy;tau={tau}"})
    run: Callable[[], Any] = reference_step(whole, replace(inputs, Q=everyone))

    def call() -> object:
        loss, dQ, dD = run()
        return loss, dQ[: cell.Nq], dD[: cell.Nq]

    return call


BACKENDS = [
    Ddp("ddp_conventional", about="in-batch negatives over ranks: documents gathered, autograd through eager"),
    Ddp(
        "ddp_tiled",
        about="in-batch negatives over ranks, ours: documents gathered, scored and differentiated a tile at a time",
    ),
    Ddp(
        "ddp_sharded", about="in-batch negatives over ranks, ours: documents stay where they are, queries are gathered"
    ),
    Ddp("ddp_flash_tiled", package="flash-maxsim", install=_INSTALL, about="ddp_tiled, scored by flash-maxsim"),
    Ddp("ddp_flash_sharded", package="flash-maxsim", install=_INSTALL, about="ddp_sharded, scored by flash-maxsim"),
]
