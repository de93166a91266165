"""Worker processes: every status out of a worker that really misbehaves, and workers reused while they are well."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row
from maxsim_bench.run.executor import LocalExecutor
from maxsim_bench.run.process import WorkerDiedError, WorkerProcess, WorkerStartError
from maxsim_bench.run.protocol import CellRequest, WorkerSetup

SETUP = WorkerSetup(session="fake_session:FakeSession", resolver="fake_session:get")


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    local = LocalExecutor(SETUP, startup_timeout_s=30)
    yield local
    local.close()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Lines that sessions logged: "PID what"."""
    path = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(path))
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def measure(executor: LocalExecutor, make_cell: Callable[..., Cell]) -> Callable[..., dict[str, Row]]:
    """Rows by backend of one request."""

    def call(
        *backends: str, timeout_s: float = 20.0, fresh: bool = False, baseline: str | None = None
    ) -> dict[str, Row]:
        request = CellRequest(
            make_cell(), backends, dict.fromkeys(backends, "1"), baseline=baseline, timeout_s=timeout_s, fresh=fresh
        )
        return {row.backend: row for row in executor.run(request).rows}

    return call


def starts(lines: list[str]) -> int:
    return sum(line.endswith(" start") for line in lines)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("crash", "killed by SIGABRT"),
        ("kill", "killed by SIGKILL (by the system, if it ran out of main memory)"),
        ("exit", "ended with status 7"),
        ("lost", "an illegal memory access"),
        ("last_words", "its last output: the last words"),
    ],
)
def test_a_worker_that_dies_is_a_crash_that_says_how(
    measure: Callable[..., dict[str, Row]], backend: str, words: str
) -> None:
    row = measure(backend)[backend]
    assert row.status == "crash"
    assert row.error is not None
    assert words in row.error
    assert row.latency_ms is None


def test_a_cell_that_takes_long_says_again_and_again_which_step_it_is_in(make_cell: Callable[..., Cell]) -> None:
    told: list[str] = []
    worker = WorkerProcess(SETUP, 30, told.append, tell_every_s=0.2)
    told.clear()  # a slow start may have said something as well
    with pytest.raises(WorkerDiedError, match=r"nothing for 1 s during hang"):
        worker.measure(CellRequest(make_cell(), ("fast", "hang"), {"fast": "1", "hang": "1"}, timeout_s=1.0))
    assert 2 <= len(told) <= 5
    assert all(line.startswith("waiting for ") and line.endswith(" s: hang") for line in told)


def test_a_quick_cell_says_nothing(make_cell: Callable[..., Cell]) -> None:
    told: list[str] = []
    worker = WorkerProcess(SETUP, 30, told.append)
    try:
        worker.measure(CellRequest(make_cell(), ("fast",), {"fast": "1"}))
    finally:
        worker.close()
    assert not told


def test_a_worker_that_hangs_is_ended_in_time_and_gone(
    measure: Callable[..., dict[str, Row]], log: Callable[[], list[str]]
) -> None:
    began = time.monotonic()
    row = measure("hang", timeout_s=0.5)["hang"]
    assert row.status == "timeout"
    assert row.error == "nothing for 0.5 s during hang"
    assert time.monotonic() - began < 60  # it would last an hour
    for pid in {int(line.split()[0]) for line in log()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_guilty_get_the_rows_and_the_others_keep_their_numbers(measure: Callable[..., dict[str, Row]]) -> None:
    rows = measure("a", "crash", "b", "kill", baseline="a")
    assert {name: row.status for name, row in rows.items()} == {"a": "ok", "crash": "crash", "b": "ok", "kill": "crash"}
    assert rows["b"].speedup == 2.0  # the survivors were timed together again, so their times are paired


def test_output_never_reaches_the_channel_and_never_blocks(measure: Callable[..., dict[str, Row]]) -> None:
    rows = measure("garbage", "a")
    assert {row.status for row in rows.values()} == {"ok"}


def test_a_healthy_worker_is_reused(measure: Callable[..., dict[str, Row]], log: Callable[[], list[str]]) -> None:
    measure("a")
    measure("b")
    assert starts(log()) == 1


def test_a_worker_that_leaks_is_replaced(measure: Callable[..., dict[str, Row]], log: Callable[[], list[str]]) -> None:
    assert measure("leaky")["leaky"].status == "ok"
    measure("a")
    assert starts(log()) == 2


def test_fresh_cells_have_one_process_a_backend(
    measure: Callable[..., dict[str, Row]], log: Callable[[], list[str]]
) -> None:
    measure("a")
    assert {row.status for row in measure("b", "c", fresh=True).values()} == {"ok"}
    work = [line.split() for line in log() if not line.endswith("start")]
    assert len({pid for pid, _ in work}) == 3


def test_an_exception_of_the_harness_itself_is_a_row_for_all_and_the_next_cell_has_a_new_worker(
    measure: Callable[..., dict[str, Row]], log: Callable[[], list[str]]
) -> None:
    with pytest.warns(UserWarning, match=r"Traceback(.|\n)*a mistake in the harness itself"):
        rows = measure("a", "bug", "b")
    assert {row.status for row in rows.values()} == {"error"}
    told = "the harness failed during bug: KeyError: 'a mistake in the harness itself'"
    assert [row.error for row in rows.values()] == [told] * 3
    assert measure("a")["a"].status == "ok"
    assert starts(log()) == 2


def test_rows_that_a_cell_has_stand_beside_a_mistake_of_the_harness(measure: Callable[..., dict[str, Row]]) -> None:
    with pytest.warns(UserWarning, match="a mistake in the harness itself"):
        rows = measure("a", "bug", "b", fresh=True)
    assert [row.status for row in rows.values()] == ["ok", "error", "ok"]
    with pytest.warns(UserWarning, match="a mistake in the harness itself"):
        rows = measure("crash", "bug", "a")
    assert [row.status for row in rows.values()] == ["crash", "error", "ok"]


def test_start_up_has_a_time_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STARTUP_SECONDS", "60")
    with pytest.raises(WorkerStartError, match=r"nothing for 0.5 s during start-up(.|\n)*doctor"):
        LocalExecutor(SETUP, startup_timeout_s=0.5).open()


def test_a_slow_start_within_the_limit_is_no_timeout_of_the_cell(
    measure: Callable[..., dict[str, Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STARTUP_SECONDS", "1.0")
    assert measure("a", timeout_s=0.7)["a"].status == "ok"


def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_BROKEN_START", "1")
    with pytest.raises(WorkerStartError, match=r"libcuda.so.1 is not there"):
        LocalExecutor(SETUP, startup_timeout_s=30).open()


def test_an_executor_goes_on_after_a_crash(measure: Callable[..., dict[str, Row]]) -> None:
    measure("crash")
    assert measure("a")["a"].status == "ok"
