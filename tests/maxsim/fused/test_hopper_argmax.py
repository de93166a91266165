"""How the Hopper forward finds a winner: its own `_winner`, run on a processor over arrays. No GPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from maxsim.fused import hopper_kernels

ROWS = 8
STEPS = ("_leaves", "_columns", "_half", "_first_greatest", "_max_nan")


@pytest.fixture(autouse=True)
def on_a_processor(monkeypatch) -> None:
    language = SimpleNamespace(
        reshape=lambda x, shape: x.reshape(shape),
        permute=lambda x, order: x.transpose(order),
        split=lambda x: (x[..., 0], x[..., 1]),
        where=np.where,
        maximum=lambda a, b, propagate_nan: np.maximum(a, b),  # numpy's keeps NaN
        static_range=range,
        constexpr=int,
    )
    monkeypatch.setattr(hopper_kernels, "gl", language)
    for name in STEPS:
        monkeypatch.setattr(hopper_kernels, name, getattr(hopper_kernels, name).fn)


def winner(s: np.ndarray, columns: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Maxima and winners [rows, 4] of s [rows, columns], whose columns are numbered from `first`."""
    i = np.broadcast_to(first + np.arange(columns, dtype=np.int32), s.shape)
    return hopper_kernels._winner.fn(s, i, len(s), columns)


def lanes(s: np.ndarray) -> np.ndarray:
    """[rows, 4, columns / 4]: what each of four lanes holds of a row, left to right."""
    return s.reshape(len(s), -1, 4, 2).transpose(0, 2, 1, 3).reshape(len(s), 4, -1)


def expected(s: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    numbers = lanes(np.broadcast_to(first + np.arange(s.shape[1]), s.shape))
    at = lanes(s).argmax(axis=2)[..., None]  # numpy's is the first of equals
    return lanes(s).max(axis=2), np.take_along_axis(numbers, at, 2)[..., 0]


@pytest.mark.parametrize(("columns", "first"), [(128, 0), (32, 0), (32, 96)])
@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), values=st.sampled_from([2, 3, 17, 100_000]), masked=st.floats(0, 1))
def test_the_first_of_the_greatest_wins(columns, first, seed, values, masked):
    random = np.random.default_rng(seed)
    s = (random.integers(0, values, (ROWS, columns)) - values // 2).astype(np.float32)
    s[random.random(s.shape) < masked] = -np.inf
    best, at = winner(s, columns, first)
    wanted, where = expected(s, first)
    np.testing.assert_array_equal(best, wanted)
    np.testing.assert_array_equal(at, where)


@pytest.mark.parametrize("columns", [128, 32])
def test_every_column_can_win(columns):
    s = np.where(np.eye(columns, dtype=bool), np.float32(1), np.float32(-1))
    best, at = winner(s, columns)
    assert (best.max(axis=1) == 1).all()
    np.testing.assert_array_equal(at[np.arange(columns), best.argmax(axis=1)], np.arange(columns))


@pytest.mark.parametrize("columns", [128, 32])
def test_nan_stays_in_the_maximum_and_the_winner_in_the_tile(columns):
    s = np.zeros((ROWS, columns), np.float32)
    s[:, 5] = np.nan
    best, at = winner(s, columns)
    assert np.isnan(best[:, 2]).all()  # column 5 is the third lane's
    assert ((at >= 0) & (at < columns)).all()
