"""The audit finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import pytest
import torch

from maxsim import fused
from maxsim.training import audit as room
from maxsim.training import backward
from maxsim.training.audit import LENGTHS, audit, shapes, ulp

FEW = {"pairs": 4, "device": "cpu"}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same audit on short sequences: a CPU multiplies 16-bit operands slowly."""
    monkeypatch.setattr(room, "LENGTHS", (16, 24, 40))


def test_the_shapes_are_the_lengths_asked_for_and_ragged_ones_and_the_same_every_time():
    found = shapes(128, 0)
    assert len(found) == 128
    assert found == shapes(128, 0) != shapes(128, 1)
    assert all(Lq in room.LENGTHS and Ld in room.LENGTHS for Lq, Ld, ragged in found if not ragged)
    assert sum(ragged for *_, ragged in found) == 64
    assert LENGTHS == (128, 256, 512)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_torch_path_passes_with_nothing_but_ties_and_roundings(dtype):
    report = audit([dtype], **FEW)
    assert report.passed
    assert report.cases == 4
    assert report.worst["score"] < 1e-5
    assert report.worst["dQ"] < 1e-6
    assert report.worst["dD"] < 1e-6
    assert {cause for _, cause in report.counts} <= {"tie", "rounding"}


def test_a_gradient_that_loses_an_entry_is_a_bug(monkeypatch):
    def lossy(q, d, winner, g, geo, **options):
        winner = winner.clone()
        winner[0, 0, 0] = -1
        return backward._PATHS["torch"](q, d, winner, g, geo, **options)

    monkeypatch.setattr(room, "gradients", lambda path, *a, **k: lossy(*a, **k))
    report = audit([torch.float16], **FEW)
    assert not report.passed
    assert report.counts["dQ normwise", "bug"] > 0
    assert any(f.what == "dD" and f.cause == "bug" for f in report.findings)


def test_a_wrong_winner_and_a_wrong_score_are_bugs(monkeypatch):
    real = fused.forward

    def wrong(q, d, *, argmax=False, **options):
        found = real(q, d, argmax=argmax, **options)
        if not argmax:
            return found
        scores, winner = found
        winner = winner.clone()
        winner[winner > 0] -= 1
        return scores * (1 + 1e-4), winner

    monkeypatch.setattr(room.fused, "forward", wrong)
    report = audit([torch.float32], **FEW)
    assert report.counts["argmax", "bug"] > 0
    assert report.counts["score", "bug"] > 0


def test_an_exact_tie_is_a_tie(monkeypatch):
    inputs = room.inputs

    def tied(*args):
        q, d, g = inputs(*args)
        d.values[1::2] = d.values[::2][: d.values[1::2].shape[0]]
        return q, d, g

    monkeypatch.setattr(room, "inputs", tied)
    real = fused.forward

    def last(q, d, *, argmax=False, **options):
        found = real(q, d, argmax=argmax, **options)
        if not argmax:
            return found
        scores, winner = found
        return scores, torch.where((winner >= 0) & (winner % 2 == 0), winner + 1, winner)

    monkeypatch.setattr(room.fused, "forward", last)
    monkeypatch.setattr(room, "shapes", lambda pairs, seed: [(16, 40, False)])
    report = audit([torch.float32], pairs=1, device="cpu")
    assert report.counts["argmax", "tie"] > 0
    assert report.passed


def test_one_unit_in_the_last_place_is_the_gap_to_the_next_number():
    x = torch.tensor([1.0, 1.5, 0.75, 1e-9, -3.0], dtype=torch.float64)
    assert ulp(x, torch.float16).tolist() == [2**-10, 2**-10, 2**-11, 2**-24, 2**-9]


@pytest.mark.gpu
def test_the_default_path_passes_on_a_gpu_at_two_dense_shapes(monkeypatch):
    monkeypatch.setattr(room, "LENGTHS", LENGTHS)
    report = audit([torch.float16], pairs=2)
    assert report.passed, report.counts


@pytest.mark.gpu
@pytest.mark.slow  # random shapes ask for some thirty variants of the forward kernel, seconds of compilation each
@pytest.mark.parametrize("path", ["csr", "csr_sort", "onehot"])
def test_every_deterministic_path_passes_on_a_gpu(path, monkeypatch):
    monkeypatch.setattr(room, "LENGTHS", LENGTHS)
    report = audit(pairs=16, backward=path)
    assert report.passed, report.counts
