"""The Hopper forward on a Hopper GPU: values, bits, edges, and every way a plan can cut the same work."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from maxsim import reference, tokens
from maxsim.fused import hopper
from maxsim.fused.hopper_plan import _paired, _schedule, _tile

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def hopper_gpu() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the Hopper kernel runs on compute capability 9.x only")


def unit(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Random unit vectors on the GPU."""
    return torch.nn.functional.normalize(torch.randn(shape, device="cuda"), dim=-1).to(dtype)


def digits(*shape: int) -> torch.Tensor:
    """Small integers: every similarity is exact, and many are equal."""
    return torch.randint(-1, 2, shape, device="cuda").half()


def packed(lengths: torch.Tensor, values: Any = unit, d: int = 128) -> Any:
    """A packed batch of these lengths."""
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return tokens(values(int(offsets[-1]), d), cu_seqlens=offsets)


def lengths(count: int, low: int, high: int) -> torch.Tensor:
    """Random lengths in [low, high]."""
    return torch.randint(low, high + 1, (count,), device="cuda")


def relative_error(q: Any, d: Any, pairing: Any = "all") -> float:
    """Of the scores, against float64; scores near 0 count by the size of their terms."""
    assert hopper.supports(q, d, pairing=pairing) is None
    scores = hopper.forward(q, d, pairing=pairing).double()
    expected, _ = reference.float64(q, d, pairing=pairing)
    same = (scores == expected) | (scores.isnan() & expected.isnan())
    gap = (scores - expected).abs() / expected.abs().clamp_min(0.05 * q.max_length)
    return gap.masked_fill(same, 0).max().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("Nq", "Lq", "B", "Ld"),
    [
        (1, 1, 1, 1), (1, 32, 200, 300), (1, 33, 7, 1), (1, 65, 9, 300), (1, 128, 140, 1024), (1, 300, 100, 300),
        (1, 1030, 20, 1030), (16, 32, 40, 1024), (17, 32, 60, 100), (7, 33, 30, 200), (5, 5, 100, 64),
        (6, 300, 30, 200), (1200, 32, 50, 64), (1, 8, 1000, 20),
    ],
)  # fmt: skip
def test_scores_are_those_of_float64(dtype, Nq, Lq, B, Ld):
    assert relative_error(tokens(unit(Nq, Lq, 128, dtype=dtype)), tokens(unit(B, Ld, 128, dtype=dtype))) < 1e-6


@pytest.mark.parametrize("d", [8, 24, 64, 96, 136, 200, 384, 512, 768, 1000, 1024, 2048])
@pytest.mark.parametrize(("Nq", "Lq"), [(1, 32), (1, 512), (9, 20)])
def test_every_width_is_exact(d, Nq, Lq):
    assert relative_error(tokens(unit(Nq, Lq, d)), tokens(unit(40, 200, d))) < 1e-6


@pytest.mark.parametrize(("low", "high"), [(20, 512), (0, 40), (0, 3), (200, 1024)])
@pytest.mark.parametrize(("Nq", "Lq"), [(1, 32), (3, 300), (16, 32)])
def test_packed_padded_and_selected_documents_score_what_their_tokens_say(Nq, Lq, low, high):
    count = 150
    n = lengths(count, low, high)
    Q = unit(Nq, Lq, 128)
    q_lengths = lengths(Nq, max(0, Lq - 20), Lq)
    Q[torch.arange(Lq, device="cuda") >= q_lengths[:, None]] = float("nan")
    q, d = tokens(Q, lengths=q_lengths, role="Q"), packed(n)
    assert relative_error(q, d) < 1e-6
    assert relative_error(q, d.select(torch.randint(0, count, (2 * count,), device="cuda"))) < 1e-6
    X = unit(count, high, 128)
    X[torch.arange(high, device="cuda") >= n[:, None]] = float("nan")
    assert relative_error(q, tokens(X, lengths=n)) < 1e-6


@pytest.mark.parametrize(("Nq", "K", "Lq"), [(64, 10, 32), (5, 33, 17), (4, 20, 300), (300, 1, 64), (20, 1, 1024)])
def test_candidates_and_pairs_meet_their_own_documents(Nq, K, Lq):
    q, d = tokens(unit(Nq, Lq, 128)), tokens(unit(Nq * K, 130, 128))
    assert relative_error(q, d, "candidates") < 1e-6
    if K == 1:
        assert relative_error(q, d, "pairs") < 1e-6
    pool = packed(lengths(50, 0, 130))
    assert relative_error(q, pool.select(torch.randint(0, 50, (Nq * K,), device="cuda")), "candidates") < 1e-6


@pytest.mark.parametrize(("Nq", "Lq", "B", "Ld"), [(4, 32, 50, 300), (1, 300, 50, 200), (3, 1024, 10, 1030)])
def test_the_first_of_equal_tokens_wins(Nq, Lq, B, Ld):
    D = digits(B, Ld, 128)[:, torch.randint(0, Ld // 10, (Ld,), device="cuda")]
    q, d = tokens(digits(Nq, Lq, 128)), tokens(D)
    expected, won = reference.float64(q, d)
    scores, argmax = hopper.forward(q, d, argmax=True)
    assert torch.equal(scores.double(), expected)
    assert torch.equal(argmax.long(), won)


def test_the_argmax_of_packed_documents_counts_from_their_first_row():
    q = tokens(digits(6, 32, 128), lengths=torch.tensor([32, 0, 5, 31, 16, 1], device="cuda"))
    d = packed(lengths(300, 0, 60), digits)
    expected, won = reference.float64(q, d)
    scores, argmax = hopper.forward(q, d, argmax=True)
    assert torch.equal(scores.double(), expected)
    assert torch.equal(argmax.long(), won)


def test_recording_the_argmax_does_not_change_a_bit():
    q, d = tokens(unit(16, 32, 128)), tokens(unit(60, 333, 128))
    assert torch.equal(hopper.forward(q, d), hopper.forward(q, d, argmax=True)[0])


@pytest.mark.parametrize("Lq", [32, 128, 300])
def test_nan_inf_and_empty_sequences(Lq):
    Q, D = unit(3, Lq, 128), unit(40, 300, 128)
    D[5, 7, 3], D[6, 8, 1], D[7, 299, 1] = float("nan"), float("inf"), -float("inf")
    assert relative_error(tokens(Q), tokens(D)) < 1e-6
    Q[1, 2, 5] = float("nan")
    assert relative_error(tokens(Q), tokens(unit(40, 300, 128))) < 1e-6
    q = tokens(unit(3, Lq, 128), lengths=torch.tensor([0, Lq, 3], device="cuda"))
    d = tokens(unit(40, 300, 128), lengths=300 * lengths(40, 0, 1))
    assert relative_error(q, d) < 1e-6


@pytest.mark.parametrize(("Nq", "Lq"), [(20, 32), (9, 20), (7, 50), (4, 128), (3, 300), (2, 1000)])
def test_a_score_has_the_same_bits_alone_padded_and_under_every_plan(Nq, Lq):
    Q, D, n = unit(Nq, Lq, 128), unit(150, 260, 128), lengths(150, 0, 260)
    q, d = tokens(Q), tokens(D, lengths=n)
    scores = hopper.forward(q, d)
    for b in (0, 77, 149):
        for i in (0, Nq - 1):
            alone = hopper.forward(tokens(Q[i : i + 1]), tokens(D[b : b + 1], lengths=n[b : b + 1]))
            assert alone.item() == scores[i, b].item()
    P = torch.full((Nq, Lq + 30, 128), float("nan"), device="cuda", dtype=torch.float16)
    P[:, :Lq] = Q
    padded = tokens(P, lengths=torch.full((Nq,), Lq, device="cuda"))
    assert torch.equal(hopper.forward(dataclasses.replace(padded, max_length=Lq + 30), d), scores)
    diagonal = hopper.forward(q, tokens(D[:Nq], lengths=n[:Nq]), pairing="pairs")
    assert torch.equal(diagonal, scores[:, :Nq].diagonal())
    for NC, BM, each in ((4, 64, 1), (2, 128, 1), (1, 128, 1), (2, 64, 1), (1, 64, 1), (1, 64, 2), (1, 128, 2)):
        tile = _tile(NC, BM, Nq, 150, Lq, 128, True)
        if tile is None:
            continue
        tile = _paired(tile, contiguous=False) if each == 2 else tile
        assert tile is not None, "128 columns fit twice"
        _, plan = _schedule(tile, 150, 260, None, False, False, 132)
        for blocks in (1, 5, 33):
            cut = dataclasses.replace(plan, blocks=blocks, programs=min(132 * each, plan.groups * blocks))
            assert torch.equal(hopper.forward(q, d, plan=cut), scores), (NC, BM, each, blocks)


@pytest.mark.parametrize("argmax", [False, True])
@pytest.mark.parametrize("d", [64, 128, 512, 520, 640, 768, 1024, 2048])
def test_a_score_has_the_same_bits_under_every_tile_of_a_width(d, argmax):
    """Also whether its queries are held or travel, and where runs of columns are added beside the tensor core."""
    q, x = tokens(unit(1, 256, d)), tokens(unit(40, 700, d))
    seen = {}
    for NC, BM in ((4, 64), (2, 128), (1, 128), (2, 64), (1, 64)):
        tile = _tile(NC, BM, 1, 40, 256, d, True)
        if tile is not None:
            _, plan = _schedule(tile, 40, 700, None, True, argmax, 132)
            found = hopper.forward(q, x, plan=plan, argmax=argmax)
            seen[NC, BM] = found if argmax else (found,)
    first = next(iter(seen.values()))
    assert len(seen) > 1
    for tile, found in seen.items():
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True)), tile
    if argmax:
        assert torch.equal(first[1].long(), reference.float64(q, x)[1]), "unit vectors have no ties"


def test_more_pairs_with_partial_sums_than_a_grid_has_places_along_y():
    """65 535 places; the same ten pairs again and again have the scores of ten."""
    Q, D = unit(10, 200, 64), unit(10, 20, 64)
    few, many = ((tokens(Q.repeat(times, 1, 1)), tokens(D.repeat(times, 1, 1))) for times in (1, 6600))
    assert hopper.plan(*many, pairing="pairs").sums > 1
    assert torch.equal(hopper.forward(*many, pairing="pairs"), hopper.forward(*few, pairing="pairs").repeat(6600))


def test_more_than_2_to_31_elements():
    D = torch.zeros(60_000, 300, 128, device="cuda", dtype=torch.float16)
    D[-1] = unit(300, 128)
    q = tokens(unit(1, 32, 128))
    scores = hopper.forward(q, tokens(D))
    expected, _ = reference.float64(q, tokens(D[-2:]))
    assert ((scores[:, -2:] - expected).abs() < 1e-5).all()
    assert (scores[:, :-1] == 0).all()


def test_a_captured_graph_replays_on_new_contents():
    q, D = tokens(unit(1, 200, 128)), unit(100, 300, 128)
    d = tokens(D)
    hopper.forward(q, d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = hopper.forward(q, d)
    D.copy_(unit(100, 300, 128))
    graph.replay()
    expected, _ = reference.float64(q, d)
    assert ((scores - expected).abs() / expected.abs()).max() < 1e-6
