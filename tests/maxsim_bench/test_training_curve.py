"""The paper's loss curves as rows: fused follows eager, a wrong gradient does not, and rows must agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from maxsim_bench import training_curve
from maxsim_bench.machine import Machine
from maxsim_bench.record.row import Row
from maxsim_bench.record.store import Store
from maxsim_bench.training_curve import PROFILES, SCORERS, Curve, CurveError, drift, eager, run, train

CPU = Machine("cpu", "cpu", "a processor", 1 << 33, 1)
SMALL = Curve(batch=6, length=8, d=16, dtype="fp32", steps=12)
BOUND = 1e-5  # nats; fp32 losses of about two, whose gradients differ by summation order


def fused(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    return SCORERS["train_fused"](Q, D)


def quiet(line: str) -> None:
    pass


def told(row: Row) -> dict[str, object]:
    return dict(json.loads(row.extra or "{}"))


def without_documents(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    """Right scores, but D learns nothing."""
    return fused(Q, D.detach())


class _Neighbours(torch.autograd.Function):
    """The gradient of each token goes to the next one."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
        return g.roll(1, dims=1)


def to_neighbours(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
    """Right scores, but the gradient of a document goes to the wrong tokens."""
    return fused(Q, _Neighbours.apply(D))


def test_the_smoke_curve_of_the_fused_operator_is_eager_s(tmp_path: Path) -> None:
    rows = run(PROFILES["smoke"], CPU, tmp_path, quiet)
    found = {row.backend: row for row in rows}
    assert {b: r.status for b, r in found.items()} == {
        "train_eager": "ok", "train_fused": "ok", "train_flash_maxsim": "unsupported",
    }  # fmt: skip
    own, base = told(found["train_fused"]), told(found["train_eager"])
    assert len(own["losses"]) == PROFILES["smoke"].steps  # type: ignore[arg-type]
    assert own["loss_final"] < 0.75 * own["loss_first"]  # type: ignore[operator]
    assert 0 <= own["loss_mean_abs_drift"] <= own["loss_max_abs_drift"] < BOUND  # type: ignore[operator]
    assert own["against"] == found["train_eager"].key
    assert "loss_max_abs_drift" not in base
    assert 0 < own["first_step_s"] < own["wall_s"]  # type: ignore[operator]
    assert found["train_fused"].input_bytes == 2 * 8 * 16 * 32 * 4


@pytest.mark.parametrize("wrong", [without_documents, to_neighbours])
def test_a_wrong_gradient_breaks_the_bound_although_its_scores_are_right(wrong: training_curve.Score) -> None:
    base = train(SMALL, eager, "cpu").losses
    right = drift(train(SMALL, fused, "cpu").losses, base)["loss_max_abs_drift"]
    found = train(SMALL, wrong, "cpu").losses
    assert found[0] == pytest.approx(base[0], abs=BOUND)
    assert right < BOUND < drift(found, base)["loss_max_abs_drift"] / 100


def test_eager_on_fp16_has_its_loss_in_fp16_and_the_fused_one_in_fp32() -> None:
    curve = Curve(batch=6, length=8, d=16, dtype="fp16", steps=3)
    coarse, fine = train(curve, eager, "cpu").losses, train(curve, fused, "cpu").losses
    assert [float(torch.tensor(x).half()) for x in coarse] == coarse
    assert [float(torch.tensor(x).half()) for x in fine] != fine
    assert drift(fine, coarse)["loss_max_abs_drift"] < 4e-3


def test_every_scorer_starts_from_the_same_numbers_and_a_seed_gives_others() -> None:
    def first(seed: int) -> float:
        return train(Curve(batch=4, length=8, d=16, dtype="fp32", steps=1, seed=seed), eager, "cpu").losses[0]

    assert first(42) == first(42) != first(43)


def test_drift_is_taken_step_by_step() -> None:
    found = drift([2.0, 1.5, 0.5], [2.0, 1.0, 0.4])
    assert found["loss_max_abs_drift"] == pytest.approx(0.5)
    assert found["loss_mean_abs_drift"] == pytest.approx(0.2)
    assert found["loss_max_rel_drift"] == pytest.approx(0.5)
    assert drift([1e-9], [0.0])["loss_max_rel_drift"] == pytest.approx(1e-3)


def test_what_is_there_is_not_trained_again_and_a_lost_row_is(tmp_path: Path) -> None:
    rows = run(SMALL, CPU, tmp_path, quiet)
    path = tmp_path / "training_curve.csv"
    said: list[str] = []
    assert run(SMALL, CPU, tmp_path, said.append) == rows
    assert said == []
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if ",train_fused," not in line), "utf-8")
    again = run(SMALL, CPU, tmp_path, said.append)
    assert [line.split(":")[0] for line in said] == ["train_fused"]
    assert told(again[1])["losses"] == told(rows[1])["losses"]


@pytest.mark.parametrize(
    ("backend", "change", "why"),
    [
        ("train_fused", {"loss_max_abs_drift": 1.0}, "loss_max_abs_drift = 1.0, but"),
        ("train_fused", {"against": "another"}, "is from another, but the one of eager"),
        ("train_eager", {"losses": [2.0] * SMALL.steps}, "but its curve and eager autograd's are"),
        ("train_eager", {"losses": None}, "train_eager holds no loss of every step"),
        ("train_fused", {"losses": [2.0]}, "train_fused holds no loss of every step"),
    ],
)
def test_rows_that_contradict_each_other_are_refused_until_forced(
    tmp_path: Path, backend: str, change: dict[str, object], why: str
) -> None:
    rows = {row.backend: row for row in run(SMALL, CPU, tmp_path, quiet)}
    row = rows[backend]
    Store(tmp_path / "training_curve.csv").replace(
        [row.model_copy(update={"extra": json.dumps({**told(row), **change})})]
    )
    with pytest.raises(CurveError, match=why):
        run(SMALL, CPU, tmp_path, quiet)
    run(SMALL, CPU, tmp_path, quiet, force=True)
    run(SMALL, CPU, tmp_path, quiet)


def test_a_curve_of_another_machine_is_not_compared_with(tmp_path: Path) -> None:
    base, *_ = run(SMALL, CPU, tmp_path, quiet)
    Store(tmp_path / "training_curve.csv").replace([base.model_copy(update={"environment_id": "elsewhere"})])
    with pytest.raises(CurveError, match=r"train_eager was measured in environment elsewhere.*--force"):
        run(SMALL, CPU, tmp_path, quiet)


def test_an_eager_run_that_does_not_fit_is_a_row_and_the_others_have_no_drift(tmp_path: Path) -> None:
    def too_large(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    scorers = {"train_eager": too_large, "train_fused": fused}
    rows = run(SMALL, CPU, tmp_path, quiet, scorers=scorers)
    assert [row.status for row in rows] == ["oom", "ok"]
    assert not {"against", "loss_max_abs_drift"} & set(told(rows[1]))
    assert run(SMALL, CPU, tmp_path, quiet, scorers=scorers) == rows


def test_any_other_failure_stops_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    def broken(Q: torch.Tensor, D: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(SMALL, CPU, tmp_path, quiet, scorers={"train_eager": eager, "train_fused": broken})
    assert [row.backend for row in Store(tmp_path / "training_curve.csv").rows()] == ["train_eager"]


def test_the_paper_profile_is_the_published_experiment_and_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = PROFILES["paper"].cell("h200")
    assert (cell.Nq, cell.B, cell.Lq, cell.Ld, cell.d, cell.dtype, cell.seed) == (64, 64, 1024, 1024, 128, "fp16", 42)
    assert cell.variant == "learning_rate=0.001;loss=cross_entropy;steps=500;temperature=32;ties=one"
    monkeypatch.setattr(training_curve, "this_machine", lambda: CPU)
    with pytest.raises(SystemExit):
        training_curve.main([])
    assert "--profile smoke runs on a processor" in capsys.readouterr().err


def test_the_command_runs_the_smoke_curve_and_tells_a_contradiction_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training_curve, "this_machine", lambda: CPU)
    monkeypatch.setitem(PROFILES, "smoke", SMALL)
    training_curve.main(["--profile", "smoke", "--into", str(tmp_path)])
    assert f"3 rows in {tmp_path / 'training_curve.csv'}" in capsys.readouterr().out
    store = Store(tmp_path / "training_curve.csv")
    store.replace([row.model_copy(update={"environment_id": "elsewhere"}) for row in store.rows()])
    with pytest.raises(SystemExit):
        training_curve.main(["--profile", "smoke", "--into", str(tmp_path)])
    assert capsys.readouterr().err.startswith("Error: ")
