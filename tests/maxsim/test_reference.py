"""The two references agree with each other, with arithmetic by hand, and with the switches they promise to ignore."""

from __future__ import annotations

import pytest
import torch

from maxsim import reference
from maxsim.tokens import tokens


def batches(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    q = tokens(torch.randn(4, 5, 8, generator=g), lengths=torch.tensor([5, 0, 3, 1]))
    d = tokens(torch.randn(8, 6, 8, generator=g), mask=torch.rand(8, 6, generator=g) > 0.4)
    return q, d


def test_float64_is_the_sum_of_maxima_written_out():
    Q, D = [[1.0, 2.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    scores, argmax = reference.float64(tokens(torch.tensor([Q])), tokens(torch.tensor([D])))
    similarity = [[sum(a * b for a, b in zip(i, j, strict=True)) for j in D] for i in Q]
    assert scores.item() == sum(max(row) for row in similarity)
    assert argmax.tolist() == [[[row.index(max(row)) for row in similarity]]]


@pytest.mark.parametrize("pairing", ["all", "candidates", "pairs"])
@pytest.mark.parametrize("block", [1, 31, 200, 1 << 24])
def test_blocks_of_any_size_give_what_float64_gives(pairing, block, monkeypatch):
    q, d = batches()
    if pairing == "pairs":
        d = d.select(torch.arange(4))
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", block)
    expected, winners = reference.float64(q, d, pairing=pairing)
    scores, won = reference.blocked(q, d, pairing=pairing, argmax=True)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)
    assert won is not None
    assert torch.equal(won, winners)
    assert torch.equal(reference.blocked_fp32(q, d, pairing=pairing), scores)


def test_the_fp32_reference_ignores_global_switches_and_autocast_and_leaves_them_alone():
    q, d = batches()
    expected = reference.blocked_fp32(q, d)
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(reference.blocked_fp32(q, d), expected)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


def switches() -> list[object]:
    """What every switch of fp32 products says; "mixed" where torch refuses to read the older ones."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    seen: list[object] = [cuda.fp32_precision, cpu.fp32_precision]
    for read in (lambda: cuda.allow_tf32, torch.get_float32_matmul_precision):
        try:
            seen.append(read())
        except RuntimeError:
            seen.append("mixed")
    return seen


def newer_alone(value: str) -> None:
    torch.set_float32_matmul_precision("highest" if value == "tf32" else "high")
    torch.backends.cuda.matmul.fp32_precision = value


def processor_alone(older: str, cuda: str | None = None) -> None:
    """The processor's switch says a third thing, so that the older one cannot be read at all."""
    torch.set_float32_matmul_precision(older)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    if cuda is not None:
        torch.backends.cuda.matmul.fp32_precision = cuda


@pytest.mark.parametrize(
    "set_by_the_caller",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: newer_alone("tf32"),
        lambda: newer_alone("ieee"),
        lambda: processor_alone("highest"),
        lambda: processor_alone("high"),
        lambda: processor_alone("high", "ieee"),
    ],
    ids=[
        "nothing", "high", "medium", "tf32 by the newer switch alone", "ieee by the newer switch alone",
        "highest, not for the processor", "high, not for the processor", "high for neither",
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_inside_no_switch_contradicts_another_and_outside_all_are_as_before(set_by_the_caller, precision):
    """torch.compile reads the older switch and is refused where a newer one disagrees."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    untouched, newer = torch.get_float32_matmul_precision(), (cuda.fp32_precision, cpu.fp32_precision)
    try:
        set_by_the_caller()
        before = switches()
        with reference.matmul_precision(precision):
            older = "high" if precision == "tf32" else "highest"
            assert switches() == [precision, "ieee", precision == "tf32", older]
        assert switches() == before
    finally:
        torch.set_float32_matmul_precision(untouched)
        cuda.fp32_precision, cpu.fp32_precision = newer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_operands_are_upcast_exactly(dtype):
    g = torch.Generator().manual_seed(3)
    Q, D = torch.randn(2, 7, 64, generator=g).to(dtype), torch.randn(5, 9, 64, generator=g).to(dtype)
    scores = reference.blocked_fp32(tokens(Q), tokens(D))
    assert torch.equal(scores, reference.blocked_fp32(tokens(Q.float()), tokens(D.float())))
