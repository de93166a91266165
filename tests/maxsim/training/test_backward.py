"""The choice of a backward path."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
import torch

import maxsim
from maxsim.training.backward import BACKWARDS, _measured, choose_backward
from maxsim.training.geometry import Geometry, geometry, may_overlap


def pair() -> tuple[maxsim.TokenBatch, maxsim.TokenBatch]:
    return maxsim.tokens(torch.randn(2, 3, 4)), maxsim.tokens(torch.randn(5, 6, 4))


def test_a_cpu_takes_the_torch_path():
    q, d = pair()
    assert choose_backward(q, d, geometry(q, d, "all")) == "torch"


@pytest.mark.parametrize("path", [p for p in BACKWARDS if p != "torch"])
def test_a_kernel_path_on_a_cpu_is_refused_with_the_choice_that_works(path, monkeypatch):
    monkeypatch.setattr("maxsim.training.launch.runs_interpreted", lambda: False)
    q, d = pair()
    with pytest.raises(ValueError, match=f"backward: '{path}' needs an NVIDIA GPU, Q is on cpu; use 'torch' or None"):
        choose_backward(q, d, geometry(q, d, "all"), path)


def test_an_unknown_path_is_refused_with_the_known_ones():
    q, d = pair()
    with pytest.raises(ValueError, match="backward: 'fast' is not one of csr, csr_sort, onehot, atomic, torch"):
        choose_backward(q, d, geometry(q, d, "all"), "fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["csr", "onehot"])
def test_a_selection_is_refused_by_the_paths_that_let_one_document_own_its_rows(path):
    q, d = pair()
    chosen = d.select(torch.tensor([[0, 1], [1, 1]]))
    assert may_overlap(chosen)
    assert not may_overlap(d)
    with pytest.raises(ValueError, match="use 'csr_sort'"):
        choose_backward(q, chosen, geometry(q, chosen, "candidates"), path)


def test_the_table_ends_in_a_rule_for_everything_and_every_rule_says_why():
    rules = json.loads(files("maxsim.training").joinpath("paths.json").read_text())["rules"]
    assert rules[-1]["when"] == {}
    assert all(rule["why"] and rule["path"] in BACKWARDS for rule in rules)


def test_a_document_with_more_entries_than_31_bits_number_goes_to_one_hot_products():
    assert _measured(Geometry(shared=True, Nq=1 << 20, K=1, Lq=4096, Ld=5)) == "onehot"
