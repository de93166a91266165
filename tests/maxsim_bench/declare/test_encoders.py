"""What encoders multiply, by hand arithmetic; their sizes are held to the models by the tests of the backends."""

from __future__ import annotations

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.encoders import ENCODERS, encoder_flops


def cell(variant: str | None, Lq: int = 3) -> Cell:
    return Cell(experiment="x", gpu="a100-80gb", op="training_step", Nq=2, B=5, Lq=Lq, Ld=10, d=8, variant=variant)


def test_a_cell_without_an_encoder_encodes_nothing() -> None:
    assert encoder_flops(cell(None)) == encoder_flops(cell("checkpoint=true;loss=sum")) == 0
    assert encoder_flops(cell("encoder=unheard-of")) == 0


def test_trained_weights_take_three_passes_over_queries_positives_and_hard_negatives() -> None:
    assert encoder_flops(cell("encoder=tiny")) == 2 * 16_384 * (2 * 3 + 2 * 5 * 10) * 3
    assert encoder_flops(cell("checkpoint=true;encoder=tiny")) == 2 * 16_384 * (2 * 3 + 2 * 5 * 10) * 4


@pytest.mark.parametrize(("Lq", "pages"), [(3, 5), (10, 5 + 2)])
def test_frozen_weights_take_one_pass_less_and_images_run_forward_once(Lq: int, pages: int) -> None:
    tiny = ENCODERS["colpali-tiny"]
    text = 2 * tiny.weights * (2 * Lq + 5 * 10) * 2
    assert encoder_flops(cell("checkpoint=false;encoder=colpali-tiny", Lq)) == text + 2 * tiny.image_weights * 4 * pages
