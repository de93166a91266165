"""First calls: two fresh processes over one cache of their own, and a process that fails says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.run import first_call
from maxsim_bench.run.first_call import CACHES, FirstCallError, first_calls


@pytest.mark.slow
def test_both_states_of_the_cache_are_timed_in_processes_of_their_own(make_cell: Callable[..., Cell]) -> None:
    found = first_calls(make_cell(), "eager", "cpu")
    assert set(found) == {"first_call_s_empty_cache", "first_call_s_filled_cache"}
    assert all(0 < seconds < 10 for seconds in found.values())


def test_the_second_process_finds_the_cache_that_the_first_one_filled(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def seconds(command: list[str], environment: dict[str, str]) -> float:
        seen.append({name: environment[name] for name in CACHES})
        assert Cell.model_validate_json(command[-3]) == make_cell()
        assert command[-2:] == ["fused", "cpu"]
        return 10.0 / len(seen)

    monkeypatch.setattr(first_call, "_seconds", seconds)
    assert first_calls(make_cell(), "fused", "cpu") == {
        "first_call_s_empty_cache": 10.0, "first_call_s_filled_cache": 5.0,
    }  # fmt: skip
    assert seen[0] == seen[1]


@pytest.mark.slow
def test_a_process_that_fails_is_an_error_with_its_last_line(make_cell: Callable[..., Cell]) -> None:
    with pytest.raises(FirstCallError, match=r"ended with 1: .*unknown backend 'egaer'"):
        first_calls(make_cell(), "egaer", "cpu")
