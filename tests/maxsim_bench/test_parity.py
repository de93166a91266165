"""Training runs as rows: both scorers, every seed, resumed, and a run that does not fit is a row as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from maxsim_bench import parity
from maxsim_bench.machine import Machine
from maxsim_bench.parity import PROFILES, Grid, cells
from maxsim_bench.retrieve import contrastive
from maxsim_bench.retrieve.contrastive import Pool
from maxsim_bench.retrieve.dataset import Document, build
from maxsim_bench.retrieve.embeddings import Embeddings

CPU = Machine("cpu", "cpu", "a processor", 1 << 33, 1)
SMALL = Grid((0, 1), ((8, "fp32", 2, None),))


def made(count: int, seed: int) -> Embeddings:
    generator = torch.Generator().manual_seed(seed)
    items = [torch.randn(3 + i % 4, 12, generator=generator) for i in range(count)]
    return Embeddings.of([torch.nn.functional.normalize(x, dim=-1).half() for x in items], 12)


@pytest.fixture
def pool() -> Pool:
    queries, documents = made(100, 0), made(100, 1)
    dataset = build(
        "made-up", "test", lambda: (Document(f"d{i}", "", str(i)) for i in range(100)),
        {f"q{i}": str(i) for i in range(100)}, {f"q{i}": {f"d{i}": 1} for i in range(100)}, manifest={},
    )  # fmt: skip
    return Pool(queries, documents, [(i, i) for i in range(100)], dataset, queries, documents)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Projections of four dimensions, so that twelve-dimensional tokens have something to lose."""
    real = contrastive.start
    monkeypatch.setattr(contrastive, "start", lambda documents, d: real(documents, 4))


def test_every_seed_and_scorer_is_a_row_with_its_losses_and_ndcg(pool: Pool, tmp_path: Path) -> None:
    said: list[str] = []
    rows, weight = parity.parity(SMALL, pool, CPU, tmp_path, said.append)
    assert [(r.cell.seed, r.backend) for r in rows] == [
        (0, "train_fused"), (0, "train_eager"), (1, "train_fused"), (1, "train_eager"),
    ]  # fmt: skip
    assert all(r.status == "ok" and 0 < (r.ndcg_at_10 or 0) < 1 and r.queries == 100 for r in rows)
    curves = [json.loads(r.extra or "")["losses"] for r in rows]
    assert len(curves[0]) == 2 * 2
    assert max(abs(a - b) for a, b in zip(curves[0], curves[1], strict=True)) < 1e-3
    assert curves[0] != curves[2]
    assert weight is not None
    assert weight.shape == (4, 12)
    assert len(said) == 4


def test_what_is_there_already_is_not_trained_again(pool: Pool, tmp_path: Path) -> None:
    rows, _ = parity.parity(SMALL, pool, CPU, tmp_path, lambda line: None)
    said: list[str] = []
    again, weight = parity.parity(SMALL, pool, CPU, tmp_path, said.append)
    assert (again, weight, said) == (rows, None, [])


def test_a_projection_says_of_which_runs_it_is_the_best_and_is_refused_of_none(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run keeps no projection, so a command that goes on has those of its own runs alone."""
    monkeypatch.setattr(parity, "this_machine", lambda: CPU)
    monkeypatch.setattr(contrastive, "scifact", lambda *_: pool)
    monkeypatch.setitem(PROFILES, "smoke", SMALL)
    store, file = tmp_path / "training_parity.csv", tmp_path / "p.safetensors"
    command = ["--profile", "smoke", "--into", str(tmp_path), "--projection", str(file)]
    parity.main(command)
    assert capsys.readouterr().out.endswith(f"{file}: the best of 4 runs made now\n")
    file.unlink()
    with pytest.raises(SystemExit) as ended:
        parity.main(command)
    assert (ended.value.code, file.exists()) == (2, False)
    assert "none of the 0 runs made now has a projection, and 4 were finished before" in capsys.readouterr().err
    store.write_text("".join(store.read_text().splitlines(keepends=True)[:-1]))
    parity.main(command)
    assert capsys.readouterr().out.endswith(f"{file}: the best of 1 runs made now; 3 finished before kept none\n")
    assert file.exists()


def test_a_run_that_does_not_fit_is_an_oom_row_and_the_others_go_on(pool: Pool, tmp_path: Path, monkeypatch) -> None:
    real = contrastive.train

    def train(queries, documents, pairs, settings, device):
        if settings.scorer == "eager":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(queries, documents, pairs, settings, device)

    monkeypatch.setattr(contrastive, "train", train)
    rows, _ = parity.parity(SMALL, pool, CPU, tmp_path, lambda line: None)
    assert {(r.backend, r.status) for r in rows} == {("train_fused", "ok"), ("train_eager", "oom")}


def test_any_other_failure_stops_the_run(pool: Pool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(contrastive, "train", lambda *a: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        parity.parity(SMALL, pool, CPU, tmp_path, lambda line: None)


def test_the_paper_profile_has_three_seeds_and_a_capped_batch_that_scifact_fills() -> None:
    found = list(cells(PROFILES["paper"], "h200"))
    assert {c.seed for c, _ in found} == {0, 1, 2}
    capped = [(c, s) for c, s in found if c.memory_cap is not None]
    assert [(c.B, s.batch) for c, s in capped] == [(448, 448)]
    assert len({c.hash() for c, _ in found}) == len(found)
