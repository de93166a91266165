"""Compiling before measuring: what is called, how often, and that nothing it meets stops a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.prebuild import prebuild, shapes

MakeCell = Callable[..., Cell]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What backends of `prebuilt_backends` were called with, in every process."""
    log = tmp_path / "calls"
    monkeypatch.setenv("PREBUILT_LOG", str(log))
    return lambda: sorted(log.read_text().split()) if log.exists() else []


RESOLVER = "prebuilt_backends:get"


def test_cells_that_differ_in_timing_alone_are_one_shape_with_the_backends_of_all(make_cell: MakeCell) -> None:
    cold, graph, other = make_cell(), make_cell(timing_policy="graph"), make_cell(Ld=24)
    found = shapes([(cold, ("a", "b")), (graph, ("b", "c")), (other, ("a",))])
    assert [names for _, names in found] == [("a", "b", "c"), ("a",)]
    assert [cell.Ld for cell, _ in found] == [12, 24]


def test_a_search_is_left_to_the_measurement(make_cell: MakeCell) -> None:
    assert shapes([(make_cell(op="search", k=3), ("a",))]) == []


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_every_backend_is_called_once_on_every_shape_in_any_number_of_processes(
    processes: int, make_cell: MakeCell, calls: Callable[[], list[str]]
) -> None:
    cells = [(make_cell(Ld=n), ("one", "two")) for n in (4, 8, 12)]
    built = prebuild(cells, processes, device="cpu", resolver=RESOLVER, timeout_s=60)
    assert (built.calls, built.left) == (6, [])
    assert calls() == sorted(f"{name}@{n}" for name in ("one", "two") for n in (4, 8, 12))


def test_what_fails_is_told_and_the_rest_is_built(make_cell: MakeCell, calls: Callable[[], list[str]]) -> None:
    cells = [(make_cell(Ld=n), ("one", "broken", "tuned", "unable")) for n in (4, 8)]
    built = prebuild(cells, 1, device="cpu", resolver=RESOLVER, timeout_s=60)
    assert built.calls == 2
    assert calls() == ["one@4", "one@8"], "one that tunes to the disk, or does not take the cell, is not called"
    assert len(built.left) == 2
    assert all("broken at forward" in told and "RuntimeError: no" in told for told in built.left)


def test_a_process_that_dies_is_told_with_its_last_words(make_cell: MakeCell, calls: Callable[[], list[str]]) -> None:
    built = prebuild([(make_cell(), ("dies",))], 2, device="cpu", resolver=RESOLVER, timeout_s=60)
    assert built.calls == 0
    assert built.left == ["a process ended with status 3: farewell"]


def test_a_process_that_hangs_is_ended(make_cell: MakeCell, calls: Callable[[], list[str]]) -> None:
    built = prebuild([(make_cell(), ("hangs",))], 1, device="cpu", resolver=RESOLVER, timeout_s=3)
    assert built.left == ["a process was ended after 3 s"]


def test_an_autotuner_runs_each_configuration_once_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a stand-in for a kernel: the tuner of the installed Triton, the patch of a prebuilding process."""
    from triton.runtime import autotuner

    from maxsim_bench.run import prebuild as module

    monkeypatch.setattr(autotuner.Autotuner, "do_bench", autotuner.Autotuner.do_bench)
    monkeypatch.setattr(autotuner.Autotuner, "check_disk_cache", autotuner.Autotuner.check_disk_cache)
    module._without_tuning()
    ran: list[int] = []

    def kernel(x: int, BLOCK: int) -> None:
        """Never compiled."""

    class Stub:
        fn = staticmethod(kernel)

        def run(self, *args: object, BLOCK: int, **_: object) -> None:
            ran.append(BLOCK)

    configs = [autotuner.Config({"BLOCK": b}) for b in (16, 32, 64)]
    tuner = autotuner.Autotuner(Stub(), ["x", "BLOCK"], configs, ["x"], None, None)
    tuner.cache_results = True
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    tuner.run(7)
    assert ran[:3] == [16, 32, 64]
    assert len(ran) == 4, "each once, and the call itself"
    assert not (tmp_path / "cache").exists()
