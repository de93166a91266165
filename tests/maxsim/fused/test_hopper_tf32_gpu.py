"""The fp32 Hopper forward on a Hopper GPU: accuracy, layouts, edges and bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maxsim import reference, tokens
from maxsim.fused import hopper

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def hopper_gpu() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the Hopper kernel runs on compute capability 9.x only")


def unit(*shape: int) -> torch.Tensor:
    """Random fp32 unit vectors on the GPU."""
    return torch.nn.functional.normalize(torch.randn(shape, device="cuda"), dim=-1)


def lengths(count: int, low: int, high: int) -> torch.Tensor:
    """Random lengths in [low, high]."""
    return torch.randint(low, high + 1, (count,), device="cuda")


def packed(n: torch.Tensor) -> Any:
    """A packed batch of these lengths."""
    offsets = torch.cat([n.new_zeros(1), n.cumsum(0)])
    return tokens(unit(int(offsets[-1]), 128), cu_seqlens=offsets)


def relative_error(q: Any, d: Any, pairing: Any = "all") -> float:
    """Of the scores, against float64; scores near 0 count by the size of their terms."""
    assert hopper.supports(q, d, pairing=pairing) is None
    scores = hopper.forward(q, d, pairing=pairing).double()
    expected, _ = reference.float64(q, d, pairing=pairing)
    same = (scores == expected) | (scores.isnan() & expected.isnan())
    gap = (scores - expected).abs() / expected.abs().clamp_min(0.05 * q.max_length)
    return gap.masked_fill(same, 0).max().item()


@pytest.mark.parametrize(
    ("Nq", "Lq", "B", "Ld"),
    [(1, 1, 1, 1), (1, 32, 200, 300), (1, 33, 7, 1), (1, 128, 140, 1024), (1, 300, 100, 300), (1, 1030, 20, 1030),
     (16, 32, 40, 1024), (17, 32, 60, 100), (7, 33, 30, 200), (6, 300, 30, 200), (600, 32, 50, 64), (1, 8, 1000, 20)],
)  # fmt: skip
def test_scores_are_those_of_float64(Nq, Lq, B, Ld):
    assert relative_error(tokens(unit(Nq, Lq, 128)), tokens(unit(B, Ld, 128))) < 1e-6


@pytest.mark.parametrize("d", [4, 20, 64, 96, 160, 256, 512, 768, 2048])
@pytest.mark.parametrize(("Nq", "Lq"), [(1, 512), (9, 20)])
def test_every_width_is_exact(d, Nq, Lq):
    assert relative_error(tokens(unit(Nq, Lq, d)), tokens(unit(40, 200, d))) < 1e-6


def test_documents_that_resemble_the_query_are_as_exact():
    Q = unit(1, 512, 128)
    D = torch.nn.functional.normalize(Q[:, :300] + 0.02 * torch.randn(40, 300, 128, device="cuda"), dim=-1)
    assert relative_error(tokens(Q), tokens(D)) < 1e-6


@pytest.mark.parametrize(("low", "high"), [(20, 512), (0, 40)])
@pytest.mark.parametrize(("Nq", "Lq"), [(1, 32), (3, 300)])
def test_packed_padded_and_selected_documents_score_what_their_tokens_say(Nq, Lq, low, high):
    n = lengths(150, low, high)
    Q = unit(Nq, Lq, 128)
    q_lengths = lengths(Nq, max(0, Lq - 20), Lq)
    Q[torch.arange(Lq, device="cuda") >= q_lengths[:, None]] = float("nan")
    q, d = tokens(Q, lengths=q_lengths, role="Q"), packed(n)
    assert relative_error(q, d) < 1e-6
    assert relative_error(q, d.select(torch.randint(0, 150, (300,), device="cuda"))) < 1e-6
    X = unit(150, high, 128)
    X[torch.arange(high, device="cuda") >= n[:, None]] = float("nan")
    assert relative_error(q, tokens(X, lengths=n)) < 1e-6


@pytest.mark.parametrize(("Nq", "K", "Lq"), [(64, 10, 32), (5, 33, 17), (4, 20, 300), (300, 1, 64)])
def test_candidates_meet_their_own_documents(Nq, K, Lq):
    q = tokens(unit(Nq, Lq, 128))
    assert relative_error(q, tokens(unit(Nq * K, 130, 128)), "candidates") < 1e-6
    pool = packed(lengths(50, 0, 130))
    assert relative_error(q, pool.select(torch.randint(0, 50, (Nq * K,), device="cuda")), "candidates") < 1e-6


@pytest.mark.parametrize(("Nq", "Lq", "B", "Ld"), [(4, 32, 50, 300), (1, 300, 50, 200)])
def test_the_first_of_equal_tokens_wins_and_recording_it_changes_no_bit(Nq, Lq, B, Ld):
    Q, D = (torch.randint(-1, 2, (*shape, 128), device="cuda").float() for shape in ((Nq, Lq), (B, Ld)))
    q, d = tokens(Q), tokens(D[:, torch.randint(0, Ld // 10, (Ld,), device="cuda")])
    expected, won = reference.float64(q, d)
    scores, argmax = hopper.forward(q, d, argmax=True)
    assert torch.equal(scores.double(), expected)
    assert torch.equal(argmax.long(), won)
    q, d = tokens(unit(Nq, Lq, 128)), tokens(unit(B, Ld, 128))
    assert torch.equal(hopper.forward(q, d), hopper.forward(q, d, argmax=True)[0])


@pytest.mark.parametrize("Lq", [32, 300])
def test_nan_inf_and_empty_sequences(Lq):
    Q, D = unit(3, Lq, 128), unit(40, 300, 128)
    D[5, 7, 3], D[6, 8, 1], D[7, 299, 1] = float("nan"), float("inf"), -float("inf")
    D[8, 3, 5] = torch.tensor(0x7F800001, device="cuda", dtype=torch.int32).view(torch.float32)
    assert relative_error(tokens(Q), tokens(D)) < 1e-6
    Q[1, 2, 5] = float("nan")
    assert relative_error(tokens(Q), tokens(unit(40, 300, 128))) < 1e-6
    q = tokens(unit(3, Lq, 128), lengths=torch.tensor([0, Lq, 3], device="cuda"))
    assert relative_error(q, tokens(unit(40, 300, 128), lengths=300 * lengths(40, 0, 1))) < 1e-6


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_the_size_of_the_numbers_does_not_matter(scale):
    Q, D = unit(2, 100, 128), unit(40, 300, 128)
    q, d = tokens(Q), tokens(D * scale)
    scores, (expected, _) = hopper.forward(q, d), reference.float64(q, d)
    assert ((scores - expected) / expected).abs().max().item() < 1e-6


@pytest.mark.parametrize(("Nq", "Lq"), [(20, 32), (7, 50), (3, 300)])
def test_a_score_has_the_same_bits_alone_and_padded(Nq, Lq):
    Q, D, n = unit(Nq, Lq, 128), unit(150, 260, 128), lengths(150, 0, 260)
    scores = hopper.forward(tokens(Q), tokens(D, lengths=n))
    for b in (0, 77, 149):
        for i in (0, Nq - 1):
            alone = hopper.forward(tokens(Q[i : i + 1]), tokens(D[b : b + 1], lengths=n[b : b + 1]))
            assert alone.item() == scores[i, b].item()
