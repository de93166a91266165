"""Ceilings of the device, and how close a call comes to them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from maxsim.search import search
from maxsim_bench.measure import ceilings, memory
from maxsim_bench.measure.ceilings import Ceilings, Offer, measure_ceilings, percent_of_ceiling
from maxsim_bench.measure.datasheet import impossible, peak_of
from maxsim_bench.measure.timer import TimingBudget

CARD = Ceilings("cuda", {"fp16": 800.0, "tf32": 400.0, "fp32": 50.0}, 4000.0, 0.002, 0.01)
QUICK = TimingBudget(seconds=0.05, min_samples=3, warmup_seconds=0.02)


@pytest.fixture(scope="module")
def processor() -> Ceilings:
    return measure_ceilings("cpu", QUICK)


def test_the_binding_ceiling_is_the_one_that_needs_longest() -> None:
    assert percent_of_ceiling(1.0, 400e9, 1e9, "fp16", CARD) == (pytest.approx(50.0), "compute")
    assert percent_of_ceiling(1.0, 1e9, 2e9, "fp16", CARD) == (pytest.approx(50.0), "memory")
    assert percent_of_ceiling(0.004, 1e6, 1e6, "fp16", CARD) == (pytest.approx(50.0), "launch")


def test_what_comes_from_host_memory_binds_where_copying_it_takes_longest() -> None:
    card = replace(CARD, host_copy_gbs=50.0)
    assert percent_of_ceiling(40.0, 400e9, 1e9, "fp16", card, 1e9) == (pytest.approx(50.0), "copy")
    assert percent_of_ceiling(40.0, 400e9, 1e9, "fp16", card, 1e6) == (pytest.approx(1.25), "compute")
    assert percent_of_ceiling(1.0, 1e9, 2e9, "fp16", card) == (pytest.approx(50.0), "memory")
    assert percent_of_ceiling(40.0, 4e9, 1e9, "fp16", CARD, 1e9) == (pytest.approx(0.625), "memory")


def test_fp32_may_be_served_by_three_products_of_tf32_and_not_of_fp16_whose_range_is_narrower() -> None:
    assert CARD.compute_tflops("fp32") == pytest.approx(400 / 3)
    assert CARD.compute_tflops("tf32") == 400.0
    assert CARD.compute_tflops("int8") is None


def test_without_a_ceiling_there_is_no_percentage() -> None:
    assert percent_of_ceiling(1.0, 1e9, 1e9, "fp16", Ceilings("cpu", {}, None, None, None)) is None


def test_a_processor_has_matrix_rates_and_a_bandwidth_and_no_launch(processor: Ceilings) -> None:
    assert processor.matmul_tflops["fp32"] > 0.001
    assert processor.read_gbs is not None
    assert processor.read_gbs > 0.5
    assert processor.launch_ms is None
    assert processor.host_launch_ms is not None
    assert processor.sources["read"] in ("read_copy", "read_reduction")
    assert processor.host_copy_gbs is None
    assert processor.missing == {}


def test_ceilings_survive_a_file(processor: Ceilings) -> None:
    assert Ceilings.from_record(json.loads(json.dumps(processor.to_record()))) == processor


def test_a_record_of_before_short_reads_were_measured_is_read() -> None:
    record = CARD.to_record()
    del record["read_by_bytes"]
    assert Ceilings.from_record(record) == CARD


def test_a_record_of_before_copies_from_host_memory_were_measured_is_read() -> None:
    """And says nothing of copies, whatever has to be copied."""
    record = replace(CARD, host_copy_gbs=50.0).to_record()
    assert record.pop("host_copy_gbs") == 50.0
    assert Ceilings.from_record(record) == CARD
    assert percent_of_ceiling(40.0, 4e9, 1e9, "fp16", Ceilings.from_record(record), 1e9) == (
        pytest.approx(0.625), "memory",
    )  # fmt: skip


class Card:
    """A card that is not there: every call takes 5 ms by its clock; what is pinned, copied and released is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.pinned: list[int] = []
        self.copied: list[tuple[int, bool]] = []
        self.timed: dict[str, tuple[str, TimingBudget]] = {}
        self.released = 0
        self.fails = fails
        ones, empty_like = torch.ones, torch.empty_like

        def pinned_ones(*size: Any, pin_memory: bool = False, **given: Any) -> torch.Tensor:
            made = ones(*size, **given)
            self.pinned += [made.nbytes] if pin_memory else []
            return made

        monkeypatch.setattr(torch, "ones", pinned_ones)
        monkeypatch.setattr(torch, "empty_like", lambda like, device: Card.Memory(self, empty_like(like), device))
        monkeypatch.setattr(ceilings, "_COPY_BYTES", 1 << 12)
        monkeypatch.setattr(ceilings, "_time", self._time)
        monkeypatch.setattr(ceilings.memory, "release_pinned", self._release)

    class Memory:
        """Where a copy goes to."""

        def __init__(self, card: Card, tensor: torch.Tensor, device: str) -> None:
            assert device == "cuda"
            self.card, self.tensor = card, tensor

        def copy_(self, source: torch.Tensor, non_blocking: bool) -> None:
            self.tensor.copy_(source)
            self.card.copied.append((source.nbytes, non_blocking))

    def _time(self, make: Callable[[], Callable[[], object]], policy: str, budget: TimingBudget, device: str) -> float:
        if make is ceilings._host_copy:
            if self.fails:
                raise RuntimeError(self.fails)
            make()()
            self.timed["host_copy"] = (policy, budget)
        return 5.0

    def _release(self) -> None:
        self.released += 1


def test_copies_from_pinned_memory_are_measured_in_less_than_a_second_and_the_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card(monkeypatch)
    found = measure_ceilings("cuda", QUICK)
    assert found.host_copy_gbs == pytest.approx((1 << 12) / 5e-3 / 1e9)
    assert card.pinned == [1 << 12]
    assert card.copied == [(1 << 12, True)]
    policy, budget = card.timed["host_copy"]
    assert policy == "warm_l2"
    assert budget.warmup_seconds > 0
    assert budget.min_samples > 3
    assert budget.seconds + budget.warmup_seconds + budget.check_seconds < 0.5
    assert card.released == 1
    assert set(found.matmul_tflops) == {"fp16", "bf16", "tf32", "fp32", "int8"}


def test_a_host_that_pins_nothing_is_named_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, fails="no pinned memory left")
    found = measure_ceilings("cuda", QUICK)
    assert found.host_copy_gbs is None
    assert "no pinned memory left" in found.missing["host_copy"]
    assert card.released == 1
    assert found.read_gbs is not None


def test_blocks_are_as_large_as_those_that_a_search_streams() -> None:
    assert inspect.signature(search).parameters["block_bytes"].default == ceilings._COPY_BYTES


@pytest.mark.parametrize("public", [True, False])
def test_pinned_memory_is_released_once_copies_are_done(monkeypatch: pytest.MonkeyPatch, public: bool) -> None:
    """By the name that the installed torch has for it."""
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("synchronize"))
    if public:
        monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: done.append("public"), raising=False)
    else:
        monkeypatch.delattr(torch.accelerator, "empty_host_cache", raising=False)
        monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: done.append("private"), raising=False)
    memory.release_pinned()
    assert done == ["synchronize", "public" if public else "private"]


def test_what_a_short_launch_reads_is_measured_as_rows_are_in_less_than_a_second(
    processor: Ceilings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the L2 cold, by a call that reads exactly so many bytes."""
    assert list(processor.read_by_bytes) == ["4194304", "33554432"]
    assert all(rate > 0.1 for rate in processor.read_by_bytes.values())
    timed: list[tuple[str, int, TimingBudget]] = []

    def time_once(make: object, policy: str, budget: TimingBudget, device: str) -> float:
        call = make()  # type: ignore[operator]
        source = call.__closure__[0].cell_contents if call.__closure__ else None
        timed.append((policy, source.nbytes if isinstance(source, torch.Tensor) else 0, budget))
        return 1.0

    monkeypatch.setattr(ceilings, "_time", time_once)
    monkeypatch.setitem(ceilings._MATRIX, "cpu", 64)
    found = measure_ceilings("cpu", QUICK)
    short = [(size, budget) for policy, size, budget in timed if policy == "cold_l2"]
    assert [size for size, _ in short] == [4194304, 33554432]
    assert sum(budget.seconds + budget.warmup_seconds for _, budget in short) < 1.0
    assert found.read_by_bytes == {"4194304": pytest.approx(4.194304), "33554432": pytest.approx(33.554432)}
    assert ceilings._SHORT_BYTES["cuda"] == (1000 * 300 * 128 * 2, 10000 * 300 * 128 * 2)


def test_a_short_read_that_fails_is_named_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings._MATRIX, "cpu", 64)
    monkeypatch.setitem(ceilings._STREAM_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._SHORT_BYTES, "cpu", (1 << 20, 1 << 62))
    found = measure_ceilings("cpu", QUICK)
    assert list(found.read_by_bytes) == [str(1 << 20)]
    assert f"read_by_bytes {1 << 62}" in found.missing


def test_an_offer_raises_a_ceiling_and_a_broken_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings._MATRIX, "cpu", 64)
    monkeypatch.setitem(ceilings._STREAM_BYTES, "cpu", 1 << 20)

    def broken() -> object:
        raise RuntimeError("no such tile")

    x = torch.ones(8)
    offers = [Offer("mma_loop", "fp32", lambda: x.sum, 1e15), Offer("broken", "fp32", lambda: broken, 1.0)]
    found = measure_ceilings("cpu", TimingBudget(seconds=0.01, min_samples=3, warmup_seconds=0.01), offers)
    assert found.sources["fp32"] == "mma_loop"
    assert "no such tile" in found.missing["broken"]


def test_a_time_beyond_the_data_sheet_is_refused_as_not_synchronised() -> None:
    sheet = peak_of("NVIDIA H200")
    assert sheet is not None
    assert impossible(1.0, 900e9, 1e9, "fp16", sheet, cold=True) is None
    told = impossible(1.0, 2000e9, 1e9, "fp16", sheet, cold=True)
    assert told is not None
    assert told.startswith("not synchronised")
    assert impossible(1.0, 1e9, 9e9, "fp16", sheet, cold=True) is not None
    assert impossible(1.0, 1e9, 9e9, "fp16", sheet, cold=False) is None


def test_an_unknown_card_refuses_nothing() -> None:
    assert peak_of("Some Card") is None
    assert impossible(1e-9, 1e15, 1e15, "fp16", None, cold=True) is None


@pytest.mark.parametrize(
    ("name", "gbs"),
    [
        ("NVIDIA H200", 4800),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA GH200 480GB", 4900),
        ("NVIDIA L40S", 864),
        ("NVIDIA L4", 300),
    ],
)
def test_cards_are_found_by_the_name_the_driver_gives(name: str, gbs: float) -> None:
    sheet = peak_of(name)
    assert sheet is not None
    assert sheet.gbs == gbs


@pytest.mark.gpu
def test_a_card_reaches_much_of_its_data_sheet_and_never_more() -> None:
    found = measure_ceilings("cuda")
    assert found.missing == {}
    assert found.read_gbs is not None
    assert found.launch_ms is not None
    assert 0.0005 < found.launch_ms < 0.02
    assert found.host_copy_gbs is not None
    assert 1 < found.host_copy_gbs < found.read_gbs
    sheet = peak_of(torch.cuda.get_device_name())
    if sheet is not None:
        assert 0.6 * sheet.gbs < found.read_gbs < 1.05 * sheet.gbs
        assert all(0.2 * sheet.gbs < rate < 1.05 * sheet.gbs for rate in found.read_by_bytes.values())
        assert len(found.read_by_bytes) == 2
        assert 0.4 * sheet.half < found.matmul_tflops["fp16"] < 1.05 * sheet.half
