"""Samples beside a CSV survive a kill like the rows do."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.record.files import StoreError
from maxsim_bench.record.samples import append_samples, common_rounds, misshapen, read_samples, samples_path


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


@pytest.mark.parametrize(
    "content",
    [b'{"nokey":1}\n', b"not JSON\n", b"[1]\n", b"\xff\n", b'{"key":["a"],"samples":1}\n', b"[" * 100_000 + b"\n"],
    ids=["no key", "no JSON", "a list", "no UTF-8", "a key that is none", "deep"],
)
def test_whole_gzip_of_something_else_is_told_with_the_file(tmp_path: Path, content: bytes) -> None:
    csv = tmp_path / "t.csv"
    samples_path(csv).write_bytes(gzip.compress(b'{"key":"a","samples":[1]}\n' + content))
    with pytest.raises(StoreError, match=r"t\.samples\.jsonl\.gz: line 2 of its content is no object with `key`"):
        read_samples(csv)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"ms": 1.0}, "no list of samples"),
        ({"ms": [1.0, "x"]}, "a sample is x, no number,"),
        ({"ms": [1.0, True]}, "a sample is True, no number,"),
        ({"ms": [1.0], "round": None}, "no list of rounds"),
        ({"ms": [1.0], "round": [[0]]}, "no list of rounds"),
        ({"ms": [1.0, 2.0], "round": [0]}, "2 samples in 1 rounds"),
        ({"ms": [1.0, 2.0], "round": [0, 0]}, "2 samples in 1 rounds"),
        ({"ms": [1.0], "conditions": None}, "no table of conditions"),
        ({"ms": [1.0], "conditions": {"sm_clock_mhz": "fast"}}, "a clock of fast MHz"),
        ({"ms": [1.0], "conditions": {"sm_clock_mhz": None}}, None),
        ({"ms": [1.0, 2.0], "round": [3, 1]}, None),
        ({"first_call_ms": "x"}, None),
        ([1], None),
    ],
)
def test_a_record_of_times_that_no_timer_writes_is_told(record: Any, told: str | None) -> None:
    assert misshapen(record) == told


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_whole_number_beyond_every_float_is_infinite(tmp_path: Path, digits: int) -> None:
    csv = tmp_path / "t.csv"
    line = '{"key":"a","samples":{"ms":[%s],"round":[7]}}\n' % ("9" * digits)
    samples_path(csv).write_bytes(gzip.compress(line.encode()))
    assert read_samples(csv) == {"a": {"ms": [math.inf], "round": [7]}}


@pytest.mark.parametrize(
    "again",
    [{}, {"interleaved_with": ["eager"]}, {"conditions": {"sm_clock_mhz": 1755.0, "power_w": 301.5}}],
    ids=["in turn", "measured again alone", "measured again in the same company"],
)
def test_rounds_are_common_to_what_was_timed_in_one_run(again: dict[str, Any]) -> None:
    """Every run counts its rounds from zero."""
    record = {
        "round": [0, 1, 2], "interleaved_with": ["eager", "fused"],
        "conditions": {"sm_clock_mhz": 1755.0, "power_w": 300.2},
    }  # fmt: skip
    one, other = {**record, "ms": [1.0, 2.0, 3.0]}, {**record, "round": [0, 2, 3], "ms": [4.0, 5.0, 6.0], **again}
    assert common_rounds(one, other) == (([], []) if again else ([1.0, 3.0], [4.0, 5.0]))
    assert common_rounds(one, None) == ([], [])
