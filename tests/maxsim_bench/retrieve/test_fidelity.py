"""From tasks to rows: what holds the limit passes, what does not is caught and named, and nothing is audited twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from maxsim_bench.record.store import Store
from maxsim_bench.retrieve import details, fidelity
from maxsim_bench.retrieve.encoders.registry import EncoderKind, encoder_kinds
from maxsim_bench.retrieve.fidelity import Settings, run_fidelity
from maxsim_bench.retrieve.isolate import Dead, in_own_process
from maxsim_bench.retrieve.tasks import plan_tasks
from maxsim_bench.retrieve.trec import read_run

WORDS = [
    "apple", "banana", "cherry", "date", "elder", "fig", "grape", "hazel", "iris",
    "jasmine", "kiwi", "lemon", "mango", "nut", "olive", "pear", "quince", "rose",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results" / "fidelity.csv")


@pytest.fixture
def words(beir_folder, letters, monkeypatch) -> Path:
    """Eighteen documents of one word and queries that misspell it, under the encoder of letters."""
    corpus = "".join(json.dumps({"_id": w, "text": f"{w} {w[::-1]}"}) + "\n" for w in WORDS)
    queries = "".join(json.dumps({"_id": f"q-{w}", "text": w[:-1]}) + "\n" for w in WORDS)
    qrels = "".join(f"q-{w}\t{w}\t1\n" for w in WORDS)
    kinds = {**encoder_kinds(), "letters": EncoderKind("letters", "letters", lambda options, device: letters(d=4))}
    monkeypatch.setattr("maxsim_bench.retrieve.encoders.registry.encoder_kinds", lambda: kinds)
    return beir_folder(corpus, queries, qrels, name="words")


def _settings(**changes) -> Settings:
    return Settings(**{"device": "cpu", "gpu_name": "some processor", **changes})


def _tasks(words: Path, *backends: str, **options):
    return plan_tasks([str(words)], "letters", backends, "cpu", dtype="fp32", **options)


def test_exact_backends_give_rows_without_a_difference(words, store) -> None:
    outcome = run_fidelity(_tasks(words, "eager", "fused"), _settings(), store)
    assert outcome.exit_code == 0
    assert [r.backend for r in store.rows()] == ["eager", "fused"]
    for row in store.rows():
        assert (row.status, row.delta, row.delta_low, row.delta_high, row.queries_moved) == ("ok", 0.0, 0.0, 0.0, 0)
        assert row.queries == 18
        assert 0.2 < row.ndcg_at_10 < 1.0
        assert row.ndcg_at_10 == row.ndcg_at_10_reference
        assert row.topk_overlap == row.topk_overlap_20 == row.topk_overlap_100 == 1.0
        assert row.spearman == pytest.approx(1.0)
        assert row.max_rel_err < 1e-6
        assert row.cell.dataset == "words"
        assert str(words.parent) not in json.dumps(row.to_record()), "results hold no path"
        assert json.loads(row.extra)["encoder"]["model"] == "none"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("unmasked", "padding takes part in the maximum"),
        ("bf16_sum", "every score is a bfloat16 number"),
        ("swapped", "ids or offsets are exchanged"),
    ],
)
def test_a_broken_backend_is_caught_named_and_fails_the_run(words, store, fake, broken: str, told: str) -> None:
    outcome = run_fidelity(
        _tasks(words, broken, "right"), _settings(), store, extra={"right": fake("right"), broken: fake(broken)}
    )
    assert outcome.exit_code == 1
    assert any(told in line and f"words test letters fp32, {broken}" in line for line in outcome.failed)
    bad, good = store.rows()
    assert (bad.status, good.status) == ("incorrect", "ok")
    assert told in bad.error
    assert bad.ndcg_at_10 is None
    assert bad.max_rel_err > 1e-5


def test_an_exact_backend_beyond_the_limit_fails_and_an_inexact_one_is_only_reported(words, store, fake) -> None:
    loose = {n: fake("swapped", name=n, relative=10.0, exact=e) for n, e in (("claims", True), ("warns", False))}
    outcome = run_fidelity(_tasks(words, "claims", "warns"), _settings(), store, extra=loose)
    assert {line.split(": ")[0] for line in outcome.failed} == {"words test letters fp32, claims"}
    assert "exceeds the limit 5e-04" in outcome.failed[0]
    assert "ten best on" in outcome.failed[1]
    assert [r.status for r in store.rows()] == ["ok", "ok"]
    assert store.rows()[0].delta < -5e-4
    assert store.rows()[0].delta_low < store.rows()[0].delta < store.rows()[0].delta_high
    lax = run_fidelity(_tasks(words, "claims"), _settings(limit=1.0, force=True), store, extra=loose)
    assert len(lax.failed) == 1, "a looser limit on nDCG@10 leaves the one on the first ten"


def test_a_finished_row_is_not_audited_again_unless_forced(words, store, fake, monkeypatch) -> None:
    run_fidelity(_tasks(words, "fused"), _settings(), store)
    counted: list[tuple[str, ...]] = []
    real = fidelity.audit_task
    monkeypatch.setattr(fidelity, "audit_task", lambda task, *rest: counted.append(task.backends) or real(task, *rest))
    run_fidelity(_tasks(words, "fused"), _settings(), store)
    run_fidelity(_tasks(words, "fused", "eager"), _settings(), store)
    run_fidelity(_tasks(words, "fused"), _settings(force=True), store)
    assert counted == [("eager",), ("fused",)]
    assert len(store.rows()) == 2


def test_what_a_backend_cannot_do_is_a_row_and_no_failure(words, store, fake) -> None:
    refuses = fake("right", name="never", refuses=lambda cell: "never does")
    outcome = run_fidelity(_tasks(words, "never"), _settings(), store, extra={"never": refuses})
    assert outcome.exit_code == 0
    assert (store.rows()[0].status, store.rows()[0].error) == ("unsupported", "never does")


def test_the_details_hold_the_manifest_and_every_query(words, store, fake) -> None:
    swapped = fake("swapped", relative=10.0, exact=False)
    (task,) = _tasks(words, "swapped")
    run_fidelity([task], _settings(), store, extra={"swapped": swapped})
    (again,) = _tasks(words, "eager")
    run_fidelity([again], _settings(), store)
    stem = store.path.parent / "fidelity" / details.stem(task.cell)
    told = json.loads(stem.with_name(stem.name + ".json").read_text())
    assert set(told["backends"]) == {"swapped", "eager"}
    assert told["manifest"]["files"].keys() == {"corpus.jsonl", "queries.jsonl", "qrels/test.tsv"}
    assert told["encoder"]["d"] == 4
    assert told["dataset_hash"] == store.rows()[0].dataset_hash
    assert {m["query"] for m in told["backends"]["swapped"]["moved"]} >= {"q-cherry", "q-date"}
    reference, differences = details.read_queries(stem.with_name(stem.name + ".csv"))
    assert set(reference) == {f"q-{w}" for w in WORDS}
    row = store.rows()[0]
    assert sum(differences["swapped"].values()) / 18 == pytest.approx(row.delta)
    assert sum(reference.values()) / 18 == pytest.approx(row.ndcg_at_10_reference)
    assert set(differences["eager"].values()) == {0.0}


def test_rankings_can_be_written_as_run_files(words, store, tmp_path: Path) -> None:
    run_fidelity(_tasks(words, "fused"), _settings(runs_dir=tmp_path / "runs"), store)
    runs = sorted((tmp_path / "runs").glob("*.run"))
    assert [p.name.rsplit("-", 1)[1] for p in runs] == ["fused.run", "reference.run"]
    assert len(read_run(runs[0])) == 18


def test_a_first_stage_reranks_its_candidates(words, store, tmp_path: Path) -> None:
    lines = [f"q-{w} Q0 {d} 1 {-j} t" for i, w in enumerate(WORDS) for j, d in enumerate(WORDS[i : i + 5])]
    (tmp_path / "first.run").write_text("\n".join(lines))
    (task,) = _tasks(words, "fused", first_stage=str(tmp_path / "first.run"), depth=3)
    run_fidelity([task], _settings(), store)
    (row,) = store.rows()
    assert (row.status, row.cell.k, row.cell.variant) == ("ok", 3, "first_stage=first.run")
    assert row.recall_at_100 == 1.0
    (full,) = _tasks(words, "fused")
    assert full.cell.hash() != task.cell.hash()


def test_the_same_measures_for_two_data_sets_are_suspicious(words, store, tmp_path: Path) -> None:
    other = tmp_path / "copy"
    os.symlink(words, other)
    tasks = [*_tasks(words, "fused"), *_tasks(other, "fused")]
    assert "identical measures" in run_fidelity(tasks, _settings(), store).suspicious[-1]


def _answers(value: int) -> int:
    return value + 1


def _raises() -> None:
    raise ValueError("told by the other side")


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hangs() -> None:
    time.sleep(60)


def test_a_process_of_its_own_answers_raises_dies_or_is_given_up() -> None:
    assert in_own_process(_answers, (1,), 60) == 2
    with pytest.raises(ValueError, match="told by the other side"):
        in_own_process(_raises, (), 60)
    with pytest.raises(Dead, match="SIGKILL") as died:
        in_own_process(_dies, (), 60)
    assert died.value.status == "crash"
    with pytest.raises(Dead, match="no answer after 3 s") as hung:
        in_own_process(_hangs, (), 3)
    assert hung.value.status == "timeout"


def test_the_backend_that_kills_its_process_gets_the_row_and_the_others_keep_theirs(words, store, monkeypatch) -> None:
    real = fidelity.audit_task

    def own_process(work, arguments, timeout_s):
        if "chunked" in arguments[0].backends:
            raise Dead("crash", "the process died of SIGSEGV")
        return real(*arguments)

    monkeypatch.setattr(fidelity, "in_own_process", own_process)
    outcome = run_fidelity(_tasks(words, "eager", "chunked", "fused"), _settings(isolate=True), store)
    assert {r.backend: r.status for r in store.rows()} == {"eager": "ok", "chunked": "crash", "fused": "ok"}
    assert outcome.exit_code == 1
    assert "SIGSEGV" in outcome.failed[0]
