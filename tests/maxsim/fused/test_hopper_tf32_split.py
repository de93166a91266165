"""The arithmetic of the fp32 Hopper kernel: its own `split`, run on a processor over any fp32 number. No GPU."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from maxsim.fused import hopper_tf32_kernels

LOW_BITS = 0x1FFF  # of an fp32 word, which TF32 does not have
SMALLEST_EXACT = 2.0**-112  # below it the low part may fall under the smallest TF32 number
STEP = 2.0**-136  # between TF32 numbers next to zero

any_bits = st.integers(0, 2**32 - 1).map(lambda word: np.uint32(word).view(np.float32))
special = st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4028235e38, 3.4026e38, 1e-45, 1.1754944e-38])
numbers = st.one_of(any_bits, special.map(np.float32), st.floats(-2, 2, width=32).map(np.float32))
signalling = np.array([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF], np.uint32).view(np.float32)


class Words:
    """An array with the operators that `split` uses, which are those of a Gluon tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def to(self, dtype: type, bitcast: bool) -> Words:
        assert bitcast
        return Words(self.array.view(dtype))

    def _with(self, operator: str, other: Any) -> Words:
        right = other.array if isinstance(other, Words) else getattr(other, "value", other)
        if not isinstance(right, np.ndarray):
            right = self.array.dtype.type(right)
        with np.errstate(all="ignore"):
            return Words(getattr(np, operator)(self.array, right))

    def __and__(self, other: Any) -> Words:
        return self._with("bitwise_and", other)

    def __add__(self, other: Any) -> Words:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Words:
        return self._with("subtract", other)

    def __lt__(self, other: Any) -> Words:
        return self._with("less", other)

    def __ne__(self, other: Any) -> Any:
        return self._with("not_equal", other)


def where(condition: Words, x: Any, y: Any) -> Words:
    left, right = ((v.array if isinstance(v, Words) else getattr(v, "value", v)) for v in (x, y))
    dtype = next(v.dtype for v in (left, right) if isinstance(v, np.ndarray))
    return Words(np.where(condition.array, left, right).astype(dtype))


@pytest.fixture(autouse=True)
def on_a_processor(monkeypatch) -> None:
    language = SimpleNamespace(int32=np.int32, float32=np.float32, where=where, abs=lambda x: Words(np.abs(x.array)))
    monkeypatch.setattr(hopper_tf32_kernels, "gl", language)


def split(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """High and low parts, by the source of the kernel."""
    hi, lo = hopper_tf32_kernels.split.fn(Words(np.atleast_1d(np.asarray(x, np.float32)).copy()))
    return hi.array, lo.array


def tf32(x: np.ndarray) -> np.ndarray:
    """x as a tensor core reads it that drops the bits TF32 has not."""
    return (x.view(np.uint32) & np.uint32(~LOW_BITS & 0xFFFFFFFF)).view(np.float32)


@given(numbers)
def test_both_parts_are_read_as_they_were_written_whatever_happens_to_the_low_bits(x):
    for part in split(x):
        assert np.array_equal(tf32(part), part, equal_nan=True)


@given(numbers)
def test_the_parts_of_a_finite_number_add_up_to_it(x):
    if not np.isfinite(x):
        return
    hi, lo = split(x)
    error = abs(float(hi[0]) + float(lo[0]) - float(x))
    bound = 2.0**-23 if abs(float(x)) < 3.4026e38 else 2.0**-22  # the largest are cut, not rounded
    assert np.isfinite(hi[0])
    assert error <= max(bound * abs(float(x)), STEP / 2)
    if SMALLEST_EXACT <= abs(float(x)) < 3.4026e38:
        assert abs(float(lo[0])) <= 2.0**-11 * abs(float(x))


@pytest.mark.parametrize("x", [math.inf, -math.inf])
def test_an_infinity_is_its_own_high_part_and_has_no_low_one(x):
    hi, lo = split(x)
    assert hi[0] == x
    assert lo[0] == 0


def test_every_nan_stays_one_and_has_no_low_part():
    hi, lo = split(np.concatenate([signalling, np.array([np.nan], np.float32)]))
    assert np.isnan(hi).all()
    assert np.isnan(tf32(hi)).all()
    assert (lo == 0).all()


def similarity(q: np.ndarray, d: np.ndarray) -> float:
    """The kernel's three products, added without rounding, and its rule for small products that are not finite."""
    q_hi, q_lo, d_hi, d_lo = (part.astype(np.float64) for part in (*split(q), *split(d)))
    with np.errstate(all="ignore"):
        main = float(np.sum(q_hi * d_hi))
        cross = float(np.sum(q_lo * d_hi) + np.sum(q_hi * d_lo))
    return main + cross if abs(cross) < math.inf else main


scales = st.sampled_from([1.0, 1e-30, 1e-15, 1e15, 1e18])
pairs = st.integers(1, 64).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(-1, 1, width=32), min_size=n, max_size=n)] * 2, scales, scales)
)


@given(pairs)
def test_three_products_err_by_two_to_the_minus_21_of_the_terms_at_most(given_pair):
    q, d, q_scale, d_scale = given_pair
    q, d = (np.float32(x) * np.float32(scale) for x, scale in ((q, q_scale), (d, d_scale)))
    exact = float(np.dot(q.astype(np.float64), d.astype(np.float64)))
    terms = float(np.dot(abs(q).astype(np.float64), abs(d).astype(np.float64)))
    tiny = STEP / 2 * float(abs(q).astype(np.float64).sum() + abs(d).astype(np.float64).sum())
    assert abs(similarity(q, d) - exact) <= 1.01 * 2.0**-21 * terms + tiny


@pytest.mark.parametrize(
    ("q", "d", "expected"),
    [
        ([1.0, 2.0], [math.inf, 1.0], math.inf),  # the low part of 1 is 0, and 0 times infinity is no number
        ([1.0 + 2.0**-13, 2.0], [-math.inf, 1.0], -math.inf),
        ([1.0 - 2.0**-13, 2.0], [math.inf, 1.0], math.inf),  # a low part of the other sign
        ([0.0, 2.0], [math.inf, 1.0], math.nan),
        ([1.0, 1.0], [math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], [1.0, 1.0], math.nan),
    ],
)
def test_infinities_and_nans_come_out_as_ieee_arithmetic_has_them(q, d, expected):
    assert similarity(np.float32(q), np.float32(d)) == pytest.approx(expected, nan_ok=True)
