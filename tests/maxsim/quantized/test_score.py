"""Quantised scoring: every path returns the bits of the integer definition, within the bound of the exact score."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from maxsim import reference, tokens
from maxsim.quantized import QuantizedTokens, portable, quantize_fp8, quantize_int8, score
from maxsim.quantized.integer import score_integer
from maxsim.tokens import TokenBatch

PER = pytest.mark.parametrize("per", ["token", "document"])
Score = Callable[[QuantizedTokens | TokenBatch, QuantizedTokens], Tensor]


def unit(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def by_hand(q: QuantizedTokens, d: QuantizedTokens) -> Tensor:
    """The definition, pair by pair, in Python integers' company: int64 dots, one rounding a step."""
    out = torch.zeros(q.count, d.count)
    p, s = q.row_scales(), d.row_scales()
    for n, (a, i) in enumerate(zip(q.codes.row_starts().tolist(), q.codes.row_lengths().tolist(), strict=True)):
        for b, (c, j) in enumerate(zip(d.codes.row_starts().tolist(), d.codes.row_lengths().tolist(), strict=True)):
            if i == 0:
                continue
            if j == 0:
                out[n, b] = -torch.inf
                continue
            dots = q.codes.values[a : a + i].long() @ d.codes.values[c : c + j].long().T
            best = (dots.float() * s[c : c + j]).max(1).values
            out[n, b] = (best * p[a : a + i]).double().sum().float()
    return out


@pytest.fixture(
    params=[
        "reference",
        "interpreted",
        pytest.param("portable", marks=pytest.mark.gpu),
        pytest.param("chosen", marks=pytest.mark.gpu),
    ]
)
def scores(request: pytest.FixtureRequest) -> Score:
    """Every path that this machine can run, with results on the CPU."""
    name = request.param
    if name == "interpreted":
        pool = request.getfixturevalue("interpreter")
        return lambda q, d: pool.submit(score, q, d, path="portable").result(timeout=240)
    if name == "reference":
        return lambda q, d: score(q, d, path="reference")
    path = None if name == "chosen" else name

    def call(q: QuantizedTokens | TokenBatch, d: QuantizedTokens) -> Tensor:
        from maxsim.quantized.batch import move

        moved = q.to("cuda") if isinstance(q, QuantizedTokens) else move(q, "cuda")
        return score(moved, d.to("cuda"), path=path).cpu()

    return call


@PER
@pytest.mark.parametrize("layout", ["dense", "masked", "packed"])
@pytest.mark.parametrize(
    ("Nq", "Lq", "B", "Ld", "d"), [(1, 32, 3, 70, 128), (3, 20, 4, 33, 17), (2, 150, 2, 9, 40), (5, 1, 2, 1, 1)]
)
def test_every_path_gives_the_bits_of_the_definition(scores, per, layout, Nq, Lq, B, Ld, d):
    D, lengths = unit(B, Ld, d, seed=1), torch.arange(B) * Ld // max(1, B - 1)
    if layout == "dense":
        documents = tokens(D)
    elif layout == "masked":
        documents = tokens(D, lengths=lengths)
    else:
        rows = torch.cat([D[n, :length] for n, length in enumerate(lengths)])
        documents = tokens(rows, cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]))
    q, k = quantize_int8(unit(Nq, Lq, d)), quantize_int8(documents, per)
    assert torch.equal(scores(q, k), by_hand(q, k))


def test_queries_of_different_lengths_and_an_empty_one_score_like_alone(scores):
    Q, lengths = unit(4, 9, 16), torch.tensor([9, 0, 3, 1])
    d = quantize_int8(unit(3, 12, 16, seed=1), lengths=torch.tensor([12, 0, 5]))
    together = scores(quantize_int8(Q, lengths=lengths), d)
    assert together[1].tolist() == [0.0, 0.0, 0.0]
    assert together[0, 1] == -torch.inf
    for n in (0, 2, 3):
        assert torch.equal(together[n], scores(quantize_int8(Q[n : n + 1, : lengths[n]]), d)[0])


def test_a_token_scale_changes_which_token_wins(scores):
    """Code 64 at scale 1/127 beats code 127 at a hundredth of it: the larger code is the smaller similarity."""
    d = quantize_int8(torch.tensor([[[1.0, 0.5], [0.01, 0.01]]]))
    assert d.codes.values.tolist() == [[127, 64], [127, 127]]
    q = quantize_int8(torch.tensor([[0.0, 1.0]]))
    assert scores(q, d).item() == pytest.approx(64 / 127, rel=1e-6)


def test_2048_products_of_127_and_127_accumulate_exactly(scores):
    def ones(L: int) -> QuantizedTokens:
        return QuantizedTokens(tokens(torch.ones(1, L, 2048)), torch.ones(L), "token")

    def codes(x: QuantizedTokens) -> QuantizedTokens:
        from dataclasses import replace

        return replace(x, codes=replace(x.codes, values=torch.full_like(x.codes.values, 127, dtype=torch.int8)))

    assert scores(codes(ones(1)), codes(ones(3))).item() == 33032192


@pytest.mark.parametrize("d", [128, 256, 260])
def test_the_largest_accumulators_of_both_signs_are_exact(scores, d):
    D = torch.ones(3, 5, d)
    D[1] = -1
    D[2, :, ::2] = -1
    q, k = quantize_int8(torch.ones(1, 2, d)), quantize_int8(D)
    assert torch.equal(scores(q, k), by_hand(q, k))


@PER
def test_a_document_of_zeros_scores_zero(scores, per):
    assert scores(quantize_int8(unit(2, 4, 8)), quantize_int8(torch.zeros(1, 3, 8), per)).tolist() == [[0.0], [0.0]]


def test_padding_cannot_win_where_every_similarity_is_negative(scores):
    D = torch.zeros(1, 5, 2)
    D[0, 0] = torch.tensor([-1.0, -0.5])
    for per in ("token", "document"):
        got = scores(quantize_int8(torch.eye(2)[None]), quantize_int8(D, per, lengths=torch.tensor([1])))
        assert got.item() == pytest.approx(-1.5, rel=0.005)


@PER
@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e-20])
def test_the_error_of_every_document_is_within_the_bound(scores, per, factor):
    """|score - exact| ≤ Σ_i max_j (|q_i|₁ · s_j / 2 + |d̂_j|₁ · s_i / 2): a maximum moves no more than its terms."""
    Q, D = unit(2, 7, 48), unit(6, 20, 48, seed=1) * factor
    q, d = quantize_int8(Q), quantize_int8(D, per)
    exact = reference.float64(tokens(Q), tokens(D))[0]
    step = d.row_scales().double().view(6, 20)
    width = d.dequantize().values.double().abs().sum(1).view(6, 20)
    ours = Q.double().abs().sum(-1)[..., None, None] * step / 2 + q.scales.double().view(2, 7, 1, 1) * width / 2
    bound = ours.amax(-1).sum(1)
    got = scores(q, d).double()
    assert ((got - exact).abs() <= bound * 1.0001).all()
    assert (got.sign() == exact.sign()).all()
    mixed = scores(tokens(Q), d).double()
    half = (Q.double().abs().sum(-1)[..., None, None] * step / 2).amax(-1).sum(1)
    assert ((mixed - exact).abs() <= half * 1.0001).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@PER
def test_a_query_as_it_is_meets_the_dequantised_documents(scores, dtype, per):
    Q, d = unit(3, 10, 40).to(dtype), quantize_int8(unit(4, 50, 40, seed=1), per, lengths=torch.tensor([50, 0, 1, 33]))
    want = reference.float64(
        tokens(Q.double()), TokenBatch(**{**vars(d.codes), "values": d.dequantize().values.double()})
    )
    torch.testing.assert_close(scores(tokens(Q), d).double(), want[0], rtol=1e-5, atol=1e-6)


def test_a_nan_in_a_query_as_it_is_makes_its_scores_nan(scores):
    Q = unit(2, 4, 8)
    Q[1, 2, 3] = torch.nan
    got = scores(tokens(Q), quantize_int8(unit(3, 5, 8, seed=1)))
    assert got[0].isfinite().all()
    assert got[1].isnan().all()


@PER
def test_fp8_scores_are_those_of_its_codes(scores, per):
    q, d = quantize_fp8(unit(2, 10, 40)), quantize_fp8(unit(3, 30, 40, seed=1), per)
    want = reference.float64(
        *(TokenBatch(**{**vars(x.codes), "values": x.dequantize().values.double()}) for x in (q, d))
    )
    torch.testing.assert_close(scores(q, d).double(), want[0], rtol=2e-3, atol=1e-4)


def test_selected_documents_score_like_the_documents_they_are(scores):
    q, d = quantize_int8(unit(2, 8, 16)), quantize_int8(unit(6, 9, 16, seed=1), "document")
    index = torch.tensor([5, 0, 2, 2])
    assert torch.equal(scores(q, d.select(index)), score_integer(q, d)[:, index])


@pytest.mark.parametrize(("Nq", "B"), [(0, 3), (2, 0)])
def test_no_queries_or_no_documents_give_an_empty_result(scores, Nq, B):
    assert scores(quantize_int8(unit(Nq, 4, 8)), quantize_int8(unit(B, 5, 8))).shape == (Nq, B)


def test_documents_without_a_single_token_score_minus_infinity(scores):
    got = scores(quantize_int8(unit(2, 4, 8)), quantize_int8(torch.zeros(3, 0, 8)))
    assert torch.equal(got, torch.full((2, 3), -torch.inf))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, d: score(q, quantize_int8(unit(1, 2, 9))), "d = 8, documents d = 9"),
        (lambda q, d: score(q, quantize_fp8(unit(1, 2, 8))), "quantise both alike"),
        (lambda q, d: score(tokens(unit(1, 2, 8)), quantize_fp8(unit(1, 2, 8))), "INT8 documents only"),
        (lambda q, d: score(q, tokens(unit(1, 2, 8))), "quantise them first"),
        (lambda q, d: score(q, d, path="fast"), "path = 'fast'"),
        (lambda q, d: score(q, d, path="hopper"), "operands are on cpu"),
        (lambda q, d: score(q, d, path="portable"), "path = 'portable' cannot run this: the operands are on cpu"),
        (lambda q, d: score(tokens(unit(1, 2, 8)), d, path="portable"), "path = 'portable' cannot run this"),
        (lambda q, d: score(unit(1, 2, 8), d), r"^queries are Tensor: quantise them \(maxsim.quantize_int8\) or wrap"),
        (lambda q, d: score([[1.0]], d), "^queries are list: quantise them"),
        (lambda q, d: score(q.codes, d), r"^queries: dtype is torch\.int8; embeddings are"),
        (lambda q, d: score(quantize_fp8(unit(1, 2, 8)).codes, d), r"^queries: dtype is torch\.float8_e4m3fn"),
        (lambda q, d: score(q.to("meta"), d.to("meta")), "^queries: is on the device meta"),
    ],
)
def test_operands_that_do_not_belong_together_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call(quantize_int8(unit(1, 2, 8)), quantize_int8(unit(1, 2, 8)))


@PER
@pytest.mark.parametrize("quantise", [quantize_int8, quantize_fp8])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("d", [40, 1200])
def test_neither_autocast_nor_a_switch_changes_what_is_multiplied(per, quantise, mixed, d):
    """Codes up to 127 times 127 are summed exactly in fp32, not in the 8 or 11 bits of a 16-bit product."""
    if mixed and quantise is quantize_fp8:
        pytest.skip("a query as it is meets INT8 documents only")
    Q, documents = unit(2, 9, d), quantise(unit(5, 12, d, seed=1), per)
    q = tokens(Q, role="Q") if mixed else quantise(Q)
    expected = score(q, documents)
    cpu = torch.backends.mkldnn.matmul
    before, cpu.fp32_precision = cpu.fp32_precision, "bf16"
    try:
        assert torch.equal(score(q, documents), expected)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert torch.equal(score(q, documents), expected)
        assert cpu.fp32_precision == "bf16"
    finally:
        cpu.fp32_precision = before


@PER
@pytest.mark.parametrize("limit", [1, 7, 20])
def test_more_programs_than_a_grid_holds_are_several_launches(interpreter, monkeypatch, per, limit):
    q, d = quantize_int8(unit(3, 150, 16)), quantize_int8(unit(5, 9, 16, seed=1), per)
    tiles, grids = 6, []  # of 128 query rows: two for each query

    class Recorder:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda *arguments, **_: grids.append((grid[0], arguments[7]))

    with monkeypatch.context() as patch:
        patch.setattr(portable, "_GRID_LIMIT", limit)
        patch.setattr(portable, "maxsim_quantized", Recorder())
        portable.score_portable(q, d)
    most = max(1, limit // tiles)
    assert grids == [(tiles * min(most, 5 - first), first) for first in range(0, 5, most)]
    change = "from maxsim.quantized import portable; portable._GRID_LIMIT = {}"
    interpreter.submit(exec, change.format(limit)).result(timeout=240)
    try:
        scores = interpreter.submit(score, q, d, path="portable").result(timeout=240)
    finally:
        interpreter.submit(exec, change.format(portable._GRID_LIMIT)).result(timeout=240)
    assert torch.equal(scores, by_hand(q, d))


@pytest.mark.gpu
@PER
def test_more_than_2_to_the_31_elements_score_correctly_at_both_ends(per):
    B, Ld, d = 60_000, 300, 128
    generator = torch.Generator("cuda").manual_seed(0)
    codes = torch.empty(B * Ld, d, dtype=torch.int8, device="cuda").random_(-127, 128, generator=generator)
    scales = torch.rand(B * Ld if per == "token" else B, device="cuda", generator=generator) + 0.5
    scales = (scales.view(torch.int32) & ~3).view(torch.float32)
    documents = QuantizedTokens(TokenBatch(codes, B, Ld, Ld), scales, per)
    q = quantize_int8(unit(2, 32, 128)).to("cuda")
    for path in ("portable", None):
        got = score(q, documents, path=path)
        for ends in (torch.arange(32), torch.arange(B - 32, B)):
            assert torch.equal(got[:, ends.cuda()], score_integer(q, documents.select(ends.cuda())))


@pytest.mark.gpu
@pytest.mark.timeout(120)
@PER
@pytest.mark.parametrize(("Nq", "Lq"), [(1, 32), (1, 700), (40, 32)])
@pytest.mark.parametrize("layout", ["masked", "packed"])
def test_many_ragged_documents_a_program_score_by_the_definition(per, Nq, Lq, layout):
    """Loader and consumers walk the same documents; if they disagreed on one length, the kernel would not end."""
    generator = torch.Generator("cuda").manual_seed(0)
    D = torch.randn(3000, 150, 128, device="cuda", generator=generator).half()
    lengths = torch.randint(0, 151, (3000,), device="cuda", generator=generator)
    if layout == "masked":
        documents = tokens(D, lengths=lengths)
    else:
        rows = D[torch.arange(150, device="cuda") < lengths[:, None]]
        documents = tokens(rows, cu_seqlens=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    q, k = quantize_int8(torch.randn(Nq, Lq, 128, device="cuda", generator=generator)), quantize_int8(documents, per)
    want = score_integer(q, k)
    for _ in range(5):
        assert torch.equal(score(q, k), want)
