"""The memory meter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from maxsim_bench.measure import memory

MIB = 1 << 20


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def test_on_a_processor_the_meter_says_nothing() -> None:
    assert memory.measure_peak(lambda: torch.ones(1000), "cpu") is None
    assert memory.allocated("cpu") is None
    assert memory.settle("cpu") is None
    assert memory.leak(None, "cpu") is None


def test_a_cap_changes_nothing_on_a_processor() -> None:
    with memory.cap(1, "cpu"):
        assert torch.ones(1000).sum() == 1000


def test_a_processor_that_computes_passes_the_probe() -> None:
    memory.probe("cpu")


def test_main_memory_that_is_free_is_known() -> None:
    assert memory.available_bytes("cpu") > MIB


@pytest.mark.parametrize(("limit", "left"), [("3000000", 1_500_000), ("1000", 0), ("max", None)])
def test_main_memory_ends_at_the_limit_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, left: int | None
) -> None:
    """2 MB are used, half a megabyte of it by pages of files that the system drops when asked for memory."""
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path / "none")
    without = memory.available_bytes("cpu")
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)
    for name, text in (
        ("max", limit), ("current", "2000000"), ("stat", "anon 1\ninactive_file 300000\nactive_file 200000\n"),
    ):  # fmt: skip
        (tmp_path / f"memory.{name}").write_text(text, "ascii")
    if left is None:
        assert memory.available_bytes("cpu") > without // 2
    else:
        assert memory.available_bytes("cpu") == left


@pytest.mark.gpu
def test_peak_is_what_the_call_needs_whatever_was_there_before() -> None:
    """1 GiB allocated and freed before, 256 MiB of inputs alive, the call needs 64 MiB: 64 MiB."""
    earlier = block(1024)
    del earlier
    inputs = block(256)
    reading = memory.measure_peak(lambda: block(64).fill_(1)[:16].clone(), "cuda")
    assert reading is not None
    assert 64 * MIB <= reading.peak_extra_bytes <= 65 * MIB
    assert inputs.numel() == 256 * MIB


@pytest.mark.gpu
def test_results_count_and_frees_within_the_call_do_not_hide_its_peak() -> None:
    def call() -> torch.Tensor:
        first = block(48)
        del first
        return block(32)

    reading = memory.measure_peak(call, "cuda")
    assert reading is not None
    assert 48 * MIB <= reading.peak_extra_bytes <= 49 * MIB
    assert reading.peak_reserved_bytes >= reading.peak_extra_bytes


@pytest.mark.gpu
def test_a_leak_is_an_error_and_a_library_workspace_is_not() -> None:
    baseline = memory.settle("cuda")
    a = torch.ones(256, 256, device="cuda", dtype=torch.float16)
    assert float((a @ a)[0, 0]) == 256
    del a
    assert memory.leak(baseline, "cuda") is None
    kept = block(8)
    told = memory.leak(baseline, "cuda")
    assert told is not None
    assert str(8 * MIB) in told
    assert kept.numel() == 8 * MIB


@pytest.mark.gpu
def test_memory_that_a_graph_holds_counts_for_its_call() -> None:
    x = block(16)
    pools = memory.graph_pool_bytes()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (x + 1)[:8].clone()
    reading = memory.measure_peak(graph.replay, "cuda", pools)
    assert reading is not None
    assert reading.peak_extra_bytes >= 16 * MIB
    assert out.numel() == 8


@pytest.mark.gpu
def test_a_cap_lets_a_large_card_answer_for_a_small_one() -> None:
    memory.settle("cuda")
    limit = torch.cuda.memory_reserved() + 128 * MIB
    with memory.cap(limit, "cuda"):
        assert memory.available_bytes("cuda", limit) <= limit
        with pytest.raises(torch.OutOfMemoryError):
            block(256)
    assert block(256).numel() == 256 * MIB


@pytest.mark.gpu
def test_a_cap_above_the_card_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_cap"), memory.cap(1 << 50, "cuda"):
        pass
