"""An artefact's origin is the command and the hashes of what it read, wherever the checkout lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from maxsim_bench import __version__
from maxsim_bench.record.provenance import Provenance


def made(root: Path) -> Provenance:
    (root / "h200").mkdir(parents=True)
    (root / "h200" / "a.csv").write_text("a\n")
    return Provenance.of([root / "h200" / "a.csv"], root, ["maxsim-bench", "report", "my results"])


def test_the_lines_name_command_version_and_hash(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"a\n").hexdigest()
    assert made(tmp_path).lines() == [
        f"made by `maxsim-bench report 'my results'` (maxsim-bench {__version__}) from",
        f"h200/a.csv sha256:{digest}",
    ]


def test_it_does_not_depend_on_where_the_checkout_lies(tmp_path: Path) -> None:
    assert made(tmp_path / "x") == made(tmp_path / "y")


def test_inputs_that_changed_or_went_are_stale(tmp_path: Path) -> None:
    origin = made(tmp_path)
    assert origin.stale(tmp_path) == []
    (tmp_path / "h200" / "a.csv").write_text("b\n")
    assert origin.stale(tmp_path) == ["h200/a.csv"]
    (tmp_path / "h200" / "a.csv").unlink()
    assert origin.stale(tmp_path) == ["h200/a.csv"]
