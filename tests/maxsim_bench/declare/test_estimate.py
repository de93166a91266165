"""Sizes of a cell by hand arithmetic, and cards by the names drivers give them."""

from __future__ import annotations

from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.estimate import (
    call_seconds,
    capacity,
    eager_bytes,
    flops,
    gpu_key,
    input_bytes,
    known_gpus,
    mean_length,
    pairs,
    plan_seconds,
)
from maxsim_bench.declare.experiment import Plan, Planned, Timing


def cell(**changes: Any) -> Cell:
    fields: dict[str, Any] = {"Nq": 2, "B": 10, "Lq": 3, "Ld": 5, "d": 8, "dtype": "fp16"}
    return Cell(**{"experiment": "x", "gpu": "a100-40gb", "op": "forward", **fields, **changes})


def test_bytes_and_arithmetic_of_a_dense_cell() -> None:
    assert input_bytes(cell()) == 2 * 8 * (2 * 3 + 10 * 5)
    assert eager_bytes(cell()) == 2 * 20 * 3 * 5
    assert flops(cell()) == 2 * 20 * 3 * 5 * 8


def test_pairs_and_candidates_count_their_own_documents() -> None:
    assert pairs(cell(pairing="pairs")) == 10
    assert input_bytes(cell(pairing="candidates")) == 2 * 8 * (2 * 3 + 20 * 5)


def test_packed_documents_take_their_mean_length() -> None:
    ragged = cell(layout="packed", Ld=9, length_distribution="uniform:1:5")
    assert mean_length(ragged) == 3
    assert input_bytes(ragged) == 2 * 8 * (2 * 3 + 10 * 3)


def test_a_cap_bounds_the_card_and_a_card_the_cap() -> None:
    assert capacity(cell(memory_cap=10**9)) == 10**9
    assert capacity(cell(memory_cap=10**12)) == 42_400_000_000
    assert capacity(cell(gpu="l40s")) is None


def test_more_work_takes_longer_on_every_known_card() -> None:
    for gpu in known_gpus():
        assert call_seconds(cell(gpu=gpu, B=10**6)) > call_seconds(cell(gpu=gpu))


@pytest.mark.parametrize(
    ("name", "memory", "key"),
    [
        ("NVIDIA H200", 150.1e9, "h200"),
        ("NVIDIA A100-SXM4-40GB", 42.4e9, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 85.0e9, "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", 85.0e9, "h100-80gb"),
        ("NVIDIA L4", 23.6e9, "l4"),
        ("NVIDIA L40S", 47.7e9, "nvidia-l40s"),
        ("NVIDIA GeForce RTX 4090", 25.3e9, "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", 25.3e9, "nvidia-geforce-rtx-4090-d"),
    ],
)
def test_a_card_is_known_by_name_and_memory_or_named_after_itself(name: str, memory: float, key: str) -> None:
    assert gpu_key(name, int(memory)) == key


def test_a_search_fills_host_memory_and_copies_it_and_materialises_nothing() -> None:
    """26 GB: about a second a GB for every backend, and copies of it; the similarity tensor would be 210 GB."""
    pages = cell(op="search", B=100_000, Lq=1024, Ld=1024, d=128, k=10)
    assert call_seconds(pages) == pytest.approx(26.2 / 25, rel=0.01)
    timing = Timing(seconds=1.0, min_samples=2, max_samples=2, timeout_s=900.0)
    plan = Plan(planned=[Planned(cell=pages, backends=("search", "search_int8"))], left_out=[])
    assert plan_seconds(plan, timing) == pytest.approx(2 * (0.5 + 26.2 + 7 * 26.2 / 25), rel=0.01)
    block = pages.model_copy(update={"variant": "drawn=10000"})
    plan = Plan(planned=[Planned(cell=block, backends=("search", "search_int8"))], left_out=[])
    assert plan_seconds(plan, timing) == pytest.approx(2 * (0.5 + 2.62 + 7 * 26.2 / 25), rel=0.01), "copied whole"


def test_a_plan_counts_no_backend_for_longer_than_it_may_take() -> None:
    """Set-up, overhead, five calls and the samples, which are at least so many; past its timeout it is given up."""
    small, large = cell(), cell(op="training_step", Nq=65536, B=65536, Lq=1024, Ld=1024, d=128)
    timing = Timing(seconds=2.0, min_samples=5, max_samples=10**6, timeout_s=100.0, setup_seconds={"b": 7.0})
    plan = Plan(planned=[Planned(cell=small, backends=("a", "b"))], left_out=[])
    assert plan_seconds(plan, timing) == pytest.approx(2 * (0.5 + 2.0) + 7.0, rel=1e-3)
    assert call_seconds(large) > 100
    plan = Plan(planned=[Planned(cell=large, backends=("a", "b"))], left_out=[])
    assert plan_seconds(plan, timing) == 200


@pytest.mark.parametrize(
    ("B", "Lq", "seconds"), [(64, 53, 8.29), (128, 57, 16.59), (64, 1030, 16.21), (96, 1030, 24.81)]
)
def test_a_step_with_an_encoder_is_told_to_take_about_what_was_published(B: int, Lq: int, seconds: float) -> None:
    """ColPali on an A100; scores alone would be a hundredth of it. Small batches were published with what compiles."""
    step = cell(
        gpu="a100-80gb", op="training_step", Nq=B, B=B, Lq=Lq, Ld=1030, d=128, dtype="bf16",
        variant="checkpoint=true;encoder=colpali-v1.2",
    )  # fmt: skip
    assert call_seconds(step) == pytest.approx(seconds, rel=0.15)
    assert call_seconds(step.model_copy(update={"variant": "checkpoint=true"})) < 0.05 * seconds


def test_an_encoder_takes_a_step_more_whenever_it_is_prepared() -> None:
    timing = Timing(seconds=0.1, min_samples=3, max_samples=3, timeout_s=900.0)
    fields = {"gpu": "a100-80gb", "op": "training_step", "Nq": 64, "B": 64, "Lq": 53, "Ld": 1030, "d": 128}
    step = cell(**fields, dtype="bf16", variant="checkpoint=true;encoder=colpali-v1.2")
    plan = Plan(planned=[Planned(cell=step, backends=("a",))], left_out=[])
    assert plan_seconds(plan, timing) == pytest.approx(0.5 + (9 + 3) * call_seconds(step))
