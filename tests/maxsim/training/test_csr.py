"""Gradient kernels: every path against float64 on every layout; the sort against a stable library sort."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import maxsim
from maxsim.training import csr
from maxsim.training.geometry import Geometry, geometry


def normwise(x: torch.Tensor, expected: torch.Tensor) -> float:
    return ((x.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def test_every_path_gives_the_gradients_of_the_float64_reference_on_every_layout(backward, batches, expected):
    q, d, pairing = batches
    g = torch.randn(q.count if pairing == "pairs" else (q.count, d.count if pairing == "all" else d.count // q.count))
    dq, dd = backward(q, d, g, pairing)
    eq, ed = expected(q, d, g, pairing)
    assert normwise(dq, eq) < 1e-6
    assert normwise(dd, ed) < 1e-6
    assert dq.shape == q.values.shape
    assert dd.shape == d.values.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_gradients_are_the_fp32_sum_rounded_once(backward, make_batches, expected, dtype):
    q, d, pairing = make_batches("lengths", dtype)
    g = torch.randn(q.count, d.count)
    eq, ed = expected(q, d, g, pairing)
    for x, e in zip(backward(q, d, g, pairing), (eq, ed), strict=True):
        assert x.dtype == dtype
        ulp = torch.finfo(dtype).eps * e.abs().clamp_min(torch.finfo(dtype).smallest_normal)
        assert ((x.double() - e).abs() <= ulp).all()


def test_strided_and_expanded_upstream_gradients_give_the_same_bits_as_contiguous_ones(backward, make_batches):
    q, d, _ = make_batches("dense")
    g = torch.randn(d.count, q.count)
    for strided in (g.T, torch.tensor(0.5).expand(q.count, d.count)):
        for x, y in zip(backward(q, d, strided), backward(q, d, strided.contiguous()), strict=True):
            assert torch.equal(x, y) if backward.deterministic else torch.allclose(x, y)


def test_gradients_are_bit_identical_from_run_to_run(backward, make_batches):
    if not backward.deterministic:
        pytest.skip("atomics add in any order")
    q, d, pairing = make_batches("one hub")
    g = torch.randn(q.count, d.count)
    first = backward(q, d, g, pairing)
    for again in (backward(q, d, g, pairing) for _ in range(3)):
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_an_upstream_nan_does_not_reach_an_empty_document_or_query(backward, make_batches):
    q, d, _ = make_batches("lengths")  # query 1 and document 1 are empty
    g = torch.randn(q.count, d.count)
    g[:, 1] = float("nan")
    dq, dd = backward(q, d, g)
    assert (dd.view(4, 72, -1)[1] == 0).all()
    assert not dd.isnan().any()
    assert not dq.isnan().any()
    assert (dq.view(3, 6, -1)[1] == 0).all()


@pytest.mark.parametrize("pairing", ["all", "pairs", "candidates"])
@pytest.mark.parametrize("empty", ["query", "document", "both", "all documents, dense", "all queries, dense"])
def test_what_an_upstream_gradient_of_an_empty_side_holds_moves_no_bit(backward, empty, pairing):
    if not backward.deterministic and pairing != "pairs":
        pytest.skip("atomics add in any order")
    B = 6 if pairing == "candidates" else 3
    Q = torch.randn(3, 0 if empty == "all queries, dense" else 5, 8)
    D = torch.randn(B, 0 if empty == "all documents, dense" else 9, 8)
    q_lengths = torch.tensor([5, 0, 2]) if empty in ("query", "both") else None
    d_lengths = torch.tensor([9, 4, 0, 7, 0, 3])[:B] if empty in ("document", "both") else None
    q, d = maxsim.tokens(Q, lengths=q_lengths), maxsim.tokens(D, lengths=d_lengths)
    no_query = (q.row_lengths() == 0)[:, None]
    no_document = d.row_lengths() == 0
    nothing = no_query | (no_document if pairing == "all" else no_document.view(3, -1))
    g = torch.randn(nothing.shape)
    values = torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(g.numel())[: g.numel()].view(g.shape)
    zero, odd = g.masked_fill(nothing, 0.0), torch.where(nothing, values, g)
    if pairing == "pairs":
        zero, odd = zero.squeeze(1), odd.squeeze(1)
    for x, y in zip(backward(q, d, zero, pairing), backward(q, d, odd, pairing), strict=True):
        assert x.isfinite().all()
        assert torch.equal(x, y)


@pytest.mark.parametrize("layout", ["expanded", "windows", "windows, left padding", "selection"])
def test_a_row_of_several_documents_collects_the_gradients_of_all(backward, expected, layout):
    if backward.name in ("csr", "onehot"):
        pytest.skip("refuses documents that share rows")
    left = torch.arange(6) >= torch.tensor([[0], [2], [6], [1], [0]])
    windows = torch.randn(14, 8).unfold(0, 6, 2).mT
    d = {
        "expanded": lambda: maxsim.tokens(torch.randn(1, 6, 8).expand(5, 6, 8)),
        "windows": lambda: maxsim.tokens(windows),
        "windows, left padding": lambda: maxsim.tokens(windows, mask=left),
        "selection": lambda: maxsim.tokens(torch.randn(3, 6, 8)).select(torch.tensor([2, 0, 2, 2, 1])),
    }[layout]()
    q, g = maxsim.tokens(torch.randn(3, 4, 8)), torch.randn(3, 5)
    for x, e in zip(backward(q, d, g), expected(q, d, g, "all"), strict=True):
        assert normwise(x, e) < 1e-6


# in Triton's interpreter, whose process does not know the modules of tests: a string travels
SHARED_QUERIES = """
import torch, maxsim
from maxsim.training import maxsim_autograd
generator = torch.Generator().manual_seed(0)
def values(kind):
    x = torch.randn((14, 8), generator=generator)
    views = {"expanded": x[:6].expand(5, 6, 8), "windows": x.unfold(0, 6, 2).mT}
    batch = maxsim.tokens(views[kind])
    batch.values.requires_grad_()
    return batch
def gradients(q, d, backward):
    g = torch.randn((5, 5), generator=torch.Generator().manual_seed(1))
    scores = maxsim_autograd(q, d, backward=backward, path="torch")
    return torch.autograd.grad(scores, (q.values, d.values), g)
for kind in ("expanded", "windows"):
    q, shared, own = values(kind), values(kind), maxsim.tokens(torch.randn((5, 6, 8), generator=generator))
    own.values.requires_grad_()
    for d, backwards in ((own, ("csr", "csr_sort", "onehot", "atomic")), (shared, ("csr_sort", "atomic"))):
        for backward in backwards:
            for x, e in zip(gradients(q, d, backward), gradients(q, d, "torch")):
                torch.testing.assert_close(x, e, msg=lambda m: f"{kind}, {backward}: {m}")
"""


def test_views_of_the_same_rows_get_the_same_gradients_from_every_path_on_either_side(poisoned_interpreter):
    poisoned_interpreter.submit(exec, SHARED_QUERIES, {}).result(timeout=240)


def test_garbage_in_padding_reaches_no_gradient(backward, expected):
    Q, D = torch.randn(2, 6, 16), torch.randn(3, 20, 16)
    Q[:, 4:], D[:, 11:] = float("nan"), float("inf")
    q = maxsim.tokens(Q, lengths=torch.tensor([4, 2]))
    d = maxsim.tokens(D, lengths=torch.tensor([11, 5, 0]))
    Q[1, 2:] = float("nan")
    g = torch.randn(2, 3)
    dq, dd = backward(q, d, g)
    assert dq.isfinite().all()
    assert dd.isfinite().all()
    assert (dq.view(2, 6, 16)[:, 4:] == 0).all()
    assert (dd.view(3, 20, 16)[:, 11:] == 0).all()


def test_no_queries_no_documents_and_no_tokens_give_zeros(backward):
    for Nq, B, Lq, Ld in ((0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2), (2, 3, 2, 0)):
        q, d = maxsim.tokens(torch.randn(Nq, Lq, 4)), maxsim.tokens(torch.randn(B, Ld, 4))
        won = torch.full((Nq, B, Lq), -1, dtype=torch.int16)
        dq, dd = backward(q, d, torch.randn(Nq, B), won=won)
        assert dq.shape == q.values.shape
        assert not dq.any()
        assert dd.shape == d.values.shape
        assert not dd.any()


@pytest.mark.parametrize(("Nq", "Lq", "Ld"), [(1, 1, 1), (5, 20, 33), (70, 32, 100), (3, 600, 40)])
def test_the_sort_is_the_stable_library_sort(poisoned_interpreter, Nq, Lq, Ld):
    B = 3
    q, d = maxsim.tokens(torch.empty(Nq, Lq, 4)), maxsim.tokens(torch.empty(B, Ld, 4))
    geo = geometry(q, d, "all")
    won = torch.randint(-1, Ld, (Nq, B, Lq), dtype=torch.int16)
    won[:, 1] = 0  # a document with one winner
    won[:, 2] = -1  # an empty one
    rows = poisoned_interpreter.submit(csr.build, d, won, geo).result(timeout=240)
    order, begin = rows.order, rows.begin[:, :: rows.parts]
    bits = csr.log_tokens_of(geo)
    number = (torch.arange(Nq)[:, None] << bits) + torch.arange(Lq)
    for m in range(B):
        winners = won[:, m].flatten().long()
        valid = winners >= 0
        sort = torch.sort(winners[valid], stable=True)
        stored = order[m, : valid.sum()].long() & (0xFFFF if order.dtype == torch.int16 else -1)
        assert torch.equal(stored, number.flatten()[valid][sort.indices])
        assert torch.equal(begin[m].long(), torch.searchsorted(sort.values, torch.arange(Ld + 1)))


@pytest.mark.parametrize(("Nq", "Lq", "Ld"), [(5, 20, 33), (24, 32, 200), (40, 32, 9)])
def test_the_order_in_which_entries_were_counted_moves_no_bit(poisoned_interpreter, Nq, Lq, Ld):
    q, d = maxsim.tokens(torch.randn(Nq, Lq, 8)), maxsim.tokens(torch.randn(3, Ld, 8))
    geo, g = geometry(q, d, "all"), torch.randn(Nq, 3)
    won = torch.randint(-1, Ld, (Nq, 3, Lq), dtype=torch.int16)
    won[:, 1] = torch.where(torch.rand(Nq, Lq) < 0.9, 1, won[:, 1])  # more entries of a bin than are compared
    won[:, 2] = -1
    rows = poisoned_interpreter.submit(csr.build, d, won, geo).result(timeout=240)
    expected = poisoned_interpreter.submit(csr.document_gradient, q, d, won, rows, g, geo).result(timeout=240)
    for m in range(3):
        for first, last in pairwise(rows.begin[m].tolist()):
            shuffled = rows.order[m, first:last][torch.randperm(last - first)]
            rows.order[m, first:last] = shuffled
    got = poisoned_interpreter.submit(csr.document_gradient, q, d, won, rows, g, geo).result(timeout=240)
    assert torch.equal(got, expected)


def test_a_document_with_more_than_65536_entries_is_numbered_in_32_bits(poisoned_interpreter, expected):
    Nq, Lq = 130, 512
    q, d = maxsim.tokens(torch.randn(Nq, Lq, 1)), maxsim.tokens(torch.randn(1, 3, 1))
    geo = geometry(q, d, "all")
    won = torch.randint(0, 3, (Nq, 1, Lq), dtype=torch.int16)
    rows = poisoned_interpreter.submit(csr.build, d, won, geo).result(timeout=240)
    order, begin = rows.order, rows.begin
    assert order.dtype == torch.int32
    assert begin[0, -1] == Nq * Lq
    assert torch.equal(won.flatten()[order[0].long()], won.flatten().sort(stable=True).values)


def test_more_entries_than_31_bits_number_are_refused_with_the_path_to_use():
    winner = torch.empty(0, dtype=torch.int16)
    with pytest.raises(ValueError, match="use backward='onehot'"):
        csr._empty_rows(winner, Geometry(shared=True, Nq=1 << 20, K=1, Lq=4096, Ld=5))


@pytest.mark.gpu
def test_rows_beyond_2_31_elements_get_their_gradient():
    Q = torch.nn.functional.normalize(torch.randn(2, 8, 128, device="cuda"), dim=-1).half()
    D = torch.zeros(60_000, 300, 128, device="cuda", dtype=torch.float16)
    D[-1, 299] = 2 * Q[0, 0]
    q, d = maxsim.tokens(Q), maxsim.tokens(D)
    won = torch.full((2, 60_000, 8), 299, dtype=torch.int16, device="cuda")
    g = torch.zeros(2, 60_000, device="cuda")
    g[:, -1] = 1.0
    dq, dd = csr.csr(q, d, won, g, geometry(q, d, "all"), query=True, document=True)
    assert torch.equal(dq, D[-1, 299].expand(16, 128))
    assert torch.allclose(dd[-1].float(), Q.float().sum((0, 1)), atol=2e-3)
    assert not dd[:-1].any()
