"""Document lengths of packed and masked cells: drawn from a named distribution, synthetic or that of a real collection.

Room: `backends`. May import: declare, `maxsim`. Real distributions are histograms of token counts, kept in
`lengths.json` beside this file; `python -m maxsim_bench.retrieve.length_statistics` counts them again.
"""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np

SYNTHETIC = {
    "uniform": "uniform:LOW:HIGH",
    "lognormal": "lognormal:MU:SIGMA or lognormal:MU:SIGMA:LOW:HIGH",
}


class LengthError(ValueError):
    """A name that is no length distribution, or one that does not fit the cell."""


@dataclass(frozen=True)
class Histogram:
    """Token counts of the documents of a collection, before any truncation.

    Attributes:
        lengths: [n] int64, distinct and increasing; 0 where a collection has empty documents.
        counts: [n] int64, documents of that length.
        source: what was counted and how, in words.
    """

    lengths: np.ndarray
    counts: np.ndarray
    source: str

    @property
    def documents(self) -> int:
        """Number of documents counted."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean tokens a document."""
        return float((self.lengths * self.counts).sum() / self.counts.sum())


@functools.cache
def histograms() -> dict[str, Histogram]:
    """Collection name → histogram, as `lengths.json` holds them."""
    text = resources.files("maxsim_bench.backends").joinpath("lengths.json").read_text(encoding="utf-8")
    return {
        name: Histogram(np.array(entry["lengths"]), np.array(entry["counts"]), entry["source"])
        for name, entry in json.loads(text)["collections"].items()
    }


def draw_lengths(name: str, count: int, seed: int, Ld: int) -> np.ndarray:
    """Lengths of `count` documents.

    Args:
        name: a collection ("scifact": drawn with replacement from its documents), "uniform:LOW:HIGH" (both ends
            included) or "lognormal:MU:SIGMA[:LOW:HIGH]" (rounded down, clamped to LOW..HIGH, by default 1..Ld).
        count: how many.
        seed: the same seed gives the same lengths.
        Ld: the longest document of the cell. Collections and lognormal draws are cut there, as an encoder cuts.

    Returns:
        [count] int32 in 0..Ld; 0 only where the distribution itself holds empty documents.

    Raises:
        LengthError: for an unknown name, numbers that make no distribution, or a uniform that exceeds Ld.
    """
    random = np.random.default_rng(seed)
    kind, *numbers = name.split(":")
    if kind == "uniform":
        low, high = _bounds(name, numbers, Ld)
        drawn = random.integers(low, high + 1, count)
    elif kind == "lognormal":
        mu, sigma, low, high = _lognormal(name, numbers, Ld)
        drawn = np.clip(random.lognormal(mu, sigma, count).astype(np.int64), low, high)
    else:
        known = histograms()
        if name not in known:
            raise LengthError(_unknown(name))
        histogram = known[name]
        drawn = random.choice(histogram.lengths, count, p=histogram.counts / histogram.counts.sum())
    return np.minimum(drawn, Ld).astype(np.int32)


def _bounds(name: str, numbers: list[str], Ld: int) -> tuple[int, int]:
    try:
        low, high = (int(x) for x in numbers)
    except ValueError:
        raise LengthError(f"length_distribution = {name!r}: write {SYNTHETIC['uniform']} with whole numbers") from None
    if not 0 <= low <= high:
        raise LengthError(f"length_distribution = {name!r}: needs 0 <= LOW <= HIGH")
    if high > Ld:
        raise LengthError(f"length_distribution = {name!r}: HIGH = {high} exceeds Ld = {Ld}. Lower it, or raise Ld")
    return low, high


def _lognormal(name: str, numbers: list[str], Ld: int) -> tuple[float, float, int, int]:
    try:
        mu, sigma = float(numbers[0]), float(numbers[1])
        low, high = (int(x) for x in numbers[2:]) if len(numbers) > 2 else (min(1, Ld), Ld)
    except (ValueError, IndexError):
        raise LengthError(f"length_distribution = {name!r}: write {SYNTHETIC['lognormal']}") from None
    if not (sigma >= 0 and np.isfinite([mu, sigma]).all() and 0 <= low <= high):
        raise LengthError(f"length_distribution = {name!r}: needs finite MU, SIGMA >= 0 and 0 <= LOW <= HIGH")
    return mu, sigma, low, high


def _unknown(name: str) -> str:
    known = [*histograms(), *SYNTHETIC]
    near = difflib.get_close_matches(name.split(":")[0], known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"length_distribution = {name!r} is unknown.{hint} Known: {', '.join([*histograms(), *SYNTHETIC.values()])}"
