"""Training steps as backends: what they return, what they refuse, and that the pieces of a step have references."""

from __future__ import annotations

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.backends.training_loss import loss_of
from maxsim_bench.backends.training_reference import reference_step
from maxsim_bench.backends.training_torch import TrainEager
from maxsim_bench.declare.cell import Cell

STEPS = ("train_eager", "train_fused", "train_recompute")
LAYOUTS = (("dense", "all", None), ("masked", "all", "uniform:1:20"), ("packed", "all", "uniform:1:20"))


def cell(**changes: object) -> Cell:
    usual: dict[str, object] = {
        "experiment": "t", "gpu": "cpu", "op": "training_step", "Nq": 4, "B": 4, "Lq": 5, "Ld": 20, "d": 16,
        "dtype": "fp32", "layout": "dense", "pairing": "all",
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("layout", "pairing", "lengths"), [*LAYOUTS, ("dense", "candidates", None), ("dense", "pairs", None)]
)
def test_a_step_returns_loss_and_gradients_of_the_reference_in_the_shape_of_the_inputs(name, layout, pairing, lengths):
    c = cell(layout=layout, pairing=pairing, length_distribution=lengths)
    backend, inputs = registry.backends()[name], make_inputs(c, "cpu")
    if backend.supports(c, "cpu") is not None:
        assert name == "train_eager"
        assert pairing != "all"
        return
    loss, dQ, dD = backend.prepare(c, inputs)()
    expected = reference_step(c, inputs)()
    for got, want in zip((loss, dQ, dD), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert dQ.shape == inputs.Q.shape
    assert dD.shape == inputs.D.shape


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_published_eager_step_is_the_references_where_nothing_ties(checkpoint):
    c = cell(chunk=3)
    backend, inputs = TrainEager("e", checkpoint=checkpoint, winners="one"), make_inputs(c, "cpu")
    for got, want in zip(backend.prepare(c, inputs)(), reference_step(c, inputs)(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("winners", "rows"), [("all", [0.5, 0.5]), ("one", [1.0, 0.0])])
def test_a_tie_s_gradient_is_shared_by_amax_and_goes_to_one_token_by_max(winners, rows):
    c = cell(Nq=1, B=1, Lq=1, Ld=2, d=16, variant="loss=sum")
    inputs = make_inputs(c, "cpu")
    inputs.D[0, 1] = inputs.D[0, 0]
    _, _, dD = TrainEager("e", winners=winners).prepare(c, inputs)()
    torch.testing.assert_close(dD[0], torch.tensor(rows)[:, None] * inputs.Q[0, 0])


def test_the_published_eager_step_takes_no_padding_and_has_a_version_of_its_own():
    backends = registry.backends()
    published, ours = backends["train_eager_max_tf32"], backends["train_eager_tf32"]
    masked = cell(layout="masked", length_distribution="uniform:1:20")
    assert "one length" in (published.supports(masked, "cuda") or "")
    assert published.supports(cell(), "cuda") is None
    assert ours.supports(masked, "cuda") is None
    assert published.version() != ours.version()


def test_a_second_call_computes_anew():
    c = cell()
    call = registry.backends()["train_fused"].prepare(c, make_inputs(c, "cpu"))
    first = [x.clone() for x in call()]
    for x in call():
        x.fill_(float("nan"))
    assert all(torch.equal(x, y) for x, y in zip(call(), first, strict=True))


def test_every_training_backend_refuses_a_forward_cell_and_a_piece_is_refused_by_whole_steps():
    training = {n: b for n, b in registry.backends().items() if n.startswith("train_")}
    assert len(training) == 17
    for backend in training.values():
        assert backend.supports(cell(op="forward"), "cuda") is not None
    piece = cell(variant="loss=sum;stage=dq")
    assert training["train_stage"].supports(piece, "cuda") is None
    assert all(b.supports(piece, "cuda") is not None for n, b in training.items() if n != "train_stage")


@pytest.mark.parametrize(
    ("stage", "shapes"), [("forward", [(4, 4)]), ("csr_build", [(4, 21)]), ("dq", [(20, 16)]), ("dd", [(80, 16)])]
)
def test_the_reference_of_a_piece_is_what_the_piece_returns(stage, shapes):
    c = cell(variant=f"stage={stage}")
    found = reference_step(c, make_inputs(c, "cpu"))()
    assert [tuple(x.shape) for x in (found if isinstance(found, tuple) else (found,))] == shapes


def test_the_offsets_of_the_reference_count_the_entries_before_each_row():
    c = cell(variant="stage=csr_build")
    offsets = reference_step(c, make_inputs(c, "cpu"))().view(torch.int32)
    assert (offsets[:, 0] == 0).all()
    assert (offsets[:, -1] == 4 * 5).all()
    assert (offsets.diff(dim=1) >= 0).all()


def test_losses_are_cross_entropy_over_the_batch_the_first_candidate_or_a_sum_and_others_are_refused():
    scores = torch.randn(4, 4)
    assert loss_of(cell())(scores) == torch.nn.functional.cross_entropy(scores, torch.arange(4))
    first = torch.nn.functional.cross_entropy(scores, torch.zeros(4, dtype=torch.long))
    assert loss_of(cell(pairing="candidates"))(scores) == first
    assert loss_of(cell(variant="loss=sum"))(scores) == scores.sum()
    with pytest.raises(ValueError, match="loss=hinge: not one of cross_entropy, sum"):
        loss_of(cell(variant="loss=hinge"))
