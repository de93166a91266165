"""A two-stage search is judged by its candidates and by what it gives for each of them."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.backends.pipeline import pooled
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.check import ResultError
from maxsim_bench.run.truth import truth_of
from maxsim_bench.run.work import work_of

REFERENCE = registry.get("reference")


def cell(stage: str, **changes: object) -> Cell:
    usual: dict[str, object] = {
        "experiment": "t", "gpu": "cpu", "op": "forward", "Nq": 1, "B": 12, "Lq": 5, "Ld": 20, "d": 16, "dtype": "fp32",
        "layout": "masked", "length_distribution": "uniform:2:20", "pairing": "all", "chunk": 5,
        "variant": f"corpus=60;stage={stage}",
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


@pytest.mark.parametrize("name", ["pipeline_chunked", "pipeline_fused"])
@pytest.mark.parametrize("stage", ["stage1", "gather", "rerank", "total"])
def test_every_stage_of_every_pipeline_is_right(name: str, stage: str) -> None:
    backend, c = registry.get(name), cell(stage)
    if backend.supports(c, "cpu") is not None:
        assert (name, stage) == ("pipeline_fused", "gather")
        return
    inputs = make_inputs(c, "cpu")
    assert inputs.D.shape[0] == 60
    verdict = truth_of(c, inputs, REFERENCE).judge(backend.prepare(c, inputs)(), backend.tolerance(c))
    assert verdict.wrong is None


def test_a_worse_candidate_a_wrong_score_and_a_repeated_document_show() -> None:
    c = cell("total")
    inputs = make_inputs(c, "cpu")
    truth = truth_of(c, inputs, REFERENCE)
    call = registry.get("pipeline_fused").prepare(c, inputs)
    scores, ids = call()  # type: ignore[misc]
    assert "relative error" in str(truth.judge((scores + 1.0, ids), 1e-5).wrong)
    worst = int((pooled(inputs.Q, None) @ pooled(inputs.D, inputs.d_lengths).T).argmin())
    other = ids.clone()
    other[0, -1] = worst
    assert "better candidates were missed" in str(truth.judge((scores, other), 1e-5).wrong)
    ids[0, 1] = ids[0, 0]
    with pytest.raises(ResultError, match="twice"):
        truth.judge((scores, ids), 1e-5)


def test_padding_is_not_pooled_and_an_empty_document_pools_to_zero() -> None:
    x = torch.full((2, 3, 4), 9.0)
    x[0, 0] = torch.tensor([3.0, 0.0, 0.0, 4.0])
    assert pooled(x, torch.tensor([1, 0])).tolist() == [[pytest.approx(0.6), 0.0, 0.0, pytest.approx(0.8)], [0.0] * 4]


def test_work_of_a_stage_is_that_stages() -> None:
    lengths = [10] * 60
    flops = {stage: work_of(cell(stage), lengths).flops for stage in ("stage1", "gather", "rerank", "total")}
    assert flops["stage1"] == 2 * 60 * 16
    assert flops["gather"] == 0
    assert flops["rerank"] == 2 * 5 * 16 * 12 * 10
    assert flops["total"] == flops["stage1"] + flops["rerank"]
