"""Inputs with known answers, over every path that this machine can run."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch

import maxsim
from maxsim import reference

q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
NEG = torch.tensor([[-1.0, -0.5]])
POS = torch.tensor([[0.2, 0.1], [0.1, 0.3], [0.0, 0.1]])
INF, NAN = math.inf, math.nan
GARBAGE = (0.0, 9.0, -9.0, 1e30, INF, -INF, NAN)


def batch(*documents: torch.Tensor, length: int = 0, fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Documents padded with `fill` to the longest of them or `length`, and which tokens are real."""
    length = max(length, *(len(x) for x in documents))
    D = torch.full((len(documents), length, documents[0].shape[1]), fill)
    mask = torch.zeros(len(documents), length, dtype=torch.bool)
    for n, x in enumerate(documents):
        D[n, : len(x)], mask[n, : len(x)] = x, True
    return D, mask


def close(scores: torch.Tensor, expected: Any, rtol: float = 1e-6) -> None:
    """Values agree, equal infinities and NaNs included."""
    torch.testing.assert_close(
        scores.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=1e-30, equal_nan=True
    )


def truth(Q: torch.Tensor, D: torch.Tensor, pairing: str = "all", **options: Any) -> torch.Tensor:
    """Float64 scores of the reference."""
    given = {role: {k[2:]: v for k, v in options.items() if k[0] == role} for role in "qd"}
    a, b = maxsim.tokens(Q, **given["q"]), maxsim.tokens(D, **given["d"])
    scores = reference.float64(a, b, pairing=pairing)[0]  # type: ignore[arg-type]
    return scores.squeeze(0) if Q.ndim == 2 and "q_cu_seqlens" not in options else scores


class TestPadding:
    def test_padding_cannot_win_where_every_real_similarity_is_negative(self, score):
        D, mask = batch(NEG, POS)
        close(score(q, D, d_mask=mask), [-1.5, 0.5])

    @pytest.mark.parametrize("fill", GARBAGE)
    def test_what_document_padding_holds_is_invisible(self, score, fill):
        D, mask = batch(NEG, POS, length=8, fill=fill)
        close(score(q, D, d_mask=mask), [-1.5, 0.5])

    @pytest.mark.parametrize("fill", [0.0, 5.0, NAN])
    def test_what_query_padding_holds_is_invisible(self, score, fill):
        D, mask = batch(NEG, POS)
        Q = torch.cat([q, torch.full((30, 2), fill)])
        close(score(Q, D, d_mask=mask, q_mask=torch.arange(32) < 2), [-1.5, 0.5])

    def test_left_padding_and_holes_score_like_right_padding(self, score):
        D = torch.full((3, 6, 2), NAN)
        mask = torch.zeros(3, 6, dtype=torch.bool)
        for n, rows in enumerate(((0, 1, 2), (3, 4, 5), (0, 3, 5))):
            D[n, list(rows)], mask[n, list(rows)] = POS, True
        close(score(q, D, d_mask=mask), [0.5, 0.5, 0.5])
        close(score(q, D[:2], d_mask=mask[:2]), [0.5, 0.5])

    def test_a_document_scores_the_same_bits_whoever_is_in_its_batch(self, fused_score):
        long = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        alone = fused_score(q, NEG[None])
        for partners in ((POS,), (long,)):
            D, mask = batch(NEG, *partners)
            assert torch.equal(fused_score(q, D, d_mask=mask)[:1], alone)


class TestValues:
    def test_it_is_a_sum_over_query_tokens_and_not_a_mean(self, score):
        eye = torch.eye(4)
        close(score(eye, eye[None]), [4.0])
        close(score(eye, -eye[None]), [0.0])
        close(score(eye[:1], -eye[None, :1]), [-1.0])
        close(score(torch.full((1, 1), 3.0), torch.full((1, 1, 1), 2.0)), [6.0])

    def test_an_empty_document_scores_minus_infinity_and_an_empty_query_zero(self, score):
        D, mask = batch(POS, POS)
        mask[1] = False
        close(score(q, D, d_mask=mask), [0.5, -INF])
        close(score(q, D, d_mask=mask, q_mask=torch.zeros(2, dtype=torch.bool)), [0.0, 0.0])

    def test_no_documents_and_no_queries_give_empty_scores(self, score):
        assert score(q[None], POS[None][:0]).shape == (1, 0)
        assert score(q[None][:0], POS[None]).shape == (0, 1)
        close(score(q[:0], POS[None]), [0.0])
        close(score(q, POS[None, :0]), [-INF])

    def test_fp32_operands_keep_their_range(self, score):
        close(score(q * 7e4, POS[None]), [3.5e4], rtol=1e-5)
        close(score(q * 1e-8, POS[None]), [5e-9], rtol=1e-3)

    @pytest.mark.parametrize(("dtype", "tokens"), [(torch.bfloat16, 300), (torch.float16, 4096)])
    def test_sums_do_not_stall_where_16_bits_would(self, score, dtype, tokens):
        scores = score(torch.ones(tokens, 1, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype))
        assert scores.item() == tokens

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_a_nan_in_a_valid_token_makes_its_scores_nan_and_no_others(self, score, position):
        D = torch.stack([POS, POS])
        D[1, position, 1] = NAN
        close(score(q, D), [0.5, NAN])
        Q = torch.stack([q, q])
        Q[0, 1, 0] = NAN
        close(score(Q, POS[None]), [[NAN], [0.5]])

    def test_infinities_follow_ieee_arithmetic(self, score):
        D = torch.stack([POS, POS, POS])
        D[0, 1, 0], D[1, :, 0], D[2, 0, 0] = INF, -INF, INF
        close(score(q + 1, D), truth(q + 1, D))
        close(score(q, D), truth(q, D))  # 0 * Inf is NaN

    def test_results_are_fp32_and_those_of_float64_operands_float64(self, score):
        if score.name in ("eager", "chunked"):
            pytest.skip("baselines answer in the operands' dtype")
        assert score(q.half(), POS[None].half()).dtype == (
            torch.float64 if score.name == "reference" else torch.float32
        )
        if score.name == "chosen":
            assert score(q.double(), POS[None].double()).dtype == torch.float64


class TestTies:
    def test_the_first_of_tied_tokens_wins(self, score):
        D = torch.tensor([[[0.0, 0.0], [2.0, 1.0], [2.0, -1.0], [2.0, 0.0]]])
        assert score.argmax(q[:1], D).tolist() == [[1]]

    def test_the_first_of_tied_tokens_wins_across_tiles(self, score):
        D = -torch.ones(1, 200, 8)
        D[0, 3] = D[0, 130] = 1.0
        assert score.argmax(torch.ones(3, 8), D).tolist() == [[3, 3, 3]]

    def test_winners_are_in_the_callers_positions(self, score):
        D = torch.zeros(3, 5, 1)
        D[:, 3] = 1.0
        mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
        Q, q_mask = torch.ones(2, 4, 1), torch.tensor([[0, 0, 1, 1], [1, 0, 1, 0]])
        won = score.argmax(Q, D, d_mask=mask, q_mask=q_mask)
        assert won.tolist() == [
            [[-1, -1, 3, 3], [-1, -1, 3, 3], [-1] * 4],
            [[3, -1, 3, -1], [3, -1, 3, -1], [-1] * 4],
        ]
        assert score.argmax(Q, D[:2], d_mask=mask[:1].repeat(2, 1)).tolist() == [[[3] * 4] * 2] * 2

    def test_a_nan_wins_and_a_document_of_minus_infinity_gives_its_first_token(self, score):
        D = torch.tensor([[[1.0], [NAN], [2.0]], [[-INF], [-INF], [-INF]]])
        assert score.argmax(torch.ones(1, 1), D).tolist() == [[1], [0]]


class TestLayouts:
    Q, D = (torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1)),
            torch.randn(4, 7, 24, generator=torch.Generator().manual_seed(2)))  # fmt: skip

    LAYOUTS: ClassVar = {
        "transposed storage": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "batch last in storage": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second token": lambda x: torch.repeat_interleave(x, 2, dim=1)[:, ::2],
        "row slice": lambda x: torch.cat([x, torch.full_like(x, NAN)], dim=1)[:, : x.shape[1]],
        "feature slice": lambda x: torch.cat([x, torch.full_like(x, NAN)], dim=2)[:, :, : x.shape[2]],
        "offset view": lambda x: torch.cat([torch.full((3,), NAN), x.flatten()])[3:].view(x.shape),
        "reversed batch stride": lambda x: x.flip(0).contiguous().flip(0),
    }

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_any_strides_score_like_contiguous_storage(self, score, layout):
        view = self.LAYOUTS[layout]
        expected = truth(self.Q, self.D)
        close(score(view(self.Q), view(self.D)), expected, rtol=1e-5)

    def test_an_expanded_query_scores_like_its_copies(self, score):
        Q = self.Q[:1].expand(3, 5, 24)
        close(score(Q, self.D), truth(Q.contiguous(), self.D), rtol=1e-5)

    def test_packed_rows_score_like_their_padded_documents(self, score):
        lengths = [3, 0, 7, 1]
        rows = torch.cat([self.D[n, :length] for n, length in enumerate(lengths)])
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        expected = truth(self.Q, self.D, d_lengths=torch.tensor(lengths))
        close(score(self.Q, rows, d_cu_seqlens=offsets), expected, rtol=1e-5)
        q_offsets = torch.tensor([0, 2, 2, 7], dtype=torch.int32)
        packed_q = torch.cat([self.Q[0, :2], self.Q[1]])
        scores = score(packed_q, rows, q_cu_seqlens=q_offsets, d_cu_seqlens=offsets)
        close(scores, truth(packed_q, rows, q_cu_seqlens=q_offsets, d_cu_seqlens=offsets), rtol=1e-5)

    def test_pairs_and_candidates_are_entries_of_all(self, score):
        everything = truth(self.Q, self.D)
        close(score(self.Q, self.D[:2], pairing="pairs"), everything.diagonal(), rtol=1e-5)
        scores = score(self.Q, self.D.view(2, 2, 7, 24), pairing="candidates")
        close(scores, torch.stack([everything[0, :2], everything[1, 2:]]), rtol=1e-5)
        lengths = torch.tensor([[7, 0], [2, 5]])
        scores = score(self.Q, self.D.view(2, 2, 7, 24), pairing="candidates", d_lengths=lengths)
        everything = truth(self.Q, self.D, d_lengths=lengths.flatten())
        close(scores, torch.stack([everything[0, :2], everything[1, 2:]]), rtol=1e-5)


class TestShapes:
    @pytest.mark.parametrize("d", [1, 2, 3, 17, 64, 96, 128, 192, 320, 384, 768, 1000])
    @pytest.mark.parametrize(("Lq", "Ld"), [(1, 1), (1, 129), (33, 1), (32, 128), (31, 127)])
    def test_widths_and_lengths_need_not_be_powers_of_two(self, score, d, Lq, Ld):
        generator = torch.Generator().manual_seed(d * 1000 + Lq)
        Q, D = torch.randn(2, Lq, d, generator=generator), torch.randn(3, Ld, d, generator=generator)
        expected = truth(Q, D)
        torch.testing.assert_close(score(Q, D).double(), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("j", [0, 1, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 199])
    def test_a_single_positive_token_is_found_at_every_tile_edge(self, score, j):
        D = -torch.ones(1, 200, 8)
        D[0, j] = 1.0
        close(score(torch.ones(3, 8), D), [24.0])

    @pytest.mark.parametrize("Lq", [1, 5, 127, 129, 260])
    @pytest.mark.parametrize("Nq", [1, 3, 9])
    def test_queries_of_any_number_and_length_share_tiles(self, score, Nq, Lq):
        generator = torch.Generator().manual_seed(Nq * 1000 + Lq)
        Q, D = torch.randn(Nq, Lq, 16, generator=generator), torch.randn(2, 20, 16, generator=generator)
        lengths = torch.randint(0, Lq + 1, (Nq,), generator=generator)
        expected = truth(Q, D, q_lengths=lengths)
        torch.testing.assert_close(score(Q, D, q_lengths=lengths).double(), expected, rtol=1e-5, atol=1e-4)
