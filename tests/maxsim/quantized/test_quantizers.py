"""Quantisers: the INT8 cases with known answers, and the error they promise."""

from __future__ import annotations

import pytest
import torch

from maxsim import tokens
from maxsim.quantized import QuantizedTokens, quantize_fp8, quantize_int8, quantize_stream
from maxsim.quantized.batch import move, owned_rows
from maxsim.quantized.quantizers import scale_of
from maxsim.tokens import TokenBatch

PER = pytest.mark.parametrize("per", ["token", "document"])


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


@PER
def test_a_document_of_zeros_has_zero_codes_and_scale_one(per):
    q = quantize_int8(torch.zeros(1, 3, 8), per)
    assert not q.codes.values.any()
    assert (q.scales == 1).all()


def test_a_zero_token_beside_others_has_zero_codes_and_scale_one():
    x = torch.stack([torch.zeros(8), torch.ones(8)])
    q = quantize_int8(x)
    assert q.scales[0] == 1
    assert not q.codes.values[0].any()
    assert (q.codes.values[1] == 127).all()


@PER
def test_the_largest_magnitudes_become_127_and_never_wrap(per):
    q = quantize_int8(torch.tensor([[-1.0, 0.999, 200.0, -200.0]]), per)
    assert q.codes.values[0].tolist() == [-1, 1, 127, -127]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@PER
def test_codes_stay_within_127_on_random_input_of_every_dtype(dtype, per):
    q = quantize_int8((unit(4, 50, 33) * 3).to(dtype), per)
    assert int(q.codes.values.int().abs().max()) == 127


@PER
@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e-20, 1e20])
def test_every_element_is_within_half_a_step_whatever_the_norm(per, factor):
    x = unit(5, 40, 64) * factor
    q = quantize_int8(x, per)
    error = (q.dequantize().values - x.flatten(0, 1)).abs()
    assert (error <= 0.5001 * q.row_scales()[:, None]).all()
    assert (q.row_scales() <= x.abs().max() / 127 * 1.00001).all()


@PER
def test_masked_tokens_do_not_take_part_whatever_they_hold(per):
    x = unit(3, 6, 16)
    lengths = torch.tensor([6, 2, 0])
    clean = quantize_int8(x, per, lengths=lengths)
    for garbage in (torch.nan, torch.inf, 1e30, 9.0):
        dirty = x.clone()
        dirty[1, 2:], dirty[2] = garbage, garbage
        q = quantize_int8(dirty, per, lengths=lengths)
        assert torch.equal(q.codes.values, clean.codes.values)
        assert torch.equal(q.scales, clean.scales)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e31])
@PER
def test_a_token_that_cannot_be_quantised_is_refused_with_its_place(per, bad):
    x = unit(3, 6, 16)
    x[1, 4, 7] = bad
    with pytest.raises(ValueError, match="token 4 of sequence 1"):
        quantize_int8(x, per, lengths=torch.tensor([6, 5, 6]))
    quantize_int8(x, per, lengths=torch.tensor([6, 4, 6]))


@PER
@pytest.mark.parametrize("quantise", [quantize_int8, quantize_fp8])
def test_packed_dense_and_masked_documents_have_the_same_codes(per, quantise):
    x, lengths = unit(3, 7, 24), torch.tensor([7, 0, 4])
    packed = torch.cat([x[n, :length] for n, length in enumerate(lengths)])
    masked = quantise(x, per, lengths=lengths)
    rows, _ = owned_rows(masked.codes)
    got = quantise(packed, per, cu_seqlens=torch.tensor([0, 7, 7, 11]))
    assert torch.equal(got.codes.values.float(), masked.codes.values.float()[rows])
    assert torch.equal(got.row_scales(), masked.row_scales()[rows])


def test_scales_have_22_significant_bits_and_three_of_them_fit_into_24():
    absmax = torch.rand(10_000, generator=torch.Generator().manual_seed(1)) * 10
    scale = scale_of(absmax, 127.0)
    assert not (scale.view(torch.int32) & 3).any()
    assert torch.equal((scale.double() * 12582912).float().double(), scale.double() * 12582912)
    assert (scale >= absmax / 127).all()
    assert (scale <= absmax / 127 * (1 + 2**-21)).all()


def test_a_scale_is_never_subnormal():
    assert scale_of(torch.tensor([1e-44, 0.0]), 127.0).tolist() == [2.0**-126, 1.0]


def test_code_rows_begin_on_16_byte_boundaries_and_their_padding_is_zero():
    values = quantize_int8(unit(4, 17)).codes.values
    assert values.shape == (4, 17)
    assert values.stride() == (32, 1)
    assert not values.as_strided((4, 32), (32, 1))[:, 17:].any()


def test_fp8_codes_reach_448_and_keep_three_mantissa_bits():
    x = unit(20, 32)
    q = quantize_fp8(x)
    assert q.codes.dtype == torch.float8_e4m3fn
    assert (q.codes.values.float().abs().amax(1) == 448).all()
    error = (q.dequantize().values - x).abs()
    assert (error <= x.abs() / 16 + q.scales[:, None] * 2.0**-10).all()


def test_a_stream_gives_the_codes_of_the_whole():
    x = unit(10, 5, 16)
    whole = quantize_int8(x)
    parts = list(quantize_stream(x[i : i + 4] for i in range(0, 10, 4)))
    assert torch.equal(torch.cat([p.codes.values for p in parts]), whole.codes.values)
    assert torch.equal(torch.cat([p.scales for p in parts]), whole.scales)


def test_documents_that_share_rows_keep_token_scales_and_refuse_document_scales():
    shared = tokens(unit(3, 4, 8)).select(torch.tensor([0, 2, 0]))
    assert quantize_int8(shared, "token").count == 3
    with pytest.raises(ValueError, match="share rows"):
        quantize_int8(shared, "document")


@PER
def test_selected_documents_carry_their_scales(per):
    q = quantize_int8(unit(4, 3, 8), per)
    chosen = q.select(torch.tensor([3, 0]))
    rows, _ = owned_rows(chosen.codes)
    whole = q.dequantize().values.view(4, 3, 8)
    assert torch.equal(chosen.dequantize().values[rows].view(2, 3, 8), whole[[3, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_int8(unit(2, 3, 4), "row"), "per = 'row'"),
        (lambda: quantize_int8(tokens(unit(2, 3, 4)), lengths=torch.tensor([1, 2])), "TokenBatch"),
        (lambda: QuantizedTokens(tokens(unit(2, 3, 4)), torch.ones(2), "token"), "one fp32 scale a token"),
        (lambda: quantize_int8(unit(2)), r"^X: shape is \(2,\)"),
        (lambda: quantize_fp8(torch.ones(2, 3, dtype=torch.int8)), r"^X: dtype is torch\.int8"),
        (lambda: quantize_int8(unit(2, 3, 4), lengths=torch.tensor([1])), "^lengths: shape"),
        (lambda: quantize_fp8(unit(2, 3, 4), mask=torch.ones(2, 4, dtype=torch.bool)), "^mask: shape"),
        (lambda: quantize_int8(unit(6, 4), cu_seqlens=torch.tensor([0, 5])), "^cu_seqlens: ends at 5, but X has 6"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@PER
@pytest.mark.parametrize("again", [quantize_int8, quantize_fp8])
@pytest.mark.parametrize("first", [quantize_int8, quantize_fp8])
def test_codes_are_not_quantised_again(per, again, first):
    """Their scales would be lost."""
    with pytest.raises(ValueError, match=r"^X: dtype is torch\.(int8|float8_e4m3fn); embeddings are float16"):
        again(first(unit(2, 3, 4)).codes, per)


@PER
@pytest.mark.parametrize("quantise", [quantize_int8, quantize_fp8])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("lengths", [None, torch.tensor([1, 2], device="meta")])
def test_tensors_without_numbers_are_refused_by_name(per, quantise, batched, lengths):
    X = torch.ones(2, 3, 4, device="meta")
    given = TokenBatch(X.view(6, 4), 2, 3, 3, lengths=lengths) if batched else X
    with pytest.raises(ValueError, match=r"^X: is on the device meta, which holds no numbers; give tensors of"):
        quantise(given, per, **({} if batched else {"lengths": lengths}))


def test_what_is_no_tensor_is_a_type_error_that_names_it():
    with pytest.raises(TypeError, match=r"^X: expected a torch\.Tensor or TokenBatch, got list"):
        quantize_int8([[1.0]])


def test_quantised_tokens_equal_themselves_alone():
    one, other = quantize_int8(unit(2, 3, 4)), quantize_int8(unit(2, 3, 4))
    assert one == one
    assert one != other
    assert [other, one].index(one) == 1


@pytest.mark.parametrize("shape", [(0, 5, 8), (3, 0, 8), (1, 1, 1)])
@PER
def test_empty_batches_and_empty_documents_quantise(shape, per):
    q = quantize_int8(torch.ones(shape), per)
    assert q.count == shape[0]


@pytest.mark.parametrize(
    ("view", "stride"),
    [
        (lambda x: x[..., :8], 24),
        (lambda x: x[..., 16:], 8),
        (lambda x: x[:, :, :8].contiguous(), 8),
        (lambda x: x[:, ::2], 48),
        (lambda x: x[:1, :1, :8].expand(4, 5, 8), None),
    ],
    ids=["first columns", "last columns", "packed", "every second token", "expanded"],
)
def test_rows_of_any_stride_move_to_another_device(view, stride):
    """The last columns of a wider tensor end short of a whole row, and no row beyond them may be asked for."""
    batch = tokens(view(torch.zeros(4, 6, 24)))
    moved = move(batch, "meta")
    assert (moved.values.shape, moved.device.type) == (batch.values.shape, "meta")
    assert (moved.count, moved.pitch, moved.max_length) == (batch.count, batch.pitch, batch.max_length)
    if stride is not None:
        assert moved.values.stride() == (stride, 1)
