"""Document lengths of packed and masked cells: drawn from a named distribution, synthetic or that of a real collection.

Room: `backends`. May import: declare, `maxsim`. Real distributions are histograms of token counts, kept in
`lengths.json` beside this file; `python -m maxsim_bench.retrieve.length_statistics` counts them again.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np

from maxsim_bench.declare.lengths import Lognormal, Uniform, parse, too_long


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
    try:
        law = parse(name, histograms())
    except ValueError as error:
        raise LengthError(f"length_distribution = {name!r}, but {error}") from None
    beyond = too_long(law, Ld)
    if beyond is not None:
        raise LengthError(f"length_distribution = {name!r}, but {beyond}")
    random = np.random.default_rng(seed)
    if isinstance(law, Uniform):
        drawn = random.integers(law.low, law.high + 1, count)
    elif isinstance(law, Lognormal):
        low, high = (min(1, Ld), Ld) if law.low is None or law.high is None else (law.low, law.high)
        drawn = np.clip(random.lognormal(law.mu, law.sigma, count).astype(np.int64), low, high)
    else:
        histogram = histograms()[name]
        drawn = random.choice(histogram.lengths, count, p=histogram.counts / histogram.counts.sum())
    return np.minimum(drawn, Ld).astype(np.int32)
