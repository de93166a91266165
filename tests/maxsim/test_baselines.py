"""The baselines compute what users of such code get, and padding cannot win in them either."""

from __future__ import annotations

import pytest
import torch

from maxsim import baselines, reference
from maxsim.tokens import tokens

g = torch.Generator().manual_seed(0)
Q = torch.nn.functional.normalize(torch.randn(3, 7, 32, generator=g), dim=-1)
D = torch.nn.functional.normalize(torch.randn(9, 11, 32, generator=g), dim=-1)
LENGTHS = torch.tensor([11, 0, 1, 5, 7, 11, 3, 2, 9])
Q_LENGTHS = torch.tensor([7, 0, 4])
# similarities, maxima and the sum are rounded to 11 (fp16) or 8 (bf16) bits
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_eager_answers_in_its_operands_dtype_within_what_that_rounds(dtype):
    q, d = Q.to(dtype), D.to(dtype)
    scores = baselines.eager(q, d, LENGTHS, Q_LENGTHS)
    expected, _ = reference.float64(tokens(q, lengths=Q_LENGTHS), tokens(d, lengths=LENGTHS))
    assert scores.dtype == dtype
    torch.testing.assert_close(scores.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("call", [baselines.eager, baselines.chunked])
@pytest.mark.parametrize(("Lq", "Ld"), [(7, 0), (0, 11), (0, 0), (7, 11)])
@pytest.mark.parametrize("q_lengths", [None, [0, 0, 0], [7, 0, 4]])
@pytest.mark.parametrize("lengths", [None, [0] * 9])
def test_an_empty_query_scores_zero_and_an_empty_document_minus_infinity_however_they_are_empty(
    call, Lq, Ld, q_lengths, lengths
):
    given = [None if n is None else torch.tensor(n).clamp_max(most) for n, most in ((lengths, Ld), (q_lengths, Lq))]
    scores = call(Q[:, :Lq], D[:, :Ld], *given)
    q, d = tokens(Q[:, :Lq], lengths=given[1]), tokens(D[:, :Ld], lengths=given[0])
    expected, _ = reference.float64(q, d)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [0, 1, 4, 9, 100])
def test_chunks_of_any_size_give_what_one_piece_gives(chunk):
    expected = baselines.eager(Q, D, LENGTHS, Q_LENGTHS)
    torch.testing.assert_close(baselines.chunked(Q, D, LENGTHS, Q_LENGTHS, chunk=chunk), expected)


def test_a_negative_chunk_is_refused():
    with pytest.raises(ValueError, match="chunk: -1"):
        baselines.chunked(Q, D, chunk=-1)


def test_the_chosen_chunk_keeps_similarities_within_the_budget(monkeypatch):
    per_document = 3 * 7 * 11 * 4
    monkeypatch.setattr(baselines, "CPU_BLOCK_BYTES", 2 * per_document * 4)
    assert baselines._documents_that_fit(Q, D) == 4
    monkeypatch.setattr(baselines, "CPU_BLOCK_BYTES", 1)
    assert baselines._documents_that_fit(Q, D) == 1


@pytest.mark.parametrize(
    ("free", "held", "reserved", "fraction", "documents"),
    [(40, 0, 0, 1.0, 10), (36, 4, 8, 1.0, 10), (40, 0, 0, 0.25, 5), (36, 4, 8, 0.25, 4), (36, 20, 20, 0.25, 1)],
)
def test_the_chosen_chunk_keeps_within_what_a_process_may_take(monkeypatch, free, held, reserved, fraction, documents):
    """In units of one document's similarities, of a card of 80; half of what is left is for two copies."""
    Q, D = torch.empty(3, 7, 8, device="meta"), torch.empty(30, 11, 8, device="meta")
    unit = 3 * 7 * 11 * 4
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * unit, 80 * unit))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held * unit)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * unit)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: fraction)
    assert baselines._documents_that_fit(Q, D) == documents


@pytest.mark.gpu
@pytest.mark.parametrize("cudagraphs", [False, True])
def test_compiled_gives_what_eager_gives(cudagraphs):
    q, d, lengths = Q.half().cuda(), D.half().cuda(), LENGTHS.cuda()
    run = baselines.compiled(cudagraphs=cudagraphs)
    for _ in range(3):  # the graph is recorded on the second call
        scores = run(q, d, lengths).clone()
    torch.testing.assert_close(scores, baselines.eager(q, d, lengths), rtol=4e-3, atol=4e-3)


@pytest.mark.gpu
def test_tf32_is_used_when_asked_for_and_only_then():
    q, d = Q.cuda(), D.cuda()
    expected, _ = reference.float64(tokens(q), tokens(d))
    ieee, tf32 = (baselines.eager(q, d, tf32=flag) for flag in (False, True))
    assert ((ieee - expected) / expected).abs().max() < 1e-6
    assert 1e-6 < ((tf32 - expected) / expected).abs().max() < 2e-3
