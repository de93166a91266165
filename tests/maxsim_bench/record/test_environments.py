"""Environments beside a CSV: what may be compared under one id, and what each session was under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maxsim_bench.record.environments import add_environments, read_environments, session_of
from maxsim_bench.record.files import StoreError

FIRST = {"gpu": "a", "captured_at": "2026-11-29T16:00:00+00:00", "git_commit": "1", "ceilings": {"read_gbs": 4500.0}}
LATER = {"gpu": "a", "captured_at": "2026-11-29T21:00:00+00:00", "git_commit": "2", "ceilings": {"read_gbs": 4400.0}}


def sessions(folder: Path) -> list[dict]:
    return read_environments(folder)["x"]["sessions"]


def test_a_session_keeps_its_commit_and_ceilings_beside_those_of_another_under_the_same_id(tmp_path: Path) -> None:
    add_environments(tmp_path, {"x": LATER})
    add_environments(tmp_path, {"x": FIRST})
    found = read_environments(tmp_path)["x"]
    assert {k: v for k, v in found.items() if k != "sessions"} == {"gpu": "a"}
    assert [s["git_commit"] for s in found["sessions"]] == ["1", "2"], "in the order in which they began"
    assert [s["ceilings"]["read_gbs"] for s in found["sessions"]] == [4500.0, 4400.0]


def test_what_was_kept_is_kept_once(tmp_path: Path) -> None:
    for _ in range(2):
        add_environments(tmp_path, {"x": FIRST})
    assert len(sessions(tmp_path)) == 1
    before = (tmp_path / "environment.json").read_bytes()
    add_environments(tmp_path, read_environments(tmp_path))
    assert (tmp_path / "environment.json").read_bytes() == before


def test_facts_of_an_environment_that_an_earlier_writer_did_not_have_are_added(tmp_path: Path) -> None:
    add_environments(tmp_path, {"x": {"gpu": "a"}})
    add_environments(tmp_path, {"x": {"gpu": "b", "driver": "580"}, "y": {}})
    assert read_environments(tmp_path) == {"x": {"gpu": "a", "driver": "580"}, "y": {}}


def test_a_file_without_sessions_is_one_session(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"x": {"gpu": "a", "git_commit": "1", "python": "3.12"}}))
    assert read_environments(tmp_path) == {"x": {"gpu": "a", "sessions": [{"git_commit": "1", "python": "3.12"}]}}
    add_environments(tmp_path, {"x": LATER})
    assert [s["git_commit"] for s in sessions(tmp_path)] == ["1", "2"], "one of no known time began first"


@pytest.mark.parametrize(
    ("measured_at", "commit"),
    [
        ("2026-11-29T22:00:00+00:00", "2"),
        ("2026-11-29T21:00:00+00:00", "2"),
        ("2026-11-29T20:59:59+00:00", "1"),
        ("2026-11-28T00:00:00+00:00", "1"),
        (None, "1"),
    ],
)
def test_a_row_is_of_the_last_session_that_began_before_it(tmp_path: Path, measured_at, commit) -> None:
    add_environments(tmp_path, {"x": FIRST})
    add_environments(tmp_path, {"x": LATER})
    assert session_of(read_environments(tmp_path)["x"], measured_at)["git_commit"] == commit


def test_an_environment_of_no_session_has_none() -> None:
    assert session_of({"gpu": "a"}, "2026-11-29T22:00:00+00:00") == {}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_environment_file_is_told_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(StoreError, match=r"environment\.json: .*Restore the file"):
        add_environments(tmp_path, {"x": {}})
    assert (tmp_path / "environment.json").read_text() == text


@pytest.mark.parametrize(
    "facts", ["3", '{"sessions": {}}', '{"sessions": [3]}', '{"sessions": [{"packages": 3}]}', '{"packages": []}']
)
def test_environments_that_are_no_tables_are_refused(tmp_path: Path, facts: str) -> None:
    (tmp_path / "environment.json").write_text(f'{{"a": {facts}}}')
    with pytest.raises(StoreError, match="holds no environments by id"):
        read_environments(tmp_path)
