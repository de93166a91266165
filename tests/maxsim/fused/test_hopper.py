"""The Hopper forward, host side: what it refuses and why, what it launches, and how often it would compile. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from maxsim import tokens
from maxsim.fused import hopper, hopper_launch
from maxsim.fused.launch import LaunchPlan

COMPILED = ("BM", "BN", "BR", "BK", "KS", "KC", "KI", "ST", "QST", "NC", "G", "SUM", "SHARED", "BALANCED", "ARGMAX")


def batch(*shape: int, dtype: torch.dtype = torch.float16) -> Any:
    return tokens(torch.zeros(shape, dtype=dtype))


@pytest.fixture
def launches(monkeypatch) -> list[dict[str, Any]]:
    """Arguments by name of every kernel that `forward` would launch; of what is copied in boxes, their rows, columns.

    The embeddings themselves are not kept: hundreds of calls would need the memory of all of them at a time.
    """
    pytest.importorskip("triton")
    from maxsim.fused import hopper_kernels

    seen: list[dict[str, Any]] = []

    def record(self, grid, boxes, pointers, integers):
        names = getattr(hopper_kernels, self.name).arg_names
        values = [*((box.rows, box.columns) for box in boxes), *pointers, *integers, *self.constants]
        assert len(values) == len(names)
        arguments = dict(zip(names, values, strict=True))
        seen.append({"kernel": self.name, "grid": grid, "options": self.options, **arguments})

    monkeypatch.setattr(hopper_launch.Kernel, "__call__", record)
    monkeypatch.setattr(hopper_launch, "_KERNELS", {})
    monkeypatch.setattr(hopper, "_FOUND", {})
    return seen


def test_a_cpu_is_refused_by_name():
    assert "needs a CUDA device" in hopper.supports(batch(1, 32, 128), batch(4, 10, 128))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (batch(2, 4, 128, dtype=torch.float64), "dtype torch.float64"),
        (batch(2, 4, 100), "d = 100 is not a multiple of 8"),
        (batch(2, 0, 128), "no tokens"),
        (batch(0, 4, 128), "no tokens"),
        (
            tokens(torch.zeros(1, 4, 128, dtype=torch.float16).expand(2**31, 4, 128)),
            "2147483648 sequences, more than the kernel counts in 32 bits",
        ),
        (tokens(torch.zeros(2, 4, 132, dtype=torch.float16)[:, :, :128]), "row stride 132"),
        (tokens(torch.zeros(2 * 4 * 128 + 1, dtype=torch.float16)[1:].view(2, 4, 128)), "16-byte boundary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_tensor_map_cannot_address_is_refused_with_the_reason(x, reason):
    assert reason in hopper._unaddressable(x)


@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 5, 96), (2, 4, 2048)])
def test_aligned_rows_are_accepted(shape):
    assert hopper._unaddressable(batch(*shape)) is None


def test_every_second_token_and_an_expanded_query_are_addressed_in_place():
    assert hopper._unaddressable(tokens(torch.zeros(3, 8, 64, dtype=torch.bfloat16)[:, ::2])) is None
    assert hopper._unaddressable(tokens(torch.zeros(1, 8, 64, dtype=torch.bfloat16).expand(5, 8, 64))) is None


def test_one_launch_writes_the_scores_of_a_short_query(launches):
    scores = hopper.forward(batch(1, 32, 128), batch(50, 300, 128))
    assert scores.shape == (1, 50)
    assert [x["kernel"] for x in launches] == ["maxsim_forward"]
    assert launches[0]["out_ptr"] is scores


def test_partial_sums_of_a_long_query_are_added_by_a_second_launch(launches):
    scores = hopper.forward(batch(1, 1024, 128), batch(1000, 20, 128))
    first, second = launches
    assert second["kernel"] == "add_sums"
    assert second["part_ptr"] is first["out_ptr"]
    assert second["out_ptr"] is scores
    assert first["out_ptr"].numel() == second["sums"] * scores.numel()


def test_the_grid_that_adds_partial_sums_lies_along_x(launches):
    """A grid has 2^31 - 1 places along x and 65 535 along y, fewer than there may be pairs of texts."""
    hopper.forward(batch(3, 1024, 128), batch(129, 20, 128))
    hopper.forward(batch(70_000, 200, 8), batch(70_000, 1, 8), pairing="pairs")
    grids = [launch["grid"] for launch in launches if launch["kernel"] == "add_sums"]
    assert grids == [(3 * 2, 1), (70_000, 1)]


def test_numbers_that_two_units_add_to_are_zero_before(launches):
    """A query of 65 to 128 tokens above d = 512 has two units of rows and no second launch."""
    out = torch.full((2, 7), torch.nan)
    hopper.forward(batch(2, 100, 1024), batch(7, 20, 1024), out=out)
    scores = hopper.forward(batch(2, 100, 1024), batch(7, 20, 1024))
    assert [x["kernel"] for x in launches] == ["maxsim_forward"] * 2
    assert (out == 0).all()
    assert (scores == 0).all()
    hopper.forward(batch(1, 300, 1024), batch(7, 20, 1024))
    assert (launches[2]["out_ptr"] == 0).all()
    assert launches[2]["out_ptr"].shape == (1, 3, 7)


def test_the_argmax_is_narrow_where_every_row_fits(launches):
    short, long = batch(3, 300, 8), batch(2, 40_000, 8)
    q = batch(3, 5, 8)
    assert hopper.forward(q, short, pairing="pairs", argmax=True)[1].dtype == torch.int16
    winners = hopper.forward(q, long, argmax=True)[1]
    assert (winners.dtype, winners.shape) == (torch.int32, (3, 2, 5))


def test_scores_go_into_a_given_tensor(launches):
    out = torch.empty(1, 50)
    assert hopper.forward(batch(1, 32, 128), batch(50, 300, 128), out=out) is out


def dense(K: int, Ld: int) -> Any:
    """K documents of Ld tokens."""
    return tokens(unwritten(K * Ld).view(K, Ld, 128))


def packed(K: int, Ld: int) -> Any:
    """K documents of one to Ld tokens, one behind the other; the longest comes first."""
    lengths = torch.randint(1, Ld + 1, (K,), generator=torch.Generator().manual_seed(K * Ld))
    lengths[0] = Ld
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return tokens(unwritten(int(offsets[-1])), cu_seqlens=offsets)


def unwritten(rows: int) -> torch.Tensor:
    """Embeddings [rows, 128] that nobody reads or writes, not even `torch.empty` in tests: they take no memory."""
    return torch.from_numpy(np.empty((rows, 128), np.float16))


@pytest.mark.parametrize(("documents", "count"), [(dense, 4), (packed, 5)], ids=["dense", "packed"])
def test_two_hundred_lengths_and_counts_need_few_binaries(launches, documents, count):
    """For fewer documents than programs, for up to two each, and two rings where two programs share a processor.

    Packed documents are cut into blocks of equal rows, but for a single block: that is one more.
    """
    q = batch(1, 32, 128)
    for step in range(200):
        hopper.forward(q, documents(1 + 7 * step % 300, 1 + 25 * step))
    names = ("q_desc", "d_desc", *COMPILED)  # a tensor map's box is a compile-time shape, too
    assert len({tuple(x[name] for name in names) for x in launches}) == count
    assert all(isinstance(x[name], int) for x in launches for name in ("K", "d_pitch", "d_max", "n_chunks"))


@pytest.mark.parametrize(
    ("K", "Lq", "programs", "options"),
    [
        (1000, 32, 2, {"maxnreg": 128}),
        (1000, 128, 2, {"maxnreg": 128}),
        (100, 32, 1, {}),
        (1000, 1024, 1, {}),
    ],
)
def test_threads_are_limited_to_half_of_the_registers_where_two_programs_share_a_processor(
    launches, K, Lq, programs, options
):
    """65536 registers for two programs of eight warps: a consumer's four, and four that hold the loader.

    A program that has a processor to itself is not limited: setmaxnreg gives its consumers more than 128.
    """
    assert 2 * 8 * 32 * hopper.SHARING_REGISTERS == 65536
    q, d = batch(1, Lq, 128), dense(K, 40)
    plan = hopper.plan(q, d)
    assert plan.per_processor == programs
    hopper.forward(q, d, plan=plan)
    assert [x["options"] for x in launches] == [options] + [{}] * (len(launches) - 1)


def test_a_plan_of_another_kernel_is_refused_by_name():
    with pytest.raises(ValueError, match="'portable'"):
        hopper.forward(batch(1, 32, 128), batch(4, 10, 128), plan=LaunchPlan("portable"))
