"""How much encoders of complete training steps multiply: what a plan needs to tell how long a step takes.

Room: `declare`. Imports nothing else of ours. The encoders themselves are recipes of the room `backends`; a test holds
these numbers to their weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of


@dataclass(frozen=True)
class EncoderSize:
    """One encoder, by its name in the variant `encoder`.

    Attributes:
        weights: matrix elements that every token of a query or document is multiplied with.
        image_weights, image_tokens: those of a vision tower and its projection that runs forward only, and the tokens
            of a page that pass it. A query of more tokens than an image is a page too.
        documents: encoded for each of the batch (a positive and a hard negative: 2).
        backward: work of the backward pass in forward passes: 2 where all weights learn, 1 where they are frozen.
    """

    weights: int
    documents: int = 1
    backward: float = 2.0
    image_weights: int = 0
    image_tokens: int = 0


ENCODERS = {
    "bert-base": EncoderSize(weights=84_934_656, documents=2),
    "tiny": EncoderSize(weights=16_384, documents=2),
    "colpali-v1.2": EncoderSize(
        weights=1_981_808_640, backward=1.0, image_weights=414_107_136, image_tokens=1024,
    ),
    "colpali-tiny": EncoderSize(weights=18_432, backward=1.0, image_weights=34_176, image_tokens=4),
}  # fmt: skip


def encoder_flops(cell: Cell) -> float:
    """Multiplications and additions of the encoder in one step of the cell, attention's products left out; 0 without.

    One forward pass, the backward pass, and another forward pass where activations are recomputed.
    """
    size = ENCODERS.get(axis_of(cell, VARIANT + "encoder"))
    if size is None:
        return 0.0
    Nq, B, Lq, Ld = (getattr(cell, axis) or 0 for axis in ("Nq", "B", "Lq", "Ld"))
    passes = 1.0 + size.backward + (axis_of(cell, VARIANT + "checkpoint") == "true")
    images = size.documents * B + (Nq if Lq > size.image_tokens else 0)
    tokens = Nq * Lq + size.documents * B * Ld
    return 2.0 * (size.weights * tokens * passes + size.image_weights * size.image_tokens * images)
