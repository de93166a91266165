"""Environments beside a CSV: what may be compared under one id, and what each session was under it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxsim_bench.cli import main
from maxsim_bench.measure.ceilings import Ceilings
from maxsim_bench.record.environments import _Ceilings, add_environments, read_environments, session_of
from maxsim_bench.record.files import StoreError, hold

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


def test_two_sweeps_of_a_folder_that_begin_at_once_are_both_kept(tmp_path: Path) -> None:
    """As of two devices, or of rankings beside a grid: neither ends because the other is just writing this file."""
    with hold(tmp_path / "environment.json.lock", what="environment.json"):
        other = threading.Thread(target=add_environments, args=(tmp_path, {"x": FIRST}), daemon=True)
        other.start()
        other.join(0.2)
        assert other.is_alive(), "it waits"
    other.join(10)
    assert len(sessions(tmp_path)) == 1


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


@pytest.mark.parametrize("text", ["{", "[]", '{"a":' * 100_000], ids=["cut", "a list", "deep"])
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


ODD = [
    ("3", "is 3: expected a table"),
    ("[]", r"is \[\]: expected a table"),
    ("true", "is True: expected a table"),
    ('{"read_gbs": "fast"}', r"\.read_gbs is 'fast': .*valid number"),
    ('{"read_gbs": NaN}', r"\.read_gbs is nan: .*finite"),
    ('{"read_gbs": Infinity}', r"\.read_gbs is inf: .*finite"),
    ('{"read_gbs": -1.5}', r"\.read_gbs is -1\.5: .*greater than 0"),
    ('{"read_gbs": 0}', r"\.read_gbs is 0: .*greater than 0"),
    ('{"read_gbs": true}', r"\.read_gbs is True: .*valid number"),
    ('{"read_gbs": 1' + "0" * 400 + "}", r"\.read_gbs is 10+…: "),
    ('{"launch_ms": -1}', r"\.launch_ms is -1: .*greater than or equal to 0"),
    ('{"launch_ms": Infinity}', r"\.launch_ms is inf: .*finite"),
    ('{"host_launch_ms": NaN}', r"\.host_launch_ms is nan: "),
    ('{"all_measured": {"cublas": 0}}', r"\.all_measured\.cublas is 0: .*greater than 0"),
    ('{"missing": {"tma": 3}}', r"\.missing\.tma is 3: .*string"),
    ('{"sources": {"read": null}}', r"\.sources\.read is None: .*string"),
    ('{"host_copy_gbs": [1]}', r"\.host_copy_gbs is \[1\]: "),
    ('{"matmul_tflops": null}', r"\.matmul_tflops is None: "),
    ('{"matmul_tflops": [700]}', r"\.matmul_tflops is \[700\]: "),
    ('{"matmul_tflops": {"fp16": "x"}}', r"\.matmul_tflops\.fp16 is 'x': "),
    ('{"read_by_bytes": {"76800000": NaN}}', r"\.read_by_bytes\.76800000 is nan: "),
    ('{"device": 3}', r"\.device is 3: .*string"),
]


@pytest.mark.parametrize("place", ["x.ceilings", "x.sessions[1].ceilings"])
@pytest.mark.parametrize(("ceilings", "told"), ODD)
def test_ceilings_that_no_session_measured_are_told_by_file_and_key(
    tmp_path: Path, place: str, ceilings: str, told: str
) -> None:
    inside = f'{{"ceilings": {ceilings}}}'
    facts = inside if place == "x.ceilings" else f'{{"sessions": [{{}}, {inside}]}}'
    (tmp_path / "environment.json").write_text(f'{{"x": {facts}}}')
    where = place.replace("[", r"\[").replace("]", r"\]").replace(".", r"\.")
    with pytest.raises(
        StoreError, match=rf"environment\.json: {where}{'' if told[0] == chr(92) else ' '}{told}.*Restore"
    ):
        read_environments(tmp_path)


@pytest.mark.parametrize("ceilings", ["null", '"unknown: the worker crashed"', "{}", '{"read_gbs": null}'])
def test_ceilings_that_were_not_measured_are_none(tmp_path: Path, ceilings: str) -> None:
    (tmp_path / "environment.json").write_text(f'{{"x": {{"ceilings": {ceilings}}}}}')
    assert sessions(tmp_path) == [{"ceilings": json.loads(ceilings)}]


def test_what_measuring_ceilings_writes_is_read(tmp_path: Path) -> None:
    record = Ceilings("cuda", {"fp16": 700.0}, 4500.0, 0.0, 0.0, {"read": "a"}, {"a": 1.0}, {"b": "why"}, {"8": 9.0}, 5)
    assert _Ceilings.model_fields.keys() == record.to_record().keys()
    add_environments(tmp_path, {"x": {"ceilings": record.to_record()}, "y": {}})
    assert sessions(tmp_path) == [{"ceilings": record.to_record()}]


@pytest.mark.parametrize("arguments", [["report"], ["report", "--check"]])
def test_a_report_ends_with_the_message_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "results" / "h200").mkdir(parents=True)
    (tmp_path / "results" / "h200" / "forward.csv").write_text("")
    (tmp_path / "results" / "h200" / "environment.json").write_text('{"x": {"ceilings": {"read_gbs": "fast"}}}')
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code != 0
    assert "results/h200/environment.json: x.ceilings.read_gbs is 'fast'" in done.stderr
