"""What cannot be printed is one line and an exit code, no traceback; a reader that has left is not even told."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from maxsim_bench.cli import Commands
from maxsim_bench.printing import told_if_unwritable

ROOT = Path(__file__).parents[2]
TOLD = "Error: standard output: No space left on device. Send it where there is room.\n"
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def started(*words: str, **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "maxsim_bench.cli", *words], cwd=ROOT, text=True, check=False, **streams
    )  # type: ignore[call-overload]


@full
@pytest.mark.parametrize("words", [("--help",), ("list", "--help"), ("list", "experiments"), ("help", "--markdown")])
def test_a_full_disk_is_one_line_and_exit_code_2(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as nowhere:
        done = started(*words, stdout=nowhere, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, TOLD)


@full
def test_where_standard_error_too_is_full_the_exit_code_says_it() -> None:
    with Path("/dev/full").open("w") as nowhere:
        assert started("--help", stdout=nowhere, stderr=nowhere).returncode == 2


def test_a_letter_that_the_encoding_lacks_is_escaped() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin1"}
    done = started("help", "--markdown", stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u" in done.stdout


@pytest.mark.parametrize("words", [("--help",), ("help", "--markdown")])
def test_a_reader_that_has_left_is_told_nothing(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = started(*words, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_progress_that_nobody_reads_ends_a_sweep_without_a_word(tmp_path: Path) -> None:
    """Standard error is a pipe that its reader has left, as under `2>&1 | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    words = ["run", "smoke", "--into", str(tmp_path), "--backend", "eager", "--where", "Nq=1", "--where", "B=16"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = started(*words, stdout=writer, stderr=writer, env=environment)
    os.close(writer)
    assert done.returncode == 1


@full
def test_a_line_for_the_log_that_nobody_takes_is_exit_code_2() -> None:
    """Standard error alone: the mistake cannot be told, and is none of the program's."""
    with Path("/dev/full").open("w") as nowhere:
        done = started("plan", "no-such", stdout=subprocess.PIPE, stderr=nowhere)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_stream_that_was_never_open_changes_no_exit_code(closed: str) -> None:
    """A service may start a command without standard output, which Python then has as None."""
    words = [sys.executable, "-m", "maxsim_bench.cli", "compare", "results", "results", "--experiment", "traffic"]
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.join(words)} {closed}"], cwd=ROOT, text=True, check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def raising(error: OSError) -> click.Group:
    group = Commands("made-up")

    @group.command()
    def write() -> None:
        raise error

    return group


def test_a_full_disk_under_a_file_of_a_command_says_that_rows_are_kept() -> None:
    done = CliRunner().invoke(raising(OSError(errno.ENOSPC, "No space left on device")), ["write"])
    assert done.exit_code == 2
    assert done.stderr == (
        "Error: No space left on device. Every finished row is kept; free some space and run the same command again.\n"
    )


def test_a_file_that_cannot_be_used_is_named_as_before() -> None:
    done = CliRunner().invoke(raising(OSError(errno.ENOSPC, "No space left on device", "r.csv")), ["write"])
    assert done.exit_code == 2
    assert done.stderr == "Error: r.csv: No space left on device. Check the path, or name another.\n"


def test_any_other_error_is_a_bug_and_shows() -> None:
    with pytest.raises(OSError, match="Bad address"):
        CliRunner().invoke(raising(OSError(errno.EFAULT, "Bad address")), ["write"], catch_exceptions=False)


def test_an_error_that_names_a_file_is_left_to_who_knows_the_file() -> None:
    with pytest.raises(OSError, match=r"r\.csv"), told_if_unwritable():
        raise OSError(errno.ENOSPC, "No space left on device", "r.csv")
