"""From a row to where it comes from: the commit is its session's, not that of another session under the same id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maxsim_bench.record.environments import add_environments
from maxsim_bench.record.row import Row
from maxsim_bench.report.claims import Paper, ledger, read_paper
from maxsim_bench.report.claims.ledger import Ledger
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.load import Results, load
from maxsim_bench.report.origins import origins
from maxsim_bench.report.page import environments

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
EARLIER = {
    "gpu": "a",
    "captured_at": "2026-01-01T10:00:00+00:00",
    "git_commit": "1" * 40,
    "ceilings": {"read_gbs": 4500},
}
LATER = {**EARLIER, "captured_at": "2026-01-01T20:00:00+00:00", "git_commit": "2" * 40, "ceilings": "unknown: crashed"}


def measured(made: Any, folder: Path) -> Results:
    """Two rows under one environment id, one of each session."""
    rows: list[Row] = []
    for backend, hour in (("eager", 11), ("fused", 21)):
        at = f"2026-01-01T{hour}:00:00+00:00"
        rows.append(made.modelled(made.cell(), backend).model_copy(update={"environment_id": "e", "measured_at": at}))
    made.written(folder, rows)
    add_environments(folder / "h200", {"e": EARLIER})
    add_environments(folder / "h200", {"e": LATER})
    return load([folder])


def test_a_row_is_shown_with_the_commit_of_its_own_session(tmp_path: Path, made: Any) -> None:
    nothing = Ledger(paper=None, entries=())  # type: ignore[arg-type]  # no claim leads to these rows
    found = origins(measured(made, tmp_path), nothing, Declared({}), tmp_path)
    (page,) = found.pages.values()
    shown = {line["row"].backend: line["commit"] for cell in page["cells"] for line in cell["rows"]}
    assert shown == {"eager": "1" * 12, "fused": "2" * 12}


def test_a_claim_over_several_cells_is_named_at_each_and_one_that_nothing_answers_at_none(
    tmp_path: Path, made: Any
) -> None:
    """Ours beside a claim that is not measured answers nothing, so its rows do not say so."""
    paper = read_paper(EXPERIMENTS / "paper")
    abstract = {c.variant: c for c in paper.claims if c.paper_element == "abstract (EMNLP)"}["range=low"]
    path = next(c for c in paper.claims if (c.paper_element, c.backend, c.metric) == ("tab:bwd_abl", "csr", "peak_gb"))
    sizes = {"op": "training_step", "Nq": path.Nq, "B": path.B, "Lq": path.Lq, "Ld": path.Ld}
    step = made.cell("backward_paths", variant="loss=cross_entropy", **sizes)
    cells = [made.cell("frontier_chunked", B=B, Lq=512, Ld=1024, chunk=1024) for B in (10_000, 20_000)]
    rows = made.sweep(cells, ["eager", "chunked", "flash_maxsim"])
    made.written(tmp_path, [*rows, made.modelled(step, "fused").model_copy(update={"backend": "train_csr"})])
    results, declared = load([tmp_path]), Declared.below(EXPERIMENTS)
    judged = ledger(Paper((abstract, path), paper.tolerances, paper.mapping, paper.elements), results, declared)
    assert [e.verdict == "not measured" for e in judged.entries] == [False, True]
    assert judged.entries[1].cell == step.hash()
    pages = origins(results, judged, declared, tmp_path).pages.values()
    shown = {cell["hash"]: [c.claim_id for c in cell["claims"]] for page in pages for cell in page["cells"]}
    assert shown == {**{cell.hash(): [abstract.claim_id] for cell in cells}, step.hash(): []}


def test_an_environment_counts_the_rows_of_each_session(tmp_path: Path, made: Any) -> None:
    (one,) = [e for e in environments(measured(made, tmp_path)) if e["id"] == "e"]
    assert [(s["began"][11:13], s["rows"], s["commit"]) for s in one["sessions"]] == [
        ("10", "1", "1" * 12),
        ("20", "1", "2" * 12),
    ]
    assert [s["reached"] for s in one["sessions"]] == ["read [GB/s] 4500", "not measured"]


def test_a_session_tells_how_fast_copies_from_host_memory_were(tmp_path: Path, made: Any) -> None:
    results = measured(made, tmp_path)
    reached = {"read_gbs": 4500, "host_copy_gbs": 55.25}
    results.environments["e"]["sessions"][0]["ceilings"] = reached
    (one,) = [e for e in environments(results) if e["id"] == "e"]
    assert one["sessions"][0]["reached"] == "read [GB/s] 4500, copy from host memory [GB/s] 55.25"


def test_sessions_that_are_alike_are_one_line_with_the_rows_of_all(tmp_path: Path, made: Any) -> None:
    """Every sweep of a command keeps one; what differs in anything that is shown stays apart."""
    results = measured(made, tmp_path)
    first, other = results.environments["e"]["sessions"]
    again = {**first, "captured_at": other["captured_at"]}
    results.environments["e"]["sessions"][1] = again
    (one,) = [e for e in environments(results) if e["id"] == "e"]
    (line,) = one["sessions"]
    assert (line["began"], line["rows"], line["commit"]) == (
        f"{first['captured_at']} and 1 more until {other['captured_at']}", "2", "1" * 12,
    )  # fmt: skip
    for apart in ({"git_commit": "2" * 40}, {"ceilings": {"read_gbs": 4400}}, {"packages": {"numpy": "2"}}):
        results.environments["e"]["sessions"][1] = {**again, **apart}
        (one,) = [e for e in environments(results) if e["id"] == "e"]
        assert [line["rows"] for line in one["sessions"]] == ["1", "1"], apart
