"""What is compared with what: scores whole or on a sample, searches by their documents' scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.backends.reference import Reference
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run import truth
from maxsim_bench.run.check import ResultError
from maxsim_bench.run.staging import Staging
from maxsim_bench.run.truth import ScoreTruth, SearchTruth, truth_of


def reference() -> Any:
    import measured_backends

    return measured_backends.get("reference")


def dense(cell: Cell, seed: int = 0) -> Inputs:
    assert cell.Nq and cell.B and cell.Lq and cell.Ld and cell.d  # noqa: PT018  # narrows five at once
    rng = torch.Generator().manual_seed(seed)
    Q = torch.randn(cell.Nq, cell.Lq, cell.d, generator=rng)
    return Inputs(Q, torch.randn(cell.B, cell.Ld, cell.d, generator=rng))


def test_the_reference_against_itself_is_exact(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell()
    inputs = dense(cell)
    verdict = truth_of(cell, inputs, reference()).judge(reference().prepare(cell, inputs)(), 0.0)
    assert verdict.wrong is None
    assert verdict.errors.exact


def test_a_large_cell_is_checked_on_a_sample_with_both_ends(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(truth._WHOLE, "cpu", 0.0)
    monkeypatch.setitem(truth._SAMPLE_OPERATIONS, "cpu", 0.0)
    cell = make_cell(B=50)
    inputs = dense(cell)
    known = truth_of(cell, inputs, reference())
    assert isinstance(known, ScoreTruth)
    assert known.sample is not None
    assert {0, 49} <= set(known.sample)
    output = reference().prepare(cell, inputs)()
    assert known.judge(output, 0.0).wrong is None
    output[0, 49] += 1.0
    assert "skips the tail" in str(known.judge(output, 0.0).wrong)


def test_a_wrong_shape_is_refused_with_both_shapes(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(B=5)
    known = truth_of(cell, dense(cell), reference())
    with pytest.raises(ResultError, match=r"\[1, 4\].*\[1, 5\]"):
        known.judge(torch.zeros(1, 4), 1e-5)


def test_a_quantised_cell_is_compared_with_the_embeddings_as_given(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(quantiser="int8_per_token")
    inputs = dense(cell)
    output = reference().prepare(cell, inputs)()
    assert truth_of(cell, inputs, reference()).judge(output * 1.001, 1e-2).wrong is None
    assert truth_of(cell, inputs, reference()).judge(output * 1.001, 1e-5).wrong is not None


@pytest.fixture
def found(make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Truth of a search over 30 documents, in blocks of a few, with the right scores and numbers."""
    monkeypatch.setattr(truth, "_SEARCH_BLOCK_BYTES", 4000)
    cell = make_cell(op="search", k=5, Nq=2, B=30)
    inputs = dense(cell)
    best = reference().prepare(cell, inputs)().topk(5, dim=1)
    return truth_of(cell, inputs, reference()), best.values, best.indices


@pytest.mark.parametrize("layout", ["dense", "masked", "packed"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_corpus_is_scored_in_stretches_that_copy_nothing_where_it_lies(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, layout: str, elsewhere: bool
) -> None:
    """Whatever the layout, the scores are those of the whole corpus; a device of its own is played by a copy."""
    cell = make_cell(op="search", k=3, Nq=2, B=17, layout=layout)
    whole = make_inputs(cell, "cpu", 0)
    monkeypatch.setattr(truth, "_SEARCH_BLOCK_BYTES", whole.D.nbytes // 4)
    lies = range(whole.D.data_ptr(), whole.D.data_ptr() + whole.D.nbytes)
    seen: list[Inputs] = []

    class Watched:
        def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
            seen.append(inputs)
            return Reference().prepare(cell, inputs)

    if elsewhere:
        monkeypatch.setattr(truth, "_mover", lambda inputs: truth._onto(inputs.Q.device, Staging("cpu")))
    found = SearchTruth(cell, whole, cast("Any", Watched()))
    forward = cell.model_copy(update={"op": "forward", "k": None})
    torch.testing.assert_close(found.scores, Reference().prepare(forward, whole)(), rtol=1e-6, atol=0)
    assert len(seen) > 3
    assert all((part.D.data_ptr() in lies) != elsewhere for part in seen)
    lengths = [part.d_lengths for part in seen if part.d_lengths is not None]
    assert (whole.d_lengths is None and not lengths) or torch.equal(torch.cat(lengths), cast("Any", whole.d_lengths))


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_a_corpus_in_host_memory_is_scored_on_the_card(
    make_cell: Callable[..., Cell], monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    cell = make_cell(op="search", k=3, Nq=2, B=500, dtype="fp16")
    monkeypatch.setattr(truth, "_SEARCH_BLOCK_BYTES", 1 << 14)
    here = make_inputs(cell, "cpu", 0)
    away = replace(here, Q=here.Q.cuda(), D=here.D.pin_memory() if pinned else here.D)
    expected, found = truth_of(cell, here, Reference()), truth_of(cell, away, Reference())
    assert isinstance(found, SearchTruth)
    assert isinstance(expected, SearchTruth)
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=1e-5, atol=0)


def test_a_right_search_is_right(found: tuple[Any, torch.Tensor, torch.Tensor]) -> None:
    known, scores, ids = found
    assert known.judge((scores, ids.int()), 1e-5).wrong is None


def test_a_search_whose_scores_are_of_other_documents_is_wrong(found: tuple[Any, torch.Tensor, torch.Tensor]) -> None:
    known, scores, ids = found
    assert "not their documents'" in known.judge((scores, ids.roll(1, dims=1)), 1e-5).wrong


def test_a_search_that_misses_a_document_is_wrong(found: tuple[Any, torch.Tensor, torch.Tensor]) -> None:
    known, scores, ids = found
    worst = known.scores.argmin(dim=1)
    ids[:, 4], scores[:, 4] = worst, known.scores.amin(dim=1)
    assert "better documents were missed" in known.judge((scores, ids), 1e-5).wrong


def test_the_share_of_queries_with_the_exact_best_documents_is_told(
    found: tuple[Any, torch.Tensor, torch.Tensor],
) -> None:
    known, scores, ids = found
    assert known.agreement((scores, ids.flip(1))) == {"exact_topk": 1.0}, "order within the k best does not count"
    ids[0, 4] = known.scores[0].argmin()
    assert known.agreement((scores, ids)) == {"exact_topk": 0.5}


@pytest.mark.parametrize(("change", "words"), [(100, "do not exist"), (None, "twice")])
def test_document_numbers_must_exist_and_differ(
    found: tuple[Any, torch.Tensor, torch.Tensor], change: int | None, words: str
) -> None:
    known, scores, ids = found
    ids[0, 0] = ids[0, 1] if change is None else change
    with pytest.raises(ResultError, match=words):
        known.judge((scores, ids), 1e-5)


def test_a_search_returns_two_tensors(found: tuple[Any, torch.Tensor, torch.Tensor]) -> None:
    known, scores, _ = found
    with pytest.raises(ResultError, match="no pair of scores"):
        known.judge(scores, 1e-5)


def test_gradients_are_judged_by_their_norm(make_cell: Callable[..., Cell]) -> None:
    """A near tie that moves one token's gradient to its neighbour is small in norm, however large in its two rows."""
    cell = make_cell(op="training_step")
    want = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    moved = want.clone()
    moved[[3, 4]] = want[[4, 3]]
    near = truth._errors(cell, moved, want)
    assert near.max_abs > 1
    assert near.max_rel == pytest.approx(float((moved - want).norm() / want.norm()))
    assert near.max_rel < 0.2
    assert truth._errors(cell, want * 1.5, want).max_rel == pytest.approx(0.5)
    assert truth._errors(cell, want.index_fill(0, torch.tensor([0]), float("nan")), want).max_rel == float("inf")
