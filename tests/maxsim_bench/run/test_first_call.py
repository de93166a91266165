"""First calls: fresh processes over one cache of their own, and a process that fails says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.run import first_call
from maxsim_bench.run.first_call import CACHES, FirstCallError, first_call_seconds


@pytest.mark.slow
def test_a_first_call_is_timed_in_a_process_of_its_own(make_cell: Callable[..., Cell]) -> None:
    assert 0 < first_call_seconds(make_cell(variant="cache=empty"), "eager", "cpu") < 10


def test_a_populated_cache_is_one_that_another_process_has_filled(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def seconds(command: list[str], environment: dict[str, str]) -> float:
        seen.append({name: environment[name] for name in CACHES})
        assert Cell.model_validate_json(command[-3]).B == make_cell().B
        assert command[-2:] == ["fused", "cpu"]
        return 10.0 / len(seen)

    monkeypatch.setattr(first_call, "_seconds", seconds)
    assert first_call_seconds(make_cell(variant="cache=empty"), "fused", "cpu") == 10.0
    seen.clear()
    assert first_call_seconds(make_cell(variant="cache=populated"), "fused", "cpu") == 5.0
    assert seen[0] == seen[1]
    with pytest.raises(FirstCallError, match="cache=None: not one of empty, populated"):
        first_call_seconds(make_cell(), "fused", "cpu")


@pytest.mark.slow
def test_a_process_that_fails_is_an_error_with_its_last_line(make_cell: Callable[..., Cell]) -> None:
    with pytest.raises(FirstCallError, match=r"ended with 1: .*unknown backend 'egaer'"):
        first_call_seconds(make_cell(variant="cache=empty"), "egaer", "cpu")
