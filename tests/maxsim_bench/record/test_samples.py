"""Samples and environments beside a CSV survive a kill like the rows do."""

from __future__ import annotations

from pathlib import Path

import pytest

from maxsim_bench.record.files import StoreError
from maxsim_bench.record.samples import (
    add_environments,
    append_samples,
    read_environments,
    read_samples,
    samples_path,
)


def test_samples_come_back_as_measured_and_the_last_entry_of_a_key_wins(tmp_path: Path) -> None:
    csv = tmp_path / "t.csv"
    append_samples(csv, {"a": {"ms": [0.1, 0.2]}, "b": [1]})
    append_samples(csv, {})
    append_samples(csv, {"a": {"ms": [1 / 3]}})
    assert read_samples(csv) == {"a": {"ms": [1 / 3]}, "b": [1]}
    assert read_samples(tmp_path / "none.csv") == {}


def test_a_samples_file_cut_at_any_byte_keeps_what_was_finished_and_goes_on(tmp_path: Path) -> None:
    csv = tmp_path / "t.csv"
    append_samples(csv, {"a": [1]})
    first = samples_path(csv).stat().st_size
    append_samples(csv, {"b": [2]})
    data = samples_path(csv).read_bytes()
    for length in range(len(data)):
        samples_path(csv).write_bytes(data[:length])
        expected = {"a": [1]} if length >= first else {}
        assert read_samples(csv) == expected
        append_samples(csv, {"c": [3]})
        assert read_samples(csv) == {**expected, "c": [3]}


def test_damage_in_the_middle_is_told(tmp_path: Path) -> None:
    csv = tmp_path / "t.csv"
    append_samples(csv, {"a": [1]})
    samples_path(csv).write_bytes(b"junk" + samples_path(csv).read_bytes())
    with pytest.raises(StoreError, match=r"damaged after byte 0: .*Restore the file, or delete it"):
        read_samples(csv)


def test_an_environment_id_keeps_its_first_content(tmp_path: Path) -> None:
    add_environments(tmp_path, {"x": {"torch": "1"}})
    add_environments(tmp_path, {"x": {"torch": "2"}, "y": {}})
    assert read_environments(tmp_path) == {"x": {"torch": "1"}, "y": {}}


def test_ceilings_that_a_later_run_measured_join_the_environment_of_an_earlier_one(tmp_path: Path) -> None:
    """Rankings are recorded without ceilings; a sweep on the same machine adds them."""
    add_environments(tmp_path, {"x": {"torch": "1"}})
    add_environments(tmp_path, {"x": {"torch": "1", "ceilings": {"read_gbs": 4500.0}}})
    assert read_environments(tmp_path) == {"x": {"torch": "1", "ceilings": {"read_gbs": 4500.0}}}


def test_a_ceiling_that_an_earlier_session_did_not_measure_joins_those_it_did(tmp_path: Path) -> None:
    add_environments(tmp_path, {"x": {"gpu": "a", "ceilings": {"read_gbs": 4500.0}, "git_commit": "1"}})
    later = {"ceilings": {"read_gbs": 4400.0, "read_by_bytes": {"768000000": 4100.0}}, "git_commit": "2"}
    add_environments(tmp_path, {"x": later})
    assert read_environments(tmp_path)["x"] == {
        "gpu": "a", "ceilings": {"read_gbs": 4500.0, "read_by_bytes": {"768000000": 4100.0}}, "git_commit": "1",
    }  # fmt: skip
    add_environments(tmp_path, {"y": {"ceilings": "unknown: it crashed"}})
    add_environments(tmp_path, {"y": {"ceilings": {"read_gbs": 4400.0}}})
    assert read_environments(tmp_path)["y"] == {"ceilings": "unknown: it crashed"}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_environment_file_is_told_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(StoreError, match=r"environment\.json: .*Restore the file"):
        add_environments(tmp_path, {"x": {}})
    assert (tmp_path / "environment.json").read_text() == text


def test_environments_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text('{"a": 3}')
    with pytest.raises(StoreError, match="holds no environments by id"):
        read_environments(tmp_path)
