"""The experiments of the project: each loads, has cells, and fits the time it promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from maxsim_bench.backends.registry import backends
from maxsim_bench.declare.estimate import plan_seconds
from maxsim_bench.declare.experiment import PROFILES, Experiment, ProfileName
from maxsim_bench.declare.load import load, load_directory

FOLDER = Path(__file__).parents[3] / "experiments"
NAMES = [path.stem for path in sorted(FOLDER.glob("*.toml"))]


def experiment(name: str) -> Experiment:
    return load(FOLDER / f"{name}.toml", backends())


def test_all_files_load_together() -> None:
    assert list(load_directory(FOLDER, backends())) == NAMES
    assert {"forward", "lengths", "frontier_chunked", "memory_scaling", "smoke"} <= set(NAMES)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_cells_under_every_profile(name: str, profile: ProfileName) -> None:
    declared = experiment(name)
    gpu = next(g for g in declared.gpus(profile) if g != "any")
    cells = declared.cells(gpu, profile)
    assert cells
    assert len({c.hash() for c in cells}) == len(cells)


@pytest.mark.parametrize("name", NAMES)
def test_every_constraint_leaves_something_out_under_some_profile(name: str) -> None:
    assert experiment(name).idle() == []


def test_experiments_name_elements_of_the_paper_as_its_claims_do() -> None:
    known = tomllib.loads((FOLDER / "paper" / "elements.toml").read_text("utf-8"))
    for name in NAMES:
        assert set(experiment(name).elements) <= set(known), name


def test_the_first_quantised_cell_is_the_smallest_so_that_a_run_cut_short_has_rows() -> None:
    cells = experiment("int8").cells("h200", "paper")
    pairs = [(c.Nq or 0) * (c.B or 0) * (c.Lq or 0) * (c.Ld or 0) for c in cells]
    assert pairs[0] == min(pairs)


def test_no_cell_of_the_papers_profile_compiles_a_kernel_that_unrolls_a_query_of_a_thousand_tokens() -> None:
    planned = experiment("int8").plan("h200", "paper").planned
    assert {p.cell.Lq for p in planned if "lik_fp8" in p.backends} == {32}


def test_the_papers_profile_of_forward_is_planned_within_ten_minutes_on_an_h200() -> None:
    """With medians of samples enough, which do not make a row another row: a cell says nothing of them."""
    paper = experiment("forward").under("paper")
    assert plan_seconds(paper.plan("h200"), paper.timing) < 600
    assert paper.timing.min_samples >= 25
    few = paper.model_copy(update={"timing": paper.timing.model_copy(update={"min_samples": 7})})
    assert [cell.hash() for cell in few.cells("h200")] == [cell.hash() for cell in paper.cells("h200")]


def test_the_smoke_grid_is_planned_within_four_minutes_on_two_cores() -> None:
    smoke = experiment("smoke").under("smoke")
    assert plan_seconds(smoke.plan("cpu"), smoke.timing) < 240


def test_forward_measures_the_five_canonical_shapes_from_hundred_to_hundred_thousand() -> None:
    cells = [c for c in experiment("forward").cells("h200") if c.timing_policy == "cold_l2" and c.dtype == "fp16"]
    shapes = {(c.Lq, c.Ld) for c in cells}
    assert shapes == {(32, 300), (32, 1024), (128, 1024), (512, 1024), (1024, 1024)}
    assert {(c.Lq, c.Ld, c.B) for c in cells} == {(*s, B) for s in shapes for B in (100, 1000, 10000, 100000)}


def test_compiled_backends_run_in_the_papers_profile_at_fp16_and_a_thousand_documents_only() -> None:
    planned = experiment("forward").plan("h200", "paper").planned
    compiled = {(p.cell.dtype, p.cell.B) for p in planned if "compiled" in p.backends}
    assert compiled == {("fp16", 1000)}


def test_every_chunk_is_measured_up_to_the_corpus_and_the_rest_beside_one_of_them() -> None:
    planned = experiment("frontier_chunked").plan("h200").planned
    assert all(p.cell.chunk is not None and p.cell.B is not None and p.cell.chunk <= p.cell.B for p in planned)
    assert {p.cell.chunk for p in planned if "eager" in p.backends} == {0, 1024}
    assert {p.cell.chunk for p in planned} == {0, 1, 4, 16, 64, 256, 1024, 4096, 16384}
