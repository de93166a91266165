"""The procedure for a cell: honest backends get numbers, every way to cheat is caught and named."""

from __future__ import annotations

import gc
import itertools
import json
import pkgutil
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure.memory import MemoryReading
from maxsim_bench.measure.timer import TimingBudget
from maxsim_bench.record.row import MEASURED, Row
from maxsim_bench.run.executor import LocalExecutor
from maxsim_bench.run.protocol import CellRequest, CellResult, Hello, WorkerSetup
from maxsim_bench.run.session import CellSession

QUICK = TimingBudget(seconds=0.1, min_samples=8, max_samples=60, warmup_seconds=0.01, check_seconds=0.005)
# The rate of a machine on which a copy of 20 numbers cannot be the work of the cell that the tests use for it.
SLOW_MACHINE = {
    "device": "cpu", "matmul_tflops": {"fp32": 0.2}, "read_gbs": 5.0, "launch_ms": None, "host_launch_ms": 0.001,
}  # fmt: skip

Measure = Callable[..., CellResult]


@pytest.fixture
def measure(make_cell: Callable[..., Cell]) -> Measure:
    """Measure backends of `measured_backends` on one small cell, in this process."""

    def call(*backends: str, device: str = "cpu", ceilings: dict[str, Any] | None = None, **axes: Any) -> CellResult:
        import measured_backends

        measured_backends._BY_ADDRESS.clear()
        session = CellSession(device, measured_backends.get)
        request = CellRequest(
            make_cell(**axes), backends, dict.fromkeys(backends, "1"), backends[0], budget=QUICK, ceilings=ceilings
        )
        return session.measure(request, lambda step: None)

    return call


def by_name(result: CellResult) -> dict[str, Row]:
    return {row.backend: row for row in result.rows}


def refused(row: Row, words: str, status: str = "incorrect") -> None:
    """The row has this status, says why, and holds no number that only a good one may hold."""
    assert row.status == status, row.error
    assert row.error is not None
    assert words in row.error
    assert all(getattr(row, name) is None for name in MEASURED)


def test_honest_backends_get_times_and_paired_speedups(measure: Measure) -> None:
    result = measure("honest", "honest_too", ceilings=SLOW_MACHINE | {"matmul_tflops": {"fp32": 10.0}})
    one, two = by_name(result).values()
    assert one.status == two.status == "ok"
    assert one.latency_p20_ms is not None
    assert one.latency_ms is not None
    assert one.latency_p20_ms <= one.latency_ms
    assert one.speedup == 1.0
    assert two.speedup is not None
    assert two.speedup_low is not None
    assert two.speedup_high is not None
    assert two.speedup_low <= two.speedup <= two.speedup_high
    assert two.speedup_baseline == "honest"
    assert two.flops == 2 * 20 * 8 * 12 * 16
    assert two.tflops == pytest.approx(two.flops / two.latency_ms / 1e9)
    assert two.percent_of_ceiling is not None
    assert two.ceiling in ("compute", "memory")
    assert json.loads(two.extra or "")["timing_policy"] == "host"


@pytest.mark.parametrize("crosses", [True, False])
def test_a_cell_whose_documents_cross_is_judged_by_the_copy(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, crosses: bool
) -> None:
    monkeypatch.setattr("maxsim_bench.run.measure_cell.documents_cross", lambda inputs, device: crosses)
    (row,) = measure("honest", ceilings=SLOW_MACHINE | {"host_copy_gbs": 1e-3}).rows
    assert row.status == "ok", row.error
    assert (row.ceiling == "copy") == crosses
    assert ("percent_of_copy" in json.loads(row.extra or "")) == crosses


def test_samples_are_kept_raw_with_their_order(measure: Measure) -> None:
    result = measure("honest", "honest_too")
    assert set(result.samples) == {row.key for row in result.rows}
    both = list(result.samples.values())
    assert len(both[0]["ms"]) == len(both[0]["round"]) == len(both[0]["position"]) == result.rows[0].samples
    positions = sorted(both[0]["position"] + both[1]["position"])
    assert positions == list(range(len(positions)))
    assert both[0]["interleaved_with"] == ["honest", "honest_too"]


def test_on_a_processor_memory_is_empty_and_not_zero(measure: Measure) -> None:
    (row,) = measure("honest").rows
    assert row.peak_extra_bytes is None
    assert row.peak_reserved_bytes is None
    assert row.prepare_bytes is None
    assert row.input_bytes == (8 * 16 + 20 * 12 * 16) * 4


def test_the_longest_of_ragged_documents_is_told(measure: Measure) -> None:
    ragged = {"layout": "masked", "length_distribution": "uniform:3:9", "B": 200}
    told = [json.loads(measure("honest", **axes).rows[0].extra or "") for axes in (ragged, {})]
    assert [extra.get("longest_document") for extra in told] == [9, None]


def test_the_reference_against_itself_is_exact_and_as_fast(measure: Measure) -> None:
    """Both sides are the same code: no error at all, and a ratio of times whose interval holds 1."""
    row = by_name(measure("honest", "reference"))["reference"]
    assert row.status == "ok"
    assert row.max_abs_err == row.max_rel_err == 0.0
    assert row.speedup_low is not None
    assert row.speedup_high is not None
    assert row.speedup_low <= 1.1
    assert row.speedup_high >= 0.9


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("stale", "stale answer"),
        ("overwrites", "overwrites its inputs"),
        ("casts_down", "cast of fp32 operands to a narrower type"),
        ("skips_tail", "skips the tail: wrong from document 18"),
        ("by_address", "on fresh inputs"),
        ("overwrites_later", "overwrites its inputs while it is timed"),
        ("wrong_shape", "returns shape [1, 1]"),
    ],
)
def test_a_dishonest_backend_is_caught_named_and_alone_to_blame(measure: Measure, backend: str, words: str) -> None:
    rows = by_name(measure("honest", backend, "honest_too"))
    refused(rows[backend], words)
    assert rows["honest"].status == rows["honest_too"].status == "ok"


def test_inputs_that_were_overwritten_in_timing_are_drawn_again_where_they_lie(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second corpus beside the first may not fit. Here every set can be drawn in place, as those of a search are."""
    from maxsim_bench.run import measure_cell

    fresh, again = [], []
    honest = measure_cell.draw_inputs

    def drawn(cell: Cell, device: str, index: int) -> Any:
        fresh.append(index)
        return honest(cell, device, index)

    def in_place(used: Any, cell: Cell, device: str, index: int) -> Any:
        again.append(index)
        for old, new in zip(used.tensors(), honest(cell, device, index).tensors(), strict=True):
            old.copy_(new)
        return used

    monkeypatch.setattr(measure_cell, "draw_inputs", drawn)
    monkeypatch.setattr(measure_cell, "draw_again", in_place)
    rows = by_name(measure("honest", "overwrites_later"))
    refused(rows["overwrites_later"], "overwrites its inputs while it is timed")
    assert rows["honest"].status == "ok"
    sets = json.loads(rows["honest"].extra or "")["input_sets"]
    assert sets >= 2
    assert fresh == [0, *range(2, sets + 1)]
    assert again[: sets + 1] == [1, *range(1, sets + 1)]


def test_a_copy_of_an_old_result_is_too_fast_for_the_work(measure: Measure) -> None:
    rows = by_name(measure("honest", "memoised", ceilings=SLOW_MACHINE, Lq=64, Ld=128, B=100, d=128))
    refused(rows["memoised"], "not synchronised")
    assert rows["honest"].status == "ok"


def test_an_exception_is_a_row_with_its_place(measure: Measure) -> None:
    rows = by_name(measure("honest", "raises"))
    refused(rows["raises"], "ValueError: this shape is beneath me (measured_backends.py:", "error")
    assert rows["honest"].status == "ok"


def test_a_real_refusal_of_memory_is_oom(measure: Measure) -> None:
    rows = by_name(measure("honest", "out_of_memory"))
    assert rows["out_of_memory"].status == "oom"
    assert rows["honest"].status == "ok"


def test_inputs_that_do_not_fit_are_oom_for_every_backend(measure: Measure) -> None:
    rows = measure("honest", "honest_too", B=10**9, Ld=10**4, d=10**3).rows
    assert [row.status for row in rows] == ["oom", "oom"]
    assert all("do not fit" in (row.error or "") for row in rows)


def test_inputs_that_host_memory_has_no_room_for_are_oom_with_both_sizes(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12.8 GB that a system would grant, and end the process that fills them."""
    from maxsim_bench.run import cell_inputs

    monkeypatch.setattr(cell_inputs.memory, "available_bytes", lambda *_: 8 * 10**9)
    monkeypatch.setattr(cell_inputs, "make_inputs", lambda *_: pytest.fail("drawn"))
    rows = measure("honest", "honest_too", B=250_000, Ld=100, d=128).rows
    assert [row.status for row in rows] == ["oom", "oom"]
    told = "the inputs take 12.8 GB of host memory, where 8.0 GB are free"
    assert all(told in (row.error or "") for row in rows)


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize(
    "helper",
    [
        "measure_cell.checksum", "measure_cell.draw_inputs", "measure_cell.truths_of",
        "measure_cell.poison_free_memory", "truth.compare", "truth.agreement.rankings",
    ],
)  # fmt: skip
def test_wherever_the_harness_runs_out_of_memory_rows_say_that_inputs_do_not_fit(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, helper: str, call: int
) -> None:
    """A cap leaves little beside full inputs: no exception of the harness's own may leave the worker."""
    import torch

    module, _, name = f"maxsim_bench.run.{helper}".rpartition(".")
    holder = pkgutil.resolve_name(module)
    honest, calls = getattr(holder, name), itertools.count(1)

    def short(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.14 GiB")
        return honest(*args, **kwargs)

    monkeypatch.setattr(holder, name, short)
    rows = measure("honest", "honest_too").rows
    reached = next(calls) > call
    assert {row.status for row in rows} <= {"ok", "oom"}
    ran_out = [row for row in rows if row.status == "oom"]
    told = ["do not fit: OutOfMemoryError: CUDA out of memory" in (row.error or "") for row in ran_out]
    again_alone = helper == "truth.compare" and call >= 5  # one that ran out when timed with others is timed alone
    assert all(told)
    assert bool(ran_out) == (reached and not again_alone)


def test_inputs_are_let_go_of_before_they_are_made_again(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    from maxsim_bench.run import measure_cell

    honest = measure_cell.draw_inputs
    drawn: list[weakref.ReferenceType[Any]] = []
    alive: list[int] = []  # sets when another was drawn

    def watched(*args: Any) -> Any:
        gc.collect()
        alive.append(sum(reference() is not None for reference in drawn))
        inputs = honest(*args)
        drawn.append(weakref.ref(inputs.D))
        return inputs

    monkeypatch.setattr(measure_cell, "draw_inputs", watched)
    measure("overwrites", "honest")
    assert alive[:2] == [0, 0]


@pytest.mark.parametrize(
    ("peak", "sets"),
    [(0, 2), (50 << 30, 2), (64 << 30, 1), (200 << 30, 1)],
)
def test_a_second_set_of_inputs_leaves_room_for_the_largest_call(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, peak: int, sets: int
) -> None:
    """8 GiB of inputs under 79 GiB: a call that takes 64 runs beside one set of them, and not beside two."""
    import measured_backends

    from maxsim_bench.run import measure_cell

    monkeypatch.setattr(measure_cell.memory, "available_bytes", lambda *_: (79 << 30) - (8 << 30))
    monkeypatch.setattr(measure_cell, "l2_bytes", lambda: 50 << 20)
    hello = Hello("cuda", "card", "h200", {}, "environment")
    request = CellRequest(make_cell(), ("honest",), {"honest": "1"}, "honest", budget=QUICK)
    measuring = measure_cell.CellMeasurement(request, hello, measured_backends.get, lambda _: None)
    measuring.input_bytes = measuring.resident = 8 << 30
    measuring.outcomes["honest"].memory = MemoryReading(peak, peak)
    assert measuring._count_sets() == sets


@pytest.mark.parametrize(("corpus", "sets"), [(1 << 30, 2), (8 << 30, 1)])
def test_a_corpus_that_no_cache_holds_is_not_made_a_second_time(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, corpus: int, sets: int
) -> None:
    import measured_backends

    from maxsim_bench.run import measure_cell

    monkeypatch.setattr(measure_cell.memory, "available_bytes", lambda *_: 1 << 40)
    monkeypatch.setattr(measure_cell, "l2_bytes", lambda: 50 << 20)
    hello = Hello("cuda", "card", "h200", {}, "environment")
    request = CellRequest(make_cell(op="search", k=3), ("honest",), {"honest": "1"}, "honest", budget=QUICK)
    measuring = measure_cell.CellMeasurement(request, hello, measured_backends.get, lambda _: None)
    measuring.resident, measuring.elsewhere = 1 << 20, corpus
    measuring.input_bytes = measuring.resident + corpus
    assert measuring._count_sets() == sets


def test_five_bad_cells(make_cell: Callable[..., Cell]) -> None:
    """Out of memory, a segmentation fault, a hang, a kill, and one that works: statuses as told, one has numbers."""
    names = ("out_of_memory", "segfault", "hangs", "killed", "honest")
    executor = LocalExecutor(WorkerSetup(resolver="measured_backends:get", device="cpu"))
    request = CellRequest(make_cell(), names, dict.fromkeys(names, "1"), "honest", QUICK, timeout_s=5.0)
    try:
        rows = by_name(executor.run(request))
    finally:
        executor.close()
    assert [rows[name].status for name in names] == ["oom", "crash", "timeout", "crash", "ok"]
    assert all(getattr(rows[name], field) is None for name in names[:4] for field in MEASURED)
    assert rows["honest"].latency_ms is not None
    assert "SIGSEGV" in (rows["segfault"].error or "")
    assert "hangs alone" in (rows["hangs"].error or "")
    assert "SIGKILL" in (rows["killed"].error or "")


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["cold_l2", "clean_l2", "warm_l2", "graph", "host"])
def test_a_gpu_gives_times_memory_and_speedups(measure: Measure, policy: str) -> None:
    rows = by_name(measure("honest", "honest_too", device="cuda", B=500, Lq=32, Ld=128, d=128, timing_policy=policy))
    for row in rows.values():
        assert row.status == "ok", row.error
        assert row.peak_extra_bytes is not None
        assert row.peak_extra_bytes >= 500 * 32 * 128 * 4  # it materialises the similarities
        assert row.speedup is not None
        assert 0.8 < row.speedup < 1.25
        assert json.loads(row.extra or "")["timing_policy"] == policy


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("stale", "stale answer"),
        ("overwrites", "overwrites its inputs"),
        ("casts_down", "cast of fp32 operands to a narrower type"),
        ("skips_tail", "skips the tail"),
        ("by_address", "on fresh inputs"),
        ("overwrites_later", "overwrites its inputs while it is timed"),
        ("other_stream", "another stream"),
    ],
)
def test_a_dishonest_backend_on_a_gpu_is_caught(measure: Measure, backend: str, words: str) -> None:
    rows = by_name(measure("honest", backend, device="cuda", B=2000, Lq=128, Ld=128, d=128))
    refused(rows[backend], words)
    assert rows["honest"].status == "ok"


@pytest.mark.gpu
def test_a_leak_is_an_error_and_the_worker_is_given_up(measure: Measure) -> None:
    import measured_backends

    result = measure("honest", "leaks", device="cuda", B=2000, Lq=32, Ld=128, d=128)
    refused(by_name(result)["leaks"], "leaks", "error")
    assert result.unhealthy is not None
    measured_backends.LEAKED.clear()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "words"), [("illegal_access", "illegal memory access"), ("device_assert", "device-side assert")]
)
def test_a_lost_device_costs_the_guilty_backend_alone(make_cell: Callable[..., Cell], backend: str, words: str) -> None:
    names = (backend, "honest")
    executor = LocalExecutor(WorkerSetup(resolver="measured_backends:get", device="cuda"))
    request = CellRequest(make_cell(gpu="any"), names, dict.fromkeys(names, "1"), "honest", QUICK)
    try:
        rows = by_name(executor.run(request))
    finally:
        executor.close()
    assert [rows[name].status for name in names] == ["crash", "ok"]
    assert words in (rows[backend].error or "")


@pytest.mark.gpu
def test_a_cap_makes_a_cell_run_out_of_memory(measure: Measure) -> None:
    axes = {"B": 2000, "Lq": 64, "Ld": 256, "d": 128, "device": "cuda"}
    assert measure("honest", **axes).rows[0].status == "ok"
    assert measure("honest", memory_cap=300_000_000, **axes).rows[0].status == "oom"
