"""Ceilings of the device, and how close a call comes to them."""

from __future__ import annotations

import json

import pytest
import torch

from maxsim_bench.measure import ceilings
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


def test_ceilings_survive_a_file(processor: Ceilings) -> None:
    assert Ceilings.from_record(json.loads(json.dumps(processor.to_record()))) == processor


def test_a_record_of_before_short_reads_were_measured_is_read() -> None:
    record = CARD.to_record()
    del record["read_by_bytes"]
    assert Ceilings.from_record(record) == CARD


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
    sheet = peak_of(torch.cuda.get_device_name())
    if sheet is not None:
        assert 0.6 * sheet.gbs < found.read_gbs < 1.05 * sheet.gbs
        assert all(0.2 * sheet.gbs < rate < 1.05 * sheet.gbs for rate in found.read_by_bytes.values())
        assert len(found.read_by_bytes) == 2
        assert 0.4 * sheet.half < found.matmul_tflops["fp16"] < 1.05 * sheet.half
