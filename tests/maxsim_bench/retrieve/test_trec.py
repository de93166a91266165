"""Run files are read and written without loss, and a wrong line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.trec import evaluate_files, read_run, write_run


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    run = {"q1": {"a": 0.1 + 0.2, "b": -3.0, "c": 1e-30}, "q2": {"a": float("-inf")}}
    write_run(tmp_path / "x.run", run, "tag")
    assert read_run(tmp_path / "x.run") == run
    first = (tmp_path / "x.run").read_text().splitlines()[0].split()
    assert first == ["q1", "Q0", "a", "1", "0.30000000000000004", "tag"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("q Q0 a 1 1.0\n", r":1: 5 columns"),
        ("q Q0 a 1 1.0 t\nq Q0 b 2 high t\n", r":2: query 'q', document 'b': score 'high'"),
        ("q Q0 a 1 nan t\n", r":1: .* score 'nan'"),
        ("q Q0 a 1 1.0 t\np Q0 a 1 1.0 t\nq Q0 a 2 0.5 t\n", r":3: query 'q' has document 'a' already, on line 1"),
        ("\n", "holds no result"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.run").write_text(text)
    with pytest.raises(DataError, match=told):
        read_run(tmp_path / "x.run")


def test_a_run_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.run").write_bytes(b"q Q0 a 1 1.0 t\nq Q0 \xff 2 0.5 t\n")
    with pytest.raises(DataError, match=r":2: byte 5 is not UTF-8"):
        read_run(tmp_path / "x.run")


@pytest.mark.parametrize("run", [{"q 1": {"a": 1.0}}, {"q": {"a b": 1.0}}])
def test_an_id_with_a_blank_cannot_be_written(tmp_path: Path, run) -> None:
    with pytest.raises(DataError, match="holds a blank"):
        write_run(tmp_path / "x.run", run, "tag")


def test_anyones_run_is_judged_by_anyones_judgements(tmp_path: Path) -> None:
    (tmp_path / "x.run").write_text("q Q0 q 1 9 t\nq Q0 d 2 1 t\n")
    (tmp_path / "qrels.txt").write_text("q 0 d 1\n")
    assert evaluate_files(tmp_path / "x.run", tmp_path / "qrels.txt").means["ndcg_at_10"] == pytest.approx(
        0.63093, abs=1e-5
    )
    dropped = evaluate_files(tmp_path / "x.run", tmp_path / "qrels.txt", drop_own_id=True)
    assert dropped.means["ndcg_at_10"] == 1.0
    with pytest.raises(DataError, match="no such file"):
        evaluate_files(tmp_path / "x.run", tmp_path / "nowhere.txt")
