"""The portable kernel: the order of its additions, and what makes Triton compile it anew. No GPU needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from maxsim import tokens
from maxsim.fused import launch, portable
from maxsim.fused.launch import choose


class Recorder:
    """Stands in for a kernel and keeps what it would have been launched with."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.launches.append((args, options))


@pytest.fixture
def compile_key(monkeypatch):
    """The key under which Triton would cache the compiled kernel of a call, on an imaginary sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel = portable.score_kernel
    binder = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))

    def key(q: Any, d: Any, pairing: str = "all", argmax: bool = False) -> str:
        recorder = Recorder()
        monkeypatch.setattr(portable, "score_kernel", recorder)
        monkeypatch.setattr(portable, "add_slices_kernel", Recorder())
        plan = choose(90, q.dtype, q.d, q.count, q.max_length, d.max_length, d.count, pairing)
        dtype = torch.int16 if argmax else None
        portable.forward(q, d, pairing=pairing, argmax_dtype=dtype, plan=plan)
        args, options = recorder.launches[0]
        _, specialization, _ = binder(*args, **options)
        return str((specialization, options["num_warps"], options["num_stages"]))

    return key


def test_two_hundred_lengths_and_counts_compile_once(compile_key):
    q = tokens(torch.zeros(4, 32, 128, dtype=torch.float16))
    keys = {
        compile_key(q, tokens(torch.zeros(1 + step % 23, 1 + 5 * step, 128, dtype=torch.float16)))
        for step in range(200)
    }
    assert len(keys) == 1


def test_query_lengths_and_counts_of_one_tile_compile_once(compile_key):
    d = tokens(torch.zeros(7, 50, 128, dtype=torch.float16))
    for lengths, counts in ((range(129, 1200, 53), (1, 2, 50)), (range(17, 33), (4, 5, 100))):
        keys = {compile_key(tokens(torch.zeros(n, L, 128, dtype=torch.float16)), d) for L in lengths for n in counts}
        assert len(keys) == 1


def test_packed_batches_of_any_content_compile_once(compile_key):
    q = tokens(torch.zeros(2, 32, 128, dtype=torch.float16))
    keys = set()
    for n in (1, 2, 16, 17, 100):
        lengths = torch.randint(0, 50, (n,), generator=torch.Generator().manual_seed(n))
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        keys.add(compile_key(q, tokens(torch.zeros(int(offsets[-1]), 128, dtype=torch.float16), cu_seqlens=offsets)))
    assert len(keys) == 1


@pytest.mark.parametrize("seed", range(3))
def test_row_maxima_are_added_in_an_order_that_packing_and_padding_do_not_change(interpreter, seed):
    """Similarities are exact here (one non-zero product each), sums are not: equal bits mean equal order."""
    generator = torch.Generator().manual_seed(seed)
    Q = torch.zeros(5, 40, 16)
    Q[..., 0] = torch.randn(5, 40, generator=generator) * 10.0 ** torch.randint(-4, 5, (5, 40), generator=generator)
    D = torch.zeros(3, 6, 16)
    D[..., 0] = torch.tensor([1.0, -2.0, 4.0, 0.5, 8.0, -1.0])
    d = tokens(D)

    def bits(q: Any, block_m: int, group: int, slices: int = 1, docs: int = 1) -> torch.Tensor:
        plan = replace(
            choose(80, torch.float32, 16, q.count, q.max_length, 6, 3),
            block_m=block_m, group=group, slices=slices, docs_per_program=docs,
        )  # fmt: skip
        return interpreter.submit(
            portable.forward, q, d, pairing="all", argmax_dtype=None, plan=plan
        ).result(timeout=240)[0]  # fmt: skip

    whole = bits(tokens(Q), 128, 64)
    assert not torch.equal(whole, Q[..., 0].new_zeros(whole.shape))
    assert torch.equal(bits(tokens(Q), 64, 64), whole)
    assert torch.equal(bits(tokens(Q), 128, 128, docs=3), whole)
    assert torch.equal(bits(tokens(Q[2]), 64, 64)[0], whole[2])
    padded = torch.nn.functional.pad(Q, (0, 0, 0, 200), value=float("nan"))
    q = replace(tokens(padded, lengths=torch.full((5,), 40)), max_length=240)
    assert torch.equal(bits(q, 128, 128, slices=2), whole)


def test_extra_memory_is_scores_and_one_partial_sum_a_slice(monkeypatch):
    q, d = tokens(torch.zeros(2, 300, 16)), tokens(torch.zeros(5, 7, 16))
    scores, adds = Recorder(), Recorder()
    monkeypatch.setattr(portable, "score_kernel", scores)
    monkeypatch.setattr(portable, "add_slices_kernel", adds)
    plan = choose(80, torch.float32, 16, 2, 300, 7, 5)
    portable.forward(q, d, pairing="all", argmax_dtype=None, plan=plan)
    assert scores.launches[0][0][6].shape == (3, 2, 5)
    assert len(adds.launches) == 1
    short = tokens(torch.zeros(2, 128, 16))
    portable.forward(short, d, pairing="all", argmax_dtype=None, plan=choose(80, torch.float32, 16, 2, 128, 7, 5))
    assert scores.launches[1][0][6].shape == (2, 5)
    assert len(adds.launches) == 1


def test_more_programs_than_a_grid_holds_are_folded_into_loops(monkeypatch):
    monkeypatch.setattr(portable, "_GRID_LIMIT", 8)
    recorder = Recorder()
    monkeypatch.setattr(portable, "score_kernel", recorder)
    q, d = tokens(torch.zeros(2, 128, 16)), tokens(torch.zeros(50, 7, 16))
    plan = choose(80, torch.float32, 16, 2, 128, 7, 50)
    portable.forward(q, d, pairing="all", argmax_dtype=None, plan=plan)
    row_tiles, doc_programs = recorder.launches[0][0][-2:]
    assert row_tiles * doc_programs <= 8


def test_plans_for_the_interpreter_need_no_device():
    with pytest.raises(ValueError, match="TRITON_INTERPRET"):
        launch.plan(tokens(torch.zeros(1, 2, 16)), tokens(torch.zeros(1, 2, 16)), path="portable")
