"""The choice of a backward path."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files

import pytest
import torch

import maxsim
from maxsim.training import csr, maxsim_autograd
from maxsim.training.autograd import SAVES
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
    with pytest.raises(ValueError, match="use 'csr_sort'"):
        choose_backward(q, chosen, geometry(q, chosen, "candidates"), path)


@pytest.mark.parametrize("path", ["csr", "onehot"])
def test_documents_that_are_views_of_the_same_rows_are_refused_by_the_same_paths(path):
    q, d = pair()[0], maxsim.tokens(torch.randn(1, 6, 4).expand(5, 6, 4))
    with pytest.raises(ValueError, match="use 'csr_sort'"):
        choose_backward(q, d, geometry(q, d, "all"), path)


X = torch.randn(5, 6, 4)
LEFT = torch.arange(6) >= torch.tensor([[0], [2], [6], [1], [0]])
HOLES = torch.tensor([[1, 0, 1, 1, 0, 1]] * 5)
WINDOWS = torch.randn(14, 4).unfold(0, 6, 2).mT  # 5 windows of 6 rows, each 2 rows after the one before
APART = torch.randn(40, 4).unfold(0, 6, 8).mT  # the same where nothing is shared
ONE = torch.randn(1, 6, 4)
# name -> batch, and whether some row belongs to two of its sequences
BATCHES: dict[str, tuple[Callable[[], maxsim.TokenBatch], bool]] = {
    "dense": (lambda: maxsim.tokens(X), False),
    "one sequence": (lambda: maxsim.tokens(ONE), False),
    "no sequence": (lambda: maxsim.tokens(X[:0]), False),
    "no tokens": (lambda: maxsim.tokens(X[:, :0]), False),
    "slice of longer slots": (lambda: maxsim.tokens(torch.randn(5, 9, 4)[:, :6]), False),
    "windows apart": (lambda: maxsim.tokens(APART), False),
    "lengths": (lambda: maxsim.tokens(X, lengths=torch.tensor([6, 0, 3, 1, 2])), False),
    "left padding": (lambda: maxsim.tokens(X, mask=LEFT), False),
    "left padding of windows apart": (lambda: maxsim.tokens(APART, mask=LEFT), False),
    "holes": (lambda: maxsim.tokens(X, mask=HOLES), False),
    "packed": (lambda: maxsim.tokens(X[0], cu_seqlens=torch.tensor([0, 2, 2, 6])), False),
    "selection": (lambda: maxsim.tokens(X).select(torch.tensor([1, 0, 1])), True),
    "expanded": (lambda: maxsim.tokens(ONE.expand(5, 6, 4)), True),
    "expanded single tokens": (lambda: maxsim.tokens(ONE[:, :1].expand(5, 1, 4)), True),
    "expanded, lengths": (lambda: maxsim.tokens(ONE.expand(5, 6, 4), lengths=torch.tensor([6, 0, 3, 1, 2])), True),
    "expanded, left padding": (lambda: maxsim.tokens(ONE.expand(5, 6, 4), mask=LEFT), True),
    "expanded, holes": (lambda: maxsim.tokens(ONE.expand(5, 6, 4), mask=HOLES), False),  # compacted into a copy
    "windows": (lambda: maxsim.tokens(WINDOWS), True),
    "windows, lengths": (lambda: maxsim.tokens(WINDOWS, lengths=torch.tensor([6, 0, 3, 1, 2])), True),
    "windows, left padding": (lambda: maxsim.tokens(WINDOWS, mask=LEFT), True),
    "windows, lengths up to the next": (lambda: maxsim.tokens(WINDOWS, lengths=torch.tensor([2, 0, 2, 1, 2])), False),
}


@pytest.mark.parametrize("name", BATCHES)
def test_rows_of_two_sequences_are_known_as_such_whatever_the_layout(name):
    make, shared = BATCHES[name]
    batch = make()
    owners = torch.zeros(batch.values.shape[0], dtype=torch.int64)
    for first, length in zip(batch.row_starts().tolist(), batch.row_lengths().tolist(), strict=True):
        owners[first : first + length] += 1
    assert bool((owners > 1).any()) == shared, "the table above is wrong"
    assert may_overlap(batch) == shared


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("path", [p for p in BACKWARDS if p != "torch"])
def test_a_kernel_path_for_float64_is_refused_before_anything_is_computed(path, interpreted, monkeypatch):
    monkeypatch.setattr("maxsim.training.launch.runs_interpreted", lambda: interpreted)
    monkeypatch.setattr("maxsim.fused.forward", lambda *a, **k: pytest.fail("scored"))
    q, d = (maxsim.tokens(x.values.double().view(n, -1, 4)) for x, n in zip(pair(), (2, 5), strict=True))
    with pytest.raises(ValueError, match=rf"backward: '{path}' sums in fp32, Q is torch\.float64; use 'torch' or None"):
        maxsim_autograd(q, d, backward=path)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("path", [p for p in BACKWARDS if p != "torch"])
def test_kernels_are_given_fp32_upstream_gradients_of_the_references_float64_scores(path, dtype, save, monkeypatch):
    types: list[torch.dtype] = []
    monkeypatch.setattr("maxsim.training.launch.runs_interpreted", lambda: True)
    monkeypatch.setattr(
        csr, "launch", lambda name, grid, pointers, *_: types.extend(p.dtype for p in pointers if p is not None)
    )
    Q, D = (torch.randn(n, 3, 4).to(dtype).requires_grad_() for n in (2, 5))
    scores = maxsim_autograd(maxsim.tokens(Q), maxsim.tokens(D), path="reference", backward=path, save=save)
    assert scores.dtype == torch.float64
    scores.sum().backward()
    assert types
    assert torch.float64 not in types, "kernels do not compile for one"


def test_the_table_ends_in_a_rule_for_everything_and_every_rule_says_why():
    rules = json.loads(files("maxsim.training").joinpath("paths.json").read_text())["rules"]
    assert rules[-1]["when"] == {}
    assert all(rule["why"] and rule["path"] in BACKWARDS for rule in rules)


def test_a_document_with_more_entries_than_31_bits_number_goes_to_one_hot_products():
    assert _measured(Geometry(shared=True, Nq=1 << 20, K=1, Lq=4096, Ld=5)) == "onehot"
