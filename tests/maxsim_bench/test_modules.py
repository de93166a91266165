"""Commands run as modules end as `maxsim-bench` does: bounds of options are usage errors, a failure is a sentence."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maxsim_bench import gradient_audit, parity, training_capacity, training_curve, tune, tune_backward
from maxsim_bench.machine import Machine
from maxsim_bench.modules import ended_in_one_line
from maxsim_bench.record import environments
from maxsim_bench.record.store import Store
from maxsim_bench.retrieve import contrastive
from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.encoders.base import EncoderError
from maxsim_bench.stopping import STOPPED

COMMANDS = (gradient_audit, training_capacity, parity, training_curve)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor for those that run on one; a card, which is not used, for the one that asks for it."""
    for command in COMMANDS:
        monkeypatch.setattr(command, "this_machine", lambda: Machine("cpu", "cpu", "a processor", 1 << 33, 1))
    monkeypatch.setattr(
        training_capacity, "this_machine", lambda: Machine("cuda", "h200", "a card", 1 << 37, 2), raising=True
    )
    monkeypatch.setattr(contrastive, "scifact", lambda *given: None)


def started(command, folder: Path, *options: str) -> None:
    small = ["--profile", "smoke"] if command in (parity, training_curve) else []
    command.main([*small, "--into", str(folder), *options])


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (gradient_audit, ["--pairs", "0"], "argument --pairs: 0 is less than 1"),
        (gradient_audit, ["--pairs", "-3"], "argument --pairs: -3 is less than 1"),
        (gradient_audit, ["--pairs", "many"], "argument --pairs: many is not a whole number"),
        (gradient_audit, ["--processes", "-1"], "argument --processes: -1 is less than 1"),
        (gradient_audit, ["--processes", "0"], "argument --processes: 0 is less than 1"),
        (training_capacity, ["--largest", "63"], "argument --largest: 63 is less than 64"),
        (training_capacity, ["--step-seconds", "0"], "argument --step-seconds: 0 is not a finite"),
        (training_capacity, ["--step-seconds", "nan"], "argument --step-seconds: nan is not a finite"),
        (training_capacity, ["--step-seconds", "soon"], "argument --step-seconds: soon is not a number"),
        (parity, ["--projection", "no/such/folder/w.safetensors"], "argument --projection: no/such/folder is not a"),
    ],
)
def test_an_option_out_of_bounds_is_a_usage_error(tmp_path, capsys, command, options, message):
    with pytest.raises(SystemExit) as end:
        started(command, tmp_path, *options)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [*COMMANDS, tune, tune_backward])
def test_the_help_of_a_module_shows_its_examples_in_their_lines_and_nothing_of_the_code(monkeypatch, capsys, command):
    monkeypatch.setattr("sys.argv", ["-m", "--help"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 0
    told = capsys.readouterr().out
    name = command.__name__
    assert told.startswith(f"usage: python -m {name} ")
    assert f"\n    python -m {name} " in told
    assert "import" not in told


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        ("maxsim_bench.retrieve.difficulty", "COLLECTION"),
        ("maxsim_bench.retrieve.length_statistics", "COLLECTION"),
        ("maxsim_bench.retrieve.encoders.minilm", "FOLDER"),
    ],
)
def test_a_module_of_retrieval_takes_no_option_for_a_name(tmp_path, module, wanted):
    told = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert wanted in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_difficulty_of_what_is_no_collection_is_a_sentence(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "maxsim_bench.retrieve.difficulty", "no-such"],
        env={**os.environ, "MAXSIM_BENCH_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert told.stderr.startswith("Error: ")
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_in_use_is_one_line(tmp_path, capsys, command):
    with Store(tmp_path / f"{command.EXPERIMENT}.csv").lock(), pytest.raises(SystemExit) as end:
        started(command, tmp_path)
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("Error: ")
    assert "is being written by process" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_one_line(tmp_path, capsys, monkeypatch, command, number):
    monkeypatch.setattr(environments, "add_environments", lambda *given: signal.raise_signal(number))
    with pytest.raises(SystemExit) as end:
        started(command, tmp_path)
    assert (end.value.code, capsys.readouterr().err) == (1, f"{STOPPED}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_is_full_where_the_lock_is_written_is_one_line(tmp_path, capsys, monkeypatch, command):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(environments, "add_environments", full)
    with pytest.raises(SystemExit) as end:
        started(command, tmp_path)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("Error: No space left on device. Every finished row is kept")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_where_the_folder_should_be_is_one_line(tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as end:
        started(command, tmp_path / "file")
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"Error: {tmp_path / 'file'}")


@pytest.mark.parametrize("error", [DataError("no such archive"), EncoderError("no such weights")])
def test_data_and_weights_that_are_not_there_are_one_line(tmp_path, capsys, monkeypatch, error):
    def load(*given):
        raise error

    monkeypatch.setattr(contrastive, "scifact", load)
    with pytest.raises(SystemExit) as end:
        started(parity, tmp_path)
    assert (end.value.code, capsys.readouterr().err) == (2, f"Error: {error}\n")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("a bug")])
def test_a_bug_shows(error):
    with pytest.raises(type(error), match="a bug"), ended_in_one_line():
        raise error
