"""What a complete training step trains: an encoder, how a batch is made for it, and what the loss divides scores by.

Room: `backends`. May import: declare, `maxsim`. One module an encoder family gives its recipes (`full_step_bert`,
`full_step_colpali`); the step itself and its scorers are `full_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxsim_bench.backends.base import Inputs
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

# bf16 activations through a dozen layers and more: kernels of other batch shapes round otherwise; the loss moves by
# this at most.
ROUNDING = 2e-2


@dataclass(frozen=True)
class Recipe:
    """How one encoder is trained.

    Attributes:
        model: from cell and device to a module in training mode with weights of seed 0. It takes one side of the batch
            and returns unit token embeddings [n, L, d]; what requires a gradient is what the optimiser updates.
        batch: from cell and inputs to (queries, documents), as the module takes them, on the device of the inputs.
        refusal: why the encoder does not run this cell, None if it does.
        tau: temperature of the cross-entropy.
        mean: scores are divided by the tokens of a query before the temperature.
        autocast: fp32 weights under bf16 autocast; otherwise the weights are bf16 themselves.
    """

    model: Callable[[Cell, torch.device], Any]
    batch: Callable[[Cell, Inputs], tuple[Any, Any]]
    refusal: Callable[[Cell], str | None] = lambda cell: None
    tau: float = 1.0
    mean: bool = False
    autocast: bool = False


def numbers_below(x: torch.Tensor, below: int) -> torch.Tensor:
    """Token numbers of the shape of x, int64 in 0..below-1, made of its values."""
    return (x.float() * 1e6).long().remainder(below)


def checkpoint_layers(module: Any) -> None:
    """Recompute the activations of every layer of a transformers model in the backward pass.

    Not by the reentrant implementation, which loses the gradients of weights whose layer's inputs need none.
    """
    # transformers 5.24 renamed the method, and warns for the old name; older ones have the old name only.
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@contextmanager
def drawn_from_seed_0(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Modules that are made in here lie on `device` in `dtype`, with the same weights every time."""
    import torch

    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
