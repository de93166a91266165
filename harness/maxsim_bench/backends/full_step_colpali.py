"""The step of ColPali v1.2: a frozen bf16 PaliGemma, low-rank adapters on its language model's attention, pages.

Room: `backends`. May import: declare, `maxsim`. Sizes are those of `vidore/colpali-v1.2-hf`: SigLIP so400m/14 at 448 px
(1024 patches), Gemma-2B, a projection to d. Weights are random: nothing is downloaded, and neither time nor memory of a
step depends on them. A document is a page, 1024 image tokens and 6 of text, whose pixels are made of the cell's inputs;
so is a query that is as long as a page, any other one is text. Every token is real.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.full_step_recipe import Recipe, checkpoint_layers, drawn_from_seed_0, numbers_below
from maxsim_bench.backends.training_loss import variant_of
from maxsim_bench.declare.cell import Cell

if TYPE_CHECKING:
    import torch

RANK = 32
ALPHA = 32.0  # colpali-engine's; only a factor
TAU = 0.02
PAGE_TEXT = 6  # tokens of a page beside its image's: the prompt that ColPali's processor puts there
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")
_CHANNELS = 3


@dataclass(frozen=True)
class Sizes:
    """One encoder.

    Attributes:
        vision: of `transformers.SiglipVisionConfig`; text: of `transformers.GemmaConfig`.
        image_token: number of the token that stands for a patch; words lie below it.
    """

    vision: dict[str, Any]
    text: dict[str, Any]
    image_token: int

    @property
    def side(self) -> int:
        """Patches along an edge of a page."""
        return int(self.vision["image_size"] // self.vision["patch_size"])

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self.side**2 + PAGE_TEXT


ENCODERS = {
    "colpali-v1.2": Sizes(  # as google/paligemma-3b-pt-448, which ColPali v1.2 was trained from
        vision={
            "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
            "image_size": 448, "patch_size": 14,
        },
        text={
            "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
            "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 257_216,
        },
        image_token=257_152,
    ),
    "colpali-tiny": Sizes(
        vision={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
        text={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 128,
        },
        image_token=120,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """Queries or documents: token numbers [n, L] int64, and of pages their pixels [n, 3, edge, edge] fp32."""

    numbers: torch.Tensor
    pixels: torch.Tensor | None = None


def make_base(encoder: str, d: int, device: torch.device) -> Any:
    """`transformers.ColPaliForRetrieval` of this size in bf16, drawn on `device` with weights of seed 0.

    On a card: three billion numbers take a processor half a minute and a copy. On "meta" it has sizes only.
    """
    import torch
    from transformers import ColPaliConfig, ColPaliForRetrieval, PaliGemmaConfig

    sizes = ENCODERS[encoder]
    width = sizes.text["hidden_size"]
    vision = {"model_type": "siglip_vision_model", "vision_use_head": False, "projection_dim": width, **sizes.vision}
    text = {"model_type": "gemma", "use_cache": False, **sizes.text}
    both = PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_index=sizes.image_token,
        vocab_size=sizes.text["vocab_size"], projection_dim=width, hidden_size=width,
    )  # fmt: skip
    with drawn_from_seed_0(device, torch.bfloat16):
        return ColPaliForRetrieval(ColPaliConfig(vlm_config=both, embedding_dim=d))


def make_model(cell: Cell, device: torch.device) -> Any:
    """ColPali with fresh adapters, everything else frozen, in training mode: takes a `Side`, returns [n, L, d]."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = make_base(variant_of(cell, "encoder", ""), cell.d or 128, device).requires_grad_(False)
            adapt(self.base, device)
            if variant_of(cell, "checkpoint", "false") == "true":
                checkpoint_layers(self.base.vlm)  # the class around it, which only projects, refuses

        def forward(self, side: Side) -> torch.Tensor:
            return self.base(input_ids=side.numbers, pixel_values=side.pixels).embeddings

    return Encoder().train()


def adapt(base: Any, device: torch.device) -> None:
    """Put an adapter beside every projection of the language model's attention, drawn with seed 0."""
    import torch

    with drawn_from_seed_0(device, torch.float32):
        for name, module in list(base.named_modules()):
            if "language_model" in name and name.endswith(".self_attn"):
                for projection in ADAPTED:
                    setattr(module, projection, _adapter()(getattr(module, projection)))


@cache
def _adapter() -> type[Any]:
    import torch

    class Adapter(torch.nn.Module):
        """y = W x + α/r · B (A x), W frozen: LoRA, Hu et al. 2021, arXiv:2106.09685, section 4.1.

        A [r, in] is drawn uniformly and B [out, r] is 0, so that a fresh adapter changes nothing. Both are fp32 beside
        a bf16 W, and so is their product with x: what the package `peft` does by default (`autocast_adapter_dtype`).
        """

        def __init__(self, frozen: Any) -> None:
            super().__init__()
            self.frozen = frozen
            self.A = torch.nn.Parameter(torch.empty(RANK, frozen.in_features))
            self.B = torch.nn.Parameter(torch.zeros(frozen.out_features, RANK))
            torch.nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            linear = torch.nn.functional.linear
            y = self.frozen(x)
            return (y + linear(linear(x.to(self.A.dtype), self.A), self.B) * (ALPHA / RANK)).to(y.dtype)

    return Adapter


def batch_of(cell: Cell, inputs: Inputs) -> tuple[Side, Side]:
    """Nq queries, pages if they are as long as one, and B pages."""
    sizes = ENCODERS[variant_of(cell, "encoder", "")]
    queries = _pages(sizes, inputs.Q) if cell.Lq == sizes.page else Side(_words(sizes, inputs.Q))
    return queries, _pages(sizes, inputs.D)


def _words(sizes: Sizes, x: torch.Tensor) -> torch.Tensor:
    return numbers_below(x[..., 0], sizes.image_token)


def _pages(sizes: Sizes, x: torch.Tensor) -> Side:
    """Pages of tokens [n, L, d]: patch i repeats the components of token i over its pixels, scaled to variance 1."""
    import torch

    side, edge = sizes.side, sizes.vision["patch_size"]
    pixels = torch.arange(_CHANNELS * edge * edge, device=x.device) % x.shape[-1]
    patches = (x[:, : side**2].float() * math.sqrt(x.shape[-1]))[..., pixels]
    image = patches.view(-1, side, side, _CHANNELS, edge, edge).permute(0, 3, 1, 4, 2, 5)
    numbers = torch.full(x.shape[:2], sizes.image_token, device=x.device)
    numbers[:, side**2 :] = _words(sizes, x[:, side**2 :])
    return Side(numbers, image.reshape(-1, _CHANNELS, side * edge, side * edge).contiguous())


def refusal(cell: Cell) -> str | None:
    """Documents are whole pages, and a query as long as a page is one."""
    encoder = variant_of(cell, "encoder", "")
    page = ENCODERS[encoder].page
    if cell.Ld not in (None, page):
        return f"encodes pages of {page} tokens with {encoder}, not documents of {cell.Ld}"
    return None


# Divided by the tokens of a query, as colpali-engine's loss does at this temperature: sums of a thousand cosines over
# 0.02 would leave no gradient but that of the largest score.
RECIPES = {name: Recipe(make_model, batch_of, refusal, tau=TAU, mean=True) for name in ENCODERS}
