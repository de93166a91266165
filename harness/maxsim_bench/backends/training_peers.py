"""The training steps of the two peers, called as their README files call them.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing
from maxsim_bench.backends.training_loss import refusal, step, variant_of
from maxsim_bench.backends.training_ours import NEAR_TIES
from maxsim_bench.declare.cell import Cell

_PATH_VARIABLE = "FLASH_BWD_PATH"
_INSTALL = "pip install 'maxsim-bench[peers]'"

# Normwise. Neither peer states how exact its gradients are; this is what tells a working one from a broken one.
_WORKS = 5e-2


@dataclass(frozen=True)
class TrainFlash:
    """flash-maxsim 0.3.0 `flash_maxsim_batched_train`: every query with every document, fp16.

    `path` names one of its backward paths ("invgrid": by document, over a sorted inverse grid; "atomic": a launch a
    side); by itself it takes "atomic_unified", one launch for both. It reads the choice from the environment.
    """

    name: str = "train_flash_maxsim"
    path: str | None = None
    exact: bool = False
    install: str | None = _INSTALL
    about: str = "flash-maxsim 0.3.0's training step, its own choice of backward path"

    def version(self) -> str:
        return installed_version("flash-maxsim")

    def supports(self, cell: Cell, device: str) -> str | None:
        if variant_of(cell, "stage", "step") != "step":
            return "has no separate pieces to time"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        if cell.dtype != "fp16":
            return f"casts {cell.dtype} to fp16 silently, so it does not compute this cell"
        if cell.layout == "packed" or cell.pairing == "pairs":
            return "its batched training takes padded documents, shared or as candidates"
        return refusal(cell) or missing("flash_maxsim", _INSTALL)

    def tolerance(self, cell: Cell) -> float:
        return _WORKS

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        from flash_maxsim import flash_maxsim_batched_train

        shared = cell.pairing != "candidates"
        lengths = None if inputs.d_lengths is None else inputs.d_lengths.flatten()
        run = step(cell, lambda Q, D: flash_maxsim_batched_train(Q, D, shared, lengths), inputs.Q, inputs.D)
        return run if self.path is None else lambda: _by(self.path, run)


def _by(path: str | None, run: Callable[[], object]) -> object:
    """Run with the package held to one backward path; its variable is put back as it was."""
    before = os.environ.get(_PATH_VARIABLE)
    os.environ[_PATH_VARIABLE] = path or "auto"
    try:
        return run()
    finally:
        if before is None:
            del os.environ[_PATH_VARIABLE]
        else:
            os.environ[_PATH_VARIABLE] = before


@dataclass(frozen=True)
class TrainLik:
    """late-interaction-kernels 0.4.5 `maxsim` with its backward "auto" or "lowmem"."""

    name: str
    backward: Literal["auto", "lowmem"]
    exact: bool = False
    install: str | None = _INSTALL
    about: str = ""

    def version(self) -> str:
        return installed_version("late-interaction-kernels")

    def supports(self, cell: Cell, device: str) -> str | None:
        if variant_of(cell, "stage", "step") != "step":
            return "has no separate pieces to time"
        if device != "cuda":
            return "needs an NVIDIA GPU"
        if cell.dtype == "fp32":
            return "multiplies fp32 operands in TF32, so it does not compute this cell"
        if cell.layout == "packed" or cell.pairing == "pairs":
            return "its packed and pair scoring are separate entry points"
        return refusal(cell) or missing("late_interaction_kernels", _INSTALL)

    def tolerance(self, cell: Cell) -> float:
        return max(NEAR_TIES, _WORKS)

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import late_interaction_kernels as lik
        import torch

        D, backward = inputs.D, self.backward
        mask = None
        if inputs.d_lengths is not None:
            mask = torch.arange(D.shape[-2], device=D.device) < inputs.d_lengths[..., None]
        return step(cell, lambda Q, D: lik.maxsim(Q, D, d_mask=mask, backward=backward), inputs.Q, D)


BACKENDS = [
    TrainFlash(),
    TrainFlash("train_flash_csr", path="invgrid", about="flash-maxsim 0.3.0's training step by its inverse grid"),
    TrainFlash("train_flash_atomic", path="atomic", about="flash-maxsim 0.3.0's training step by atomic additions"),
    TrainLik("train_lik", "auto", about='late-interaction-kernels 0.4.5\'s training step, backward "auto"'),
    TrainLik("train_lik_lowmem", "lowmem", about='late-interaction-kernels 0.4.5\'s training step, backward "lowmem"'),
]
