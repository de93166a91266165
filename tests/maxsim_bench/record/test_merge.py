"""Merging is a union that does not depend on order and refuses contradictions before it writes anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxsim_bench.record.environments import add_environments, read_environments
from maxsim_bench.record.files import StoreError
from maxsim_bench.record.merge import Merged, merge, merge_rows
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples, read_samples, samples_path
from maxsim_bench.record.store import Store

MakeRow = Callable[..., Row]
numbers = st.lists(st.integers(1, 9), unique=True, max_size=6)


@given(a=numbers, b=numbers, c=numbers)
def test_merging_is_commutative_associative_and_idempotent(
    row: MakeRow, a: list[int], b: list[int], c: list[int]
) -> None:
    x, y, z = ([row(B) for B in part] for part in (a, b, c))
    both = merge_rows([("x", x), ("y", y)])
    assert both == merge_rows([("y", y), ("x", x)])
    assert merge_rows([("xy", both), ("z", z)]) == merge_rows([("x", x), ("yz", merge_rows([("y", y), ("z", z)]))])
    assert merge_rows([("xy", both), ("xy", both)]) == both
    assert {r.cell.B for r in both} == set(a) | set(b)


def test_rows_that_disagree_are_named_with_both_values(row: MakeRow) -> None:
    with pytest.raises(StoreError) as caught:
        merge_rows([("a.csv", [row(1), row(2)]), ("b.csv", [row(1, latency_ms=7.0)])])
    assert str(caught.value) == (
        f"{row(1).key}: a.csv and b.csv disagree: latency_ms 1.1 and 7.0\n"
        "Nothing was merged. Delete the rows that are wrong, then merge again."
    )


def test_a_directory_merges_file_by_file_with_samples_and_environments(tmp_path: Path, row: MakeRow) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder, B in ((theirs, 1), (ours, 2)):
        Store(folder / "h200" / "t.csv").append([row(B), row(3)])
        append_samples(folder / "h200" / "t.csv", {row(B).key: [B, B], row(3).key: [3]})
        add_environments(folder / "h200", {f"env{B}": {"torch": "2"}})
    target = ours / "h200" / "t.csv"
    assert merge([theirs], ours) == [Merged(target, added=1, present=2)]
    assert {r.cell.B for r in Store(target).rows()} == {1, 2, 3}
    assert read_samples(target) == {row(1).key: [1, 1], row(2).key: [2, 2], row(3).key: [3]}
    assert set(read_environments(ours / "h200")) == {"env1", "env2"}
    assert merge([theirs], ours) == [Merged(target, added=0, present=3)]


def test_a_conflict_in_one_file_leaves_every_file_as_it_was(tmp_path: Path, row: MakeRow) -> None:
    Store(tmp_path / "in" / "a.csv").append([row(1)])
    Store(tmp_path / "in" / "b.csv").append([row(2)])
    Store(tmp_path / "out" / "b.csv").append([row(2, latency_ms=9.0)])
    with pytest.raises(StoreError, match=r"latency_ms 9\.0 and 2\.1"):
        merge([tmp_path / "in"], tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").glob("*.csv")) == ["b.csv"]
    assert Store(tmp_path / "out" / "b.csv").rows() == [row(2, latency_ms=9.0)]


@pytest.mark.parametrize(
    ("source", "into", "told"),
    [("none", "out", "is not there"), ("empty", "out", "holds no CSV"), ("full", "one.csv", "is one file, but")],
)
def test_what_cannot_be_merged_is_told(tmp_path: Path, row: MakeRow, source: str, into: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    Store(tmp_path / "full" / "a.csv").append([row(1)])
    with pytest.raises(StoreError, match=told):
        merge([tmp_path / source], tmp_path / into)


def test_what_lies_beside_a_csv_in_the_folder_of_its_name_goes_along(tmp_path: Path, row: MakeRow) -> None:
    away, here = tmp_path / "away", tmp_path / "here"
    Store(away / "h200" / "fidelity.csv").append([row(1)])
    for name, text in (("cell.csv", "query,reference\nq,0.5\n"), ("known.json", "theirs")):
        (away / "h200" / "fidelity").mkdir(exist_ok=True)
        (away / "h200" / "fidelity" / name).write_text(text)
    (here / "h200" / "fidelity").mkdir(parents=True)
    (here / "h200" / "fidelity" / "known.json").write_text("ours")
    assert [m.added for m in merge([away], here)] == [1]
    assert (here / "h200" / "fidelity" / "cell.csv").read_text() == "query,reference\nq,0.5\n"
    assert (here / "h200" / "fidelity" / "known.json").read_text() == "ours"


@pytest.mark.parametrize("where", ["in", "out"])
@pytest.mark.parametrize("damaged", ["b.samples.jsonl.gz", "environment.json"])
def test_a_file_that_cannot_be_read_leaves_every_file_as_it_was(
    tmp_path: Path, row: MakeRow, where: str, damaged: str
) -> None:
    for name, B in (("a", 1), ("b", 2)):
        Store(tmp_path / "in" / f"{name}.csv").append([row(B)])
    (tmp_path / "out").mkdir()
    (tmp_path / where / damaged).write_text("junk")
    with pytest.raises(StoreError, match=f"{where}/{damaged}"):
        merge([tmp_path / "in"], tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir() if p.name != damaged] == []


def test_what_a_source_had_lost_is_told(tmp_path: Path, row: MakeRow) -> None:
    """Rows without their samples are rows; merging the whole file later would not bring the samples."""
    source = tmp_path / "in" / "t.csv"
    Store(source).append([row(1), row(2), row(3)])
    append_samples(source, {row(1).key: [1]})
    append_samples(source, {row(2).key: [2]})
    source.write_bytes(source.read_bytes()[:-5])
    samples_path(source).write_bytes(samples_path(source).read_bytes()[:-5])
    (done,) = merge([source], tmp_path / "out")
    assert (done.added, done.present) == (2, 0)
    assert done.lost == (
        f"{source}: the last line is cut; 2 rows read",
        f"{samples_path(source)}: is cut: 1 of the rows that were added have no samples",
    )
    assert merge([source], tmp_path / "out")[0].lost == (f"{source}: the last line is cut; 2 rows read",)


def test_added_rows_that_contradict_their_samples_are_told(tmp_path: Path, row: MakeRow) -> None:
    source = tmp_path / "in" / "t.csv"
    Store(source).append([row(1), row(2), row(3)])
    append_samples(source, {row(1).key: {"ms": [1.1]}, row(2).key: {"ms": [4.2]}, row(3).key: {"ms": ["fast"]}})
    (done,) = merge([source], tmp_path / "out")
    assert done.added == 3
    assert done.lost == ()
    assert [told.partition(". ")[0] for told in done.contradicted] == [
        f"{source}: latency_ms is 2.1, but the median of its samples is 4.2 ({row(2).key})",
        f"{source}: a sample is fast, no number, ({row(3).key})",
    ]
    assert merge([source], tmp_path / "out")[0].contradicted == ()
