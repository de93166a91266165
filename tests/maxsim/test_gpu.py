"""What only a GPU can show: 16-bit arithmetic, bits, sizes beyond 2^31, capture, synchronisation, memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import maxsim
from maxsim import fused, reference
from maxsim.fused import launch

pytestmark = pytest.mark.gpu
PATHS = ("portable", None)


@pytest.fixture(params=PATHS, ids=("portable", "chosen"))
def path(request: pytest.FixtureRequest) -> str | None:
    return request.param


def unit(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    """Random unit vectors on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(shape, device="cuda", generator=generator)
    return torch.nn.functional.normalize(x, dim=-1).to(dtype)


def error(scores: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest relative error."""
    return ((scores.double() - expected) / expected).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("Nq", "Lq", "B", "Ld", "d"),
    [(1, 32, 50, 300, 128), (7, 33, 9, 129, 96), (2, 300, 5, 257, 768), (1, 32, 20, 200, 2048)],
)
def test_16_bit_operands_are_accumulated_in_fp32(path, dtype, Nq, Lq, B, Ld, d):
    q, D = maxsim.tokens(unit(Nq, Lq, d, dtype=dtype)), maxsim.tokens(unit(B, Ld, d, dtype=dtype, seed=1))
    expected, won = reference.float64(q, D)
    scores, argmax = fused.forward(q, D, argmax=True, path=path)
    assert error(scores, expected) < 1e-6
    assert torch.equal(scores, fused.forward(q, D, path=path))
    assert (argmax != won).double().mean() < 1e-3  # two similarities within fp32 rounding of each other may swap


@pytest.mark.parametrize("d", [64, 128, 768, 2048])
def test_fp32_operands_are_within_1e_6_of_float64(path, d):
    q, D = (
        maxsim.tokens(unit(3, 40, d, dtype=torch.float32)),
        maxsim.tokens(unit(20, 200, d, dtype=torch.float32, seed=1)),
    )
    expected, _ = reference.float64(q, D)
    assert error(fused.forward(q, D, path=path), expected) < 1e-6
    tf32 = error(fused.forward(q, D, path=path, precision="tf32"), expected)
    assert 1e-6 < tf32 < 2e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("d", [96, 128, 256, 768])
@pytest.mark.parametrize("Lq", [1, 20, 32, 100, 300])
def test_a_score_has_the_same_bits_in_any_batch(path, dtype, d, Lq):
    Q, D = unit(9, Lq, d, dtype=dtype), unit(40, 200, d, dtype=dtype, seed=1)
    whole = maxsim.maxsim(Q, D, path=path)
    assert torch.equal(maxsim.maxsim(Q[4], D[17:18], path=path), whole[4, 17:18])
    assert torch.equal(maxsim.maxsim(Q[2:5], D[10:], path=path), whole[2:5, 10:])
    assert torch.equal(maxsim.maxsim(Q, D[:9], pairing="pairs", path=path), whole.diagonal()[:9])
    padded_q, padded_d = (torch.nn.functional.pad(x, (0, 0, 0, 77), value=float("nan")) for x in (Q, D))
    lengths = {"q_lengths": torch.full((9,), Lq, device="cuda"), "d_lengths": torch.full((40,), 200, device="cuda")}
    q, d_batch = (
        maxsim.tokens(padded_q, lengths=lengths["q_lengths"]),
        maxsim.tokens(padded_d, lengths=lengths["d_lengths"]),
    )
    loose = (_loosened(q, Lq + 77), _loosened(d_batch, 277))  # kernels see the padded length, not the tight one
    assert torch.equal(fused.forward(*loose, path=path), whole)
    packed = maxsim.tokens(D.reshape(-1, d), cu_seqlens=torch.arange(41, device="cuda") * 200)
    assert torch.equal(maxsim.maxsim(Q, packed, path=path), whole)
    assert torch.equal(
        maxsim.maxsim(Q, packed.select(torch.tensor([5, 3, 5], device="cuda")), path=path), whole[:, [5, 3, 5]]
    )


def _loosened(batch: maxsim.TokenBatch, longest: int) -> maxsim.TokenBatch:
    from dataclasses import replace

    return replace(batch, max_length=longest)


@pytest.fixture(scope="class")
def corpus() -> Iterator[torch.Tensor]:
    """60 000 x 300 x 128 zeros, but for two tokens of the last document."""
    D = torch.zeros(60_000, 300, 128, dtype=torch.float16, device="cuda")
    D[-1, 7, 0], D[-1, 250, 1] = 3.0, 5.0
    yield D
    del D
    torch.cuda.empty_cache()


class TestMoreThan2To31Elements:
    B, Ld, d = 60_000, 300, 128

    def test_the_last_document_is_read(self, corpus, path):
        Q = torch.eye(32, self.d, dtype=torch.float16, device="cuda")
        expected = torch.zeros(self.B, device="cuda")
        expected[-1] = 8.0
        assert torch.equal(maxsim.maxsim(Q, corpus, path=path), expected)
        scores, won = maxsim.maxsim_argmax(Q, corpus, path=path)
        assert torch.equal(scores, expected)
        assert won[-1, :3].tolist() == [7, 250, 0]

    def test_the_last_packed_document_is_read(self, corpus, path):
        offsets = torch.arange(self.B + 1, device="cuda") * self.Ld
        Q = torch.eye(2, self.d, dtype=torch.float16, device="cuda")
        packed = maxsim.tokens(corpus.view(-1, self.d), cu_seqlens=offsets)
        assert maxsim.maxsim(Q, packed, path=path)[-2:].tolist() == [0.0, 8.0]
        last = packed.select(torch.tensor([self.B - 1], device="cuda"))
        assert maxsim.maxsim(Q, last, path=path).tolist() == [8.0]

    def test_more_scores_than_2_to_31_bytes_are_written(self, path):
        Q = torch.ones(3, 1, 16, dtype=torch.float16, device="cuda")
        D = torch.ones(1, 1, 16, dtype=torch.float16, device="cuda").expand(1 << 28, 1, 16)
        scores = maxsim.maxsim(Q, D, path=path)
        assert scores.shape == (3, 1 << 28)
        assert (scores == 16.0).all()


def test_a_length_or_start_changed_behind_its_back_cannot_read_out_of_bounds(path):
    Q, D = unit(2, 8, 128), unit(4, 50, 128, seed=1)
    batch = maxsim.tokens(D.view(-1, 128), cu_seqlens=torch.arange(5, device="cuda") * 50)
    assert batch.lengths is not None
    assert batch.starts is not None
    batch.lengths.fill_(1 << 30)
    batch.starts.copy_(torch.tensor([-(1 << 40), 0, 199, 1 << 40]))
    scores = maxsim.maxsim(Q, batch, path=path)
    torch.cuda.synchronize()
    assert scores.shape == (2, 4)
    if path == "portable":  # it cuts work by document; by rows, as the Hopper kernel cuts it, such a batch means less
        assert torch.equal(scores[:, 1], maxsim.maxsim(Q, D[:1], path=path)[:, 0])
        assert torch.equal(scores[:, 2], maxsim.maxsim(Q, D[3:, 49:], path=path)[:, 0])
        assert (scores[:, 3] == -torch.inf).all()


def test_scoring_never_waits_for_the_device(path):
    q = maxsim.tokens(unit(3, 200, 64), lengths=torch.tensor([200, 3, 0], device="cuda"))
    d = maxsim.tokens(unit(5, 70, 64, seed=1), mask=torch.rand(5, 70, device="cuda") > 0.5)
    fused.forward(q, d, path=path, argmax=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fused.forward(q, d, path=path, argmax=True)
        maxsim.maxsim(q, d, path=path)
        maxsim.maxsim_argmax(q, d, path=path)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("Lq", [32, 200])
def test_a_captured_graph_scores_what_its_inputs_hold_at_replay(path, Lq):
    Q, D = unit(2, Lq, 128), unit(30, 90, 128, seed=1)
    batches = maxsim.tokens(Q), maxsim.tokens(D)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fused.forward(*batches, path=path)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = fused.forward(*batches, path=path)
    D.copy_(unit(30, 90, 128, seed=2))
    graph.replay()
    assert torch.equal(scores, fused.forward(*batches, path=path))


@pytest.mark.parametrize(
    ("Nq", "Lq", "B", "Ld"), [(1, 32, 5000, 100), (16, 1024, 100, 300), (64, 32, 1000, 64), (1, 129, 4000, 32)]
)
def test_extra_memory_is_the_scores_their_partial_sums_and_a_megabyte(path, Nq, Lq, B, Ld):
    q, d = maxsim.tokens(unit(Nq, Lq, 128)), maxsim.tokens(unit(B, Ld, 128, seed=1))
    fused.forward(q, d, path=path)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    scores = fused.forward(q, d, path=path)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    slices = -(-Lq // 128)
    assert extra <= scores.numel() * 4 * (1 + (slices if slices > 1 else 0)) + (1 << 20)


def test_two_hundred_lengths_compile_nothing_new(path):
    from triton import knobs

    Q = unit(4, 32, 128)
    for Ld in (1, 15, 16, 17, 32, 300):  # every kind of length once
        maxsim.maxsim(Q, unit(7, Ld, 128), path=path)
    compiled: list[str] = []
    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = lambda **event: compiled.append(event["repr"])
    try:
        for step in range(200):
            maxsim.maxsim(Q, unit(1 + step % 23, 1 + 5 * step, 128), path=path)
    finally:
        knobs.runtime.jit_post_compile_hook = before
    assert compiled == []


def test_autocast_does_not_change_what_is_multiplied(path):
    Q, D = unit(2, 8, 64, dtype=torch.float32), unit(3, 9, 64, dtype=torch.float32, seed=1)
    expected = maxsim.maxsim(Q, D, path=path)
    with torch.autocast("cuda", dtype=torch.float16):
        assert torch.equal(maxsim.maxsim(Q, D, path=path), expected)


def test_the_tensors_device_is_used_whichever_is_current(path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    Q, D = unit(2, 8, 64), unit(3, 9, 64, seed=1)
    with torch.cuda.device(1):
        scores = maxsim.maxsim(Q, D, path=path)
    assert scores.device == Q.device
    assert torch.equal(scores, maxsim.maxsim(Q, D, path=path))


def test_a_cpu_query_with_gpu_documents_names_the_argument():
    with pytest.raises(ValueError, match="D: is on cuda"):
        maxsim.maxsim(torch.randn(2, 8), torch.randn(3, 4, 8, device="cuda"))


def test_the_plan_names_kernel_and_ceiling():
    plan = maxsim.explain(unit(1024, 128), unit(100, 1024, 128))
    assert plan.kernel in ("portable", "hopper")
    assert plan.ceiling == "compute"
    assert plan == launch.plan(maxsim.tokens(unit(1024, 128)), maxsim.tokens(unit(100, 1024, 128)))
