"""A sweep resumes, skips what cannot fit, measures nothing twice, and survives every way to stop it."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Experiment
from maxsim_bench.record import files
from maxsim_bench.record.environments import read_environments
from maxsim_bench.record.files import StoreError
from maxsim_bench.record.samples import read_samples
from maxsim_bench.record.store import Store
from maxsim_bench.run import sweep as sweep_room
from maxsim_bench.run.lock import DeviceBusyError, device_lock
from maxsim_bench.run.sweep import Progress, SweepOptions, SweepSummary, growth, run_sweep
from maxsim_bench.stopping import terminated_as_interrupted

Run = Callable[..., SweepSummary]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "test.csv")


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Run:
    """Sweep an experiment with the fake session."""

    def call(
        experiment: Experiment, progress: Callable[[Progress], None] = lambda _: None, **options: Any
    ) -> SweepSummary:
        fake = {"session": "fake_session:FakeSession", "resolver": "fake_session:get", "lock_folder": tmp_path}
        cells: list[tuple[Cell, Sequence[str]]] = [(cell, experiment.backends) for cell in experiment.cells("cpu")]
        return run_sweep(experiment, cells, store, SweepOptions(**fake | options), progress)

    return call


def statuses(store: Store) -> dict[tuple[str, int | None], str]:
    return {(row.backend, row.cell.B): row.status for row in store.rows()}


def test_every_cell_and_backend_gets_one_row(
    run: Run, store: Store, make_experiment: Callable[..., Experiment]
) -> None:
    summary = run(make_experiment("a", "unable"))
    assert len(store.rows()) == 6
    assert summary.measured == {"ok": 3, "unsupported": 3}
    assert summary.failed == []
    assert set(read_samples(store.path)) == {row.key for row in store.rows() if row.status == "ok"}
    assert read_environments(store.path.parent)["e1"]["sessions"][0]["ceilings"] == {"device": "cpu"}


def test_finished_rows_are_not_measured_again_unless_forced(
    run: Run, make_experiment: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    experiment = make_experiment("a", "b")
    run(experiment)
    before = (tmp_path / "log").read_text()
    again = run(experiment)
    assert (again.resumed, sum(again.measured.values())) == (6, 0)
    assert (tmp_path / "log").read_text() == before  # not even a worker was started
    assert run(experiment, force=True).measured == {"ok": 6}


def test_a_new_version_of_a_backend_is_measured_anew(
    run: Run, store: Store, make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(make_experiment("a"))
    monkeypatch.setenv("FAKE_VERSION", "2")
    assert run(make_experiment("a")).measured == {"ok": 3}
    assert len(store.rows()) == 6


def test_a_refusal_is_asked_again_where_the_backend_can(
    run: Run, store: Store, make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell for two GPUs that one with a single GPU refused is measured once there are two."""
    experiment = make_experiment("a", "unable")
    run(experiment, device="cpu")
    assert run(experiment, device="cpu").resumed == 6
    monkeypatch.setenv("FAKE_ABLE", "1")
    again = run(experiment, device="cpu")
    assert (again.resumed, again.measured) == (3, {"ok": 3})
    assert [row.status for row in store.rows()] == ["ok"] * 6


def test_larger_cells_after_out_of_memory_are_skipped_with_the_reason(
    run: Run, store: Store, make_experiment: Callable[..., Experiment]
) -> None:
    run(make_experiment("a", "oom"))
    found = statuses(store)
    assert [found["oom", b] for b in (10, 100, 1000)] == ["ok", "oom", "skipped"]
    assert [found["a", b] for b in (10, 100, 1000)] == ["ok", "ok", "ok"]
    (skipped,) = (row for row in store.rows() if row.status == "skipped")
    assert skipped.error == "out of memory already at B=100"


def test_larger_cells_are_tried_when_asked(run: Run, store: Store, make_experiment: Callable[..., Experiment]) -> None:
    run(make_experiment("oom"), try_after_oom=True)
    assert statuses(store)["oom", 1000] == "oom"


def test_out_of_memory_is_remembered_over_a_resume(
    run: Run, store: Store, make_experiment: Callable[..., Experiment]
) -> None:
    axes = {"Nq": 1, "B": [100], "Lq": 2, "Ld": 3, "d": 4, "dtype": "fp32", "gpu": "cpu"}
    run(make_experiment("oom", axes=axes))
    run(make_experiment("oom", axes=axes | {"B": [100, 200]}))
    assert statuses(store)["oom", 200] == "skipped"


def test_growth_needs_every_size_to_hold_and_everything_else_to_be_equal(make_cell: Callable[..., Cell]) -> None:
    small = make_cell(B=10, Ld=10)
    assert growth(small, make_cell(B=20, Ld=10)) == ["B"]
    assert growth(small, make_cell(B=20, Ld=5)) == []
    assert growth(small, make_cell(B=20, Ld=10, dtype="fp16")) == []
    assert growth(small, small) == []


def test_failures_that_are_not_allowed_are_told_and_allowed_ones_are_not(
    run: Run, make_experiment: Callable[..., Experiment]
) -> None:
    allow = [{"status": "oom", "why": "it materialises"}]
    assert run(make_experiment("oom", allow=allow)).failed == []
    summary = run(make_experiment("crash", allow=allow))
    assert [row.status for row in summary.failed] == ["crash"] * 3
    assert [row.status for row in run(make_experiment("crash", allow=allow)).failed] == [
        "crash"
    ] * 3  # when resumed too


def test_a_mistake_of_the_harness_costs_its_cells_and_not_the_sweep(
    run: Run, store: Store, make_experiment: Callable[..., Experiment]
) -> None:
    """Whatever failures of backends are allowed, it counts as one, when resumed too."""
    experiment = make_experiment("a", "bug", isolation="fresh", allow=[{"status": "error", "why": "peers do fail"}])
    with pytest.warns(UserWarning, match="a mistake in the harness itself"):
        summary = run(experiment)
    assert summary.measured == {"ok": 3, "error": 3}
    assert [row.backend for row in summary.failed] == ["bug"] * 3
    assert len(store.rows()) == 6
    assert len(run(experiment).failed) == 3


def test_a_backend_that_cannot_say_what_it_supports_costs_its_own_rows(
    run: Run, make_experiment: Callable[..., Experiment]
) -> None:
    summary = run(make_experiment("a", "unsure"))
    assert summary.measured == {"ok": 3, "error": 3}
    assert "supports: ValueError: no idea what this cell is (fake_session" in (summary.failed[0].error or "")


def test_progress_comes_after_every_cell_with_an_estimate(run: Run, make_experiment: Callable[..., Experiment]) -> None:
    told: list[Progress] = []
    run(make_experiment("a"), told.append)
    assert [(p.done, p.total) for p in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1].seconds_left == 0.0
    assert told[0].seconds_left is not None
    assert [row.backend for row in told[0].rows] == ["a"]


def test_two_runs_on_one_device_are_kept_apart_by_a_lock_that_says_who_holds_it(
    run: Run, make_experiment: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICE", "7")
    with (
        device_lock("fake-7", "Fake Device", tmp_path),
        pytest.raises(DeviceBusyError, match=f"process {os.getpid()} "),
    ):
        run(make_experiment("a"))
    assert run(make_experiment("a")).measured == {"ok": 3}


def test_ceilings_are_measured_once_for_several_experiments(
    run: Run, make_experiment: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_DEVICE", "ceilings")
    run(make_experiment("a"))
    run(make_experiment("b"))
    assert (tmp_path / "log").read_text().count("ceilings") == 1


def test_two_runs_writing_one_store_are_refused(
    run: Run, store: Store, make_experiment: Callable[..., Experiment]
) -> None:
    with Store(store.path).lock(), pytest.raises(StoreError, match="being written by process"):
        run(make_experiment("a"))


@pytest.mark.parametrize("name", ["test.csv", "test.samples.jsonl.gz", "environment.json"])
def test_a_damaged_file_is_told_before_anything_is_measured_even_by_force(
    run: Run,
    store: Store,
    make_experiment: Callable[..., Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    store.path.with_name(name).write_text("junk\n")
    with pytest.raises(StoreError, match=name):
        run(make_experiment("a"), force=True)
    assert not (tmp_path / "log").exists()


def test_a_full_disk_is_reported_and_earlier_rows_stay(
    run: Run, store: Store, make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, data: bytes) -> None:
        if store.path.exists() and len(store.rows()) >= 1:
            file.write(data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        file.write(data)

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_all", full)
        with pytest.raises(StoreError, match="disk is full"):
            run(make_experiment("a"))
    assert statuses(store) == {("a", 10): "ok"}
    assert run(make_experiment("a")).measured == {"ok": 2}


# The whole program, stopped from outside.


@pytest.fixture
def program(fixtures: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], Any]:
    """Starts a sweep over so many cells as a process of its own."""
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_SECONDS", "0.01")
    script = [sys.executable, str(fixtures / "sweep_program.py"), str(store.path)]
    return lambda cells: subprocess.Popen([*script, str(cells)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended (one that nobody has waited for yet counts as ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_ten_kills_lose_no_row_and_measure_none_twice(
    program: Callable[[int], Any], store: Store, tmp_path: Path
) -> None:
    """kill -9 at random moments: what was on the disk stays and is never measured again; the end is complete."""
    cells, order = 80, random.Random(int(os.environ.get("KILL_SEED", "3")))
    log = tmp_path / "log"
    finished: set[str] = set()
    for _ in range(10):
        seen = len(log.read_text().splitlines()) if log.exists() else 0
        process = program(cells)
        goal = len(finished) + order.randrange(1, 12)
        wait_for(lambda goal=goal, process=process: len(store.rows()) >= goal or process.poll() is not None)
        time.sleep(order.uniform(0.0, 0.03))
        process.kill()
        process.communicate()
        now = {row.key for row in store.rows()}
        assert finished <= now
        ran = [line.split()[1] for line in log.read_text().splitlines()[seen:]]
        assert not finished & set(ran)
        finished = now
    out, errors = program(cells).communicate(timeout=120)
    assert f"resumed {len(finished)}" in out.decode(), errors.decode()
    keys = [row.key for row in store.rows()]
    assert len(keys) == len(set(keys)) == 2 * cells
    assert set(read_samples(store.path)) == set(keys)


def test_ctrl_c_ends_the_worker_too_and_the_rest_is_measured_later(
    program: Callable[[int], Any], store: Store, tmp_path: Path
) -> None:
    process = program(60)
    wait_for(lambda: len(store.rows()) >= 4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert b"KeyboardInterrupt" in errors
    worker = int((tmp_path / "log").read_text().split()[0])
    wait_for(lambda: gone(worker))
    done = len(store.rows())
    assert f"resumed {done}" in program(60).communicate(timeout=120)[0].decode()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_worker_does_not_outlive_a_killed_sweep(
    program: Callable[[int], Any], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "60")
    process = program(5)
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= 2)  # it is in the middle of a cell
    process.kill()
    process.communicate()
    wait_for(lambda: gone(int(log.read_text().split()[0])))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cell_is_written_whole_before_a_sweep_that_is_stopped_ends(
    run: Run, store: Store, make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The signal comes between the samples and the rows of the first cell."""

    def append_samples(path: Path, samples: dict[str, Any]) -> None:
        append(path, samples)
        signal.raise_signal(number)

    append = sweep_room.append_samples
    monkeypatch.setattr(sweep_room, "append_samples", append_samples)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with terminated_as_interrupted(), pytest.raises(KeyboardInterrupt):
        run(make_experiment("a", "b"))
    assert {(row.backend, row.cell.B) for row in store.rows()} == {("a", 10), ("b", 10)}
    assert set(read_samples(store.path)) == {row.key for row in store.rows()}
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
