"""Lengths of packed documents follow the named distribution and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from maxsim_bench.backends.lengths import LengthError, draw_lengths, histograms


def test_a_uniform_draw_reaches_both_ends_and_no_further() -> None:
    drawn = draw_lengths("uniform:3:7", 2000, seed=1, Ld=9)
    assert drawn.dtype == np.int32
    assert drawn.shape == (2000,)
    assert sorted(set(drawn.tolist())) == [3, 4, 5, 6, 7]


def test_the_seed_decides_the_draw() -> None:
    draws = [draw_lengths("lognormal:4.6:0.7:10:512", 100, seed=s, Ld=512).tolist() for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_a_lognormal_draw_is_clamped_to_its_bounds_and_has_its_median() -> None:
    drawn = draw_lengths("lognormal:4.6:0.7:10:512", 20000, seed=0, Ld=512)
    assert drawn.min() >= 10
    assert drawn.max() == 512
    assert abs(np.median(drawn) - np.exp(4.6)) < 3
    assert draw_lengths("lognormal:9:1", 50, seed=0, Ld=64).max() == 64


@pytest.mark.parametrize("name", ["scifact", "apidocs", "finslides", "cranfield", "limit-small"])
def test_a_collection_gives_lengths_it_has_in_their_proportion_cut_at_Ld(name: str) -> None:
    histogram = histograms()[name]
    assert (np.diff(histogram.lengths) > 0).all()
    longest = int(histogram.lengths.max())
    drawn = draw_lengths(name, 50000, seed=3, Ld=longest)
    assert set(drawn.tolist()) <= set(histogram.lengths.tolist())
    spread = np.sqrt((histogram.counts * (histogram.lengths - histogram.mean) ** 2).sum() / histogram.documents)
    assert abs(drawn.mean() - histogram.mean) < 5 * spread / np.sqrt(50000)
    assert draw_lengths(name, 500, seed=3, Ld=100).max() <= 100


def test_the_histograms_count_every_document_of_their_collection() -> None:
    documents = {name: h.documents for name, h in histograms().items()}
    assert documents == {"scifact": 5183, "apidocs": 1000, "finslides": 2280, "cranfield": 1400, "limit-small": 46}


def test_empty_documents_of_a_collection_stay_empty() -> None:
    """Cranfield has two."""
    assert draw_lengths("cranfield", 20000, seed=0, Ld=512).min() == 0


def test_no_documents_are_no_lengths() -> None:
    assert draw_lengths("scifact", 0, seed=0, Ld=512).shape == (0,)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("scifakt", "Did you mean 'scifact'"),
        ("uniform:5", "uniform:LOW:HIGH"),
        ("uniform:9:3", "LOW <= HIGH"),
        ("uniform:a:3", "whole numbers"),
        ("uniform:1:65", "exceeds Ld = 64"),
        ("lognormal:4", "lognormal:MU:SIGMA"),
        ("lognormal:nan:1", "finite"),
        ("lognormal:4:-1", "SIGMA >= 0"),
        ("lognormal:4:1:9:3", "LOW <= HIGH"),
    ],
)
def test_a_name_that_is_no_distribution_is_told_with_what_to_write(name: str, told: str) -> None:
    with pytest.raises(LengthError, match=told):
        draw_lengths(name, 3, seed=0, Ld=64)
