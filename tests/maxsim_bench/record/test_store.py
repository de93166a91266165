"""The store loses no finished row, keeps no torn one, and says what is wrong with a file and what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxsim_bench.record import files
from maxsim_bench.record.files import StoreError, append_durably, replace_file
from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store

MakeRow = Callable[..., Row]
words = st.text(min_size=1, max_size=30)
numbers = st.floats(allow_nan=False)
contents = st.fixed_dictionaries(
    {"backend": words, "backend_version": words, "error": words},
    optional={
        "max_abs_err": numbers,
        "input_bytes": st.integers(0, 2**70),
        "kernel_config": words,
        "extra": st.dictionaries(words, words).map(json.dumps),
    },
)
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


@shared
@given(fields=st.lists(contents, min_size=1, max_size=4, unique_by=lambda f: (f["backend"], f["backend_version"])))
def test_what_is_written_is_what_is_read(tmp_path: Path, row: MakeRow, fields: list[dict[str, Any]]) -> None:
    path = tmp_path / "t.csv"
    path.unlink(missing_ok=True)
    rows = [row(status="error", **f) for f in fields]
    rows = list({r.key: r for r in rows}.values())
    Store(path).append(rows)
    assert Store(path).rows() == rows


@shared
@given(value=numbers.filter(lambda x: 0 < x < math.inf), count=st.integers(1, 2**40))
def test_numbers_come_back_to_the_bit(tmp_path: Path, row: MakeRow, value: float, count: int) -> None:
    path = tmp_path / "n.csv"
    path.unlink(missing_ok=True)
    Store(path).append([row(latency_ms=value, samples=count)])
    (read,) = Store(path).rows()
    assert (read.latency_ms, read.samples) == (value, count)


def test_a_file_cut_at_any_byte_keeps_its_finished_rows_and_goes_on(tmp_path: Path, row: MakeRow) -> None:
    whole = tmp_path / "whole.csv"
    rows = [row(1), row(2, status="crash", error='two\nlines, "quoted"\r\n\\n'), row(3, latency_ms=2.5)]
    Store(whole).append(rows)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    assert len(ends) == 4
    cut = tmp_path / "cut.csv"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        finished = max(sum(end <= length for end in ends) - 1, 0)
        store = Store(cut)
        assert store.rows() == rows[:finished]
        store.append(r for r in rows if not store.has(r.key))
        assert cut.read_bytes() == data


def test_what_was_cut_off_is_told(tmp_path: Path, row: MakeRow) -> None:
    store = Store(tmp_path / "t.csv")
    assert store.cut() is None
    store.append([row(1), row(2)])
    data = store.path.read_bytes()
    header = data.index(b"\n")
    for length, told in (
        (len(data), None),
        (len(data) - 1, "the last line is cut; 1 rows read"),
        (header + 2, "the last line is cut; 0 rows read"),
        (header, "no header: not read"),
        (0, "no header: not read"),
    ):
        store.path.write_bytes(data[:length])
        assert store.cut() == told


def test_a_number_cut_to_its_point_is_not_a_number(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "t.csv"
    Store(path).append([row(latency_ms=2.5)])
    path.write_text(path.read_text().replace(",2.5,", ",2.,"))
    with pytest.raises(StoreError, match=r"t\.csv:2: latency_ms is '2\.', which is no float"):
        Store(path).rows()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (",NVIDIA H200", "", r"t\.csv:2: \d+ fields where the header names \d+"),
        (",fp16,", ",fp61,", r"t\.csv:2: dtype: Input should be 'fp16', 'bf16' or 'fp32'"),
        (",fp16,", ",bf16,", r"t\.csv:2: cell_hash is .*: a field was changed"),
        (
            ",ok,",
            ",oom,",
            r"t\.csv:2: status 'oom' holds no measurement, but latency_ms, samples is filled",
        ),
        (",1.1,", ",-1.1,", r"t\.csv:2: latency_ms is -1\.1, but what was measured is finite and positive\. Restore"),
        (",fused,", ',fu"s"ed,"x,', r"t\.csv:2: not a line of CSV"),
        (",speedup_low,", ",speedup,", r"t\.csv:1: names speedup twice"),
        ("cell_hash,", "cell_hush,", r"t\.csv:1: unknown columns cell_hush: .*another version"),
        (",1,2026-01-01", ",0,2026-01-01", r"t\.csv:2: schema 0, but .* reads schema 1\. Move the file away"),
    ],
)
def test_a_damaged_line_is_named_with_what_to_do(tmp_path: Path, row: MakeRow, old: str, new: str, told: str) -> None:
    path = tmp_path / "t.csv"
    Store(path).append([row()])
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new, 1))
    with pytest.raises(StoreError, match=told):
        Store(path).rows()


def test_a_lost_header_is_not_taken_for_another_version(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "t.csv"
    Store(path).append([row(1), row(2)])
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(
        StoreError, match=r"t\.csv:1: no header of a results file: .* put back the first line of another"
    ):
        Store(path).rows()


def test_a_file_that_a_spreadsheet_saved_is_read_and_goes_on(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "t.csv"
    Store(path).append([row(1)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    store = Store(path)
    assert store.rows() == [row(1)]
    store.append([row(2)])
    assert Store(path).rows() == [row(1), row(2)]


def test_something_else_than_a_results_file_is_not_overwritten(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("my notes")
    with pytest.raises(StoreError, match="no header of a results file"):
        Store(path).append([row()])
    assert path.read_text() == "my notes"


def test_a_file_from_before_a_column_was_added_is_read_and_gets_the_column(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "t.csv"
    Store(path).append([row(1)])
    lines = [line.split(",") for line in path.read_text().splitlines()]
    at = lines[0].index("extra")
    path.write_text("".join(",".join(f[:at] + f[at + 1 :]) + "\n" for f in lines))
    store = Store(path)
    assert store.rows() == [row(1)]
    store.append([row(2)])
    assert Store(path).rows() == [row(1), row(2)]
    assert path.read_text().startswith(",".join(Row.columns()) + "\n")


def test_a_row_is_never_stored_twice_and_force_replaces_it(tmp_path: Path, row: MakeRow) -> None:
    store = Store(tmp_path / "t.csv")
    store.append([row(1), row(1), row(2)])
    store.append([row(1)])
    assert len(store.rows()) == 2
    with pytest.raises(StoreError, match=r"is measured already. Use --force"):
        store.append([row(1, latency_ms=9.0)])
    store.replace([row(1, latency_ms=9.0)])
    assert [r.latency_ms for r in Store(store.path).rows()] == [9.0, 2.1]


def test_a_key_that_a_file_holds_twice_is_named(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "t.csv"
    Store(path).append([row()])
    path.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(StoreError, match=r"t\.csv:3: .*/fused/v1 is there twice"):
        Store(path).rows()


def test_two_stores_of_one_file_see_each_others_rows(tmp_path: Path, row: MakeRow) -> None:
    one, two = Store(tmp_path / "t.csv"), Store(tmp_path / "t.csv")
    one.append([row(1)])
    two.append([row(2)])
    assert one.rows() == two.rows() == [row(1), row(2)]


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path: Path, row: MakeRow) -> None:
    path = tmp_path / "t.csv"
    program = (
        "import sys; from maxsim_bench.record.store import Store\n"
        "with Store(sys.argv[1]).lock(): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=rf"t\.csv is being written by process {holder.pid} on .*Wait for it"):
            Store(path).append([row()])
        holder.kill()
    Store(path).append([row()])
    assert len(Store(path).rows()) == 1


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, row: MakeRow) -> None:
    """A limit on the size of files stands in for the disk; a subprocess, because the limit stays."""
    path = tmp_path / "t.csv"
    Store(path).append([row(1)])
    before = path.read_bytes()
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom maxsim_bench.record.files import append_durably\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))\n"
        "append_durably(Path(sys.argv[1]), b'x' * 1000, at=int(sys.argv[2]) - 10)"
    )
    command = [sys.executable, "-c", program, str(path), str(len(before) + 10)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be written: File too large. Every earlier row is safe." in done.stderr
    assert path.read_bytes() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_no_space_is_told_in_words() -> None:
    from maxsim_bench.record.files import disk_error

    told = str(disk_error(Path("r.csv"), OSError(errno.ENOSPC, "No space left on device")))
    assert told == "r.csv: the disk is full. Every earlier row is safe; free some space and run the same command again."


def test_reading_what_is_not_there_gives_no_rows_and_makes_no_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "none" / "t.csv")
    assert store.rows() == []
    assert not store.has("x/y/z")
    assert list(tmp_path.iterdir()) == []


def test_appending_durably_cuts_what_lies_behind(tmp_path: Path) -> None:
    path = tmp_path / "f"
    append_durably(path, b"abcdef", at=0)
    append_durably(path, b"X", at=3)
    assert path.read_bytes() == b"abcX"


def test_a_replacement_that_ctrl_c_cuts_short_leaves_the_file_as_it_was_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.csv").write_bytes(b"old")

    def interrupted(file: object, data: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "x.csv", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x.csv": b"old"}
