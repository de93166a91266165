"""What people train with today: autograd through the materialised similarities, in one piece or checkpointed in blocks.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import source_hash
from maxsim_bench.backends.inputs import padded_documents
from maxsim_bench.backends.training_loss import refusal, step, variant_of
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

# Normwise. Sixteen-bit similarities tie often (a tie splits its gradient between tokens) and pick other winners; so do
# TF32 ones. If one token in a hundred picks another winner the norm moves by a tenth: on an H200 fp16 steps were 0.02
# to 0.05 off at Ld = 300 and 1024. bf16 ties eight times as often. This tells a working step from a broken one, no
# more.
SIXTEEN_BIT_TIES = 0.5


@dataclass(frozen=True)
class TrainEager:
    """`maxsim.baselines.eager` under autograd, or the same with `max` for `amax`.

    Attributes:
        name: of the backend.
        winners: "all" tokens of a tie share its gradient (`amax`), or "one" has it (`max(dim).values`), as in the
            paper's scripts: the latter's backward pass scatters to one index, where `amax` makes masks and quotients as
            large as the similarities.
        arithmetic: "as_given", or "tf32": operands cast to fp32 inside the step, multiplied in TF32, as the paper does.
        checkpoint: forward again in the backward pass, `cell.chunk` documents at a time (16 where the cell says none).
    """

    name: str
    arithmetic: Literal["as_given", "tf32"] = "as_given"
    checkpoint: bool = False
    winners: Literal["all", "one"] = "all"
    exact: bool = False
    install: str | None = None
    about: str = ""

    def version(self) -> str:
        if self.winners == "one":
            return hashlib.sha256(inspect.getsource(one_winner).encode()).hexdigest()[:12]
        return source_hash("baselines.py")

    def supports(self, cell: Cell, device: str) -> str | None:
        if variant_of(cell, "stage", "step") != "step":
            return "has no separate pieces to time"
        if cell.pairing not in (None, "all"):
            return "scores every query with every document"
        if self.arithmetic == "tf32" and device != "cuda":
            return "TF32 is a mode of NVIDIA matrix units"
        if self.winners == "one" and cell.layout not in (None, "dense"):
            return "is written for documents of one length, as the published step is"
        return refusal(cell)

    def tolerance(self, cell: Cell) -> float:
        return SIXTEEN_BIT_TIES

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from maxsim.reference import matmul_precision

        assert cell.Ld is not None
        D, lengths = padded_documents(inputs, cell.Ld)
        rows = None if inputs.cu_seqlens is None else _rows(lengths, cell.Ld)
        tf32 = self.arithmetic == "tf32" or cell.precision == "tf32"
        run = step(cell, lambda q, d: self._score(cell, q, d, lengths, tf32), inputs.Q, D)

        def call() -> object:
            with matmul_precision("tf32" if tf32 else "ieee"):  # the backward pass multiplies too
                loss, dQ, dD = run()
            return (loss, dQ, dD) if rows is None else (loss, dQ, dD[rows])

        return call

    def _score(
        self, cell: Cell, Q: torch.Tensor, D: torch.Tensor, lengths: torch.Tensor | None, tf32: bool
    ) -> torch.Tensor:
        import torch

        if self.arithmetic == "tf32":
            Q, D = Q.float(), D.float()
        if not self.checkpoint:
            return self._block(Q, D, lengths, tf32)
        blocks, size = [], cell.chunk or 16
        for first in range(0, D.shape[0], size):
            part = None if lengths is None else lengths[first : first + size]
            blocks.append(
                torch.utils.checkpoint.checkpoint(
                    lambda q, d, part=part: self._block(q, d, part, tf32),
                    Q, D[first : first + size], use_reentrant=False,
                )
            )  # fmt: skip
        return torch.cat(blocks, dim=1)

    def _block(self, Q: torch.Tensor, D: torch.Tensor, lengths: torch.Tensor | None, tf32: bool) -> torch.Tensor:
        from maxsim import baselines

        return one_winner(Q, D) if self.winners == "one" else baselines.eager(Q, D, lengths, tf32=tf32)


def one_winner(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    """[Nq, Lq, d], [B, Ld, d] → [Nq, B] in the dtype of Q: the expression of the published training steps.

    The caller chooses the precision of products, for the backward pass too.
    """
    import torch

    return torch.einsum("qid,bjd->qbij", Q, D).max(dim=-1).values.sum(dim=-1)


def _rows(lengths: torch.Tensor | None, Ld: int) -> torch.Tensor:
    """[B, Ld] bool: which padded tokens are rows of the packed input."""
    import torch

    assert lengths is not None
    return torch.arange(Ld, device=lengths.device) < lengths[:, None]


BACKENDS = [
    TrainEager("train_eager", about="autograd through eager, in the operands' dtype"),
    TrainEager("train_eager_tf32", "tf32", about="autograd through eager on operands cast to fp32, TF32 products"),
    TrainEager("train_checkpointed", "tf32", checkpoint=True, about="train_eager_tf32, blocks of documents recomputed"),
    TrainEager("train_eager_max_tf32", "tf32", winners="one", about="train_eager_tf32 with `max`: one winner of a tie"),
    TrainEager(
        "train_checkpointed_max",
        "tf32",
        checkpoint=True,
        winners="one",
        about="train_checkpointed with `max`: one winner",
    ),
]
