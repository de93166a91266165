"""From tasks to rows: what holds the limit passes, what does not is caught and named, and nothing is audited twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from maxsim_bench import catalogue
from maxsim_bench.backends import registry
from maxsim_bench.cli import main
from maxsim_bench.record.store import Store
from maxsim_bench.retrieve import details, fidelity, isolate
from maxsim_bench.retrieve.audit import limit_of
from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.encoders.registry import EncoderKind, encoder_kinds
from maxsim_bench.retrieve.fidelity import run_fidelity
from maxsim_bench.retrieve.isolate import Dead
from maxsim_bench.retrieve.tasks import Settings, plan_tasks
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


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("unmasked", "padding takes part in the maximum"),
        ("bf16_sum", "every score is a bfloat16 number"),
        ("swapped", "ids or offsets are exchanged"),
        ("right", None),
    ],
)
def test_the_command_names_a_broken_backend_and_ends_with_exit_code_1(
    words, store, fake, monkeypatch, broken: str, told: str | None
) -> None:
    known = {**registry.backends(), "it": fake(broken, name="it")}
    for module in (registry, catalogue):
        monkeypatch.setattr(module, "backends", lambda: known)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    experiments = Path(__file__).parents[3] / "experiments"
    words_of = ["fidelity", str(words), "--encoder", "letters", "--dtype", "fp32", "--backend", "it"]
    done = CliRunner().invoke(
        main, [*words_of, "--experiments", str(experiments), "--into", str(store.path.parent)], catch_exceptions=False
    )
    assert done.exit_code == (0 if told is None else 1), done.output
    assert (told or "+0.0e+00") in done.stdout
    again = CliRunner().invoke(main, [*words_of, "--experiments", str(experiments), "--into", str(store.path.parent)])
    assert again.exit_code == done.exit_code, "what is in the store counts as it did when it was measured"


def test_int8_has_a_limit_of_its_own_and_other_inexact_backends_are_reported() -> None:
    limits = {name: limit_of(registry.get(name), 1e-3) for name in registry.backends()}
    assert limits["fused"] == limits["search"] == limits["search_int8_rescored"] == limits["flash_maxsim"] == 1e-3
    assert limits["fused_int8"] == limits["fused_int8_doc"] == limits["search_int8"] == 3e-3
    assert limits["eager"] is limits["fused_fp8"] is limits["flash_maxsim_int8"] is limits["lik_fp8"] is None


def test_backends_that_tune_come_last_in_tasks_of_their_own(words, fake) -> None:
    tasks = [*_tasks(words, "fused", "lik"), *_tasks(words, "flash_maxsim", "eager")]
    parts = [task.backends for task in fidelity._tuning_last(tasks)]
    assert parts == [("fused",), ("eager",), ("lik",), ("flash_maxsim",)]


def test_data_sets_side_by_side_give_the_rows_of_data_sets_in_turn(words, store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fidelity, "in_own_process", lambda work, arguments, timeout_s: work(*arguments))
    other = tmp_path / "more"
    os.symlink(words, other)
    tasks = [*_tasks(words, "eager", "fused"), *_tasks(other, "eager", "fused"), *_tasks(tmp_path / "none", "fused")]
    outcome = run_fidelity(tasks, _settings(isolate=True, jobs=3), store, tolerant=True)
    assert {(r.cell.dataset, r.backend) for r in store.rows()} == {
        (d, b) for d in ("words", "more") for b in ("eager", "fused")
    }
    assert len(outcome.absent) == 1
    with pytest.raises(DataError):
        run_fidelity(tasks, _settings(isolate=True, jobs=3), store)
    isolate.resume()


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


def test_the_reference_as_a_backend_has_no_column_of_its_own_and_others_can_follow(words, store, fake) -> None:
    run_fidelity(_tasks(words, "reference", "fused"), _settings(), store)
    (task,) = _tasks(words, "eager")
    run_fidelity([task], _settings(), store)
    path = store.path.parent / "fidelity" / f"{details.stem(task.cell)}.csv"
    assert path.read_text().splitlines()[0] == "query,reference,fused,eager"
    assert set(details.read_queries(path)[1]) == {"fused", "eager"}


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
