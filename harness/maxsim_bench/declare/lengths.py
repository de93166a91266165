"""Names of length distributions: what "uniform:20:512" and "lognormal:4.6:0.7:10:512" say, and what no name may say.

Room: `declare`. Imports nothing else of ours. `backends/lengths.py` draws from them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches

LENGTHS = "length_distribution"  # the axis
FORMS = {"uniform": "uniform:LOW:HIGH", "lognormal": "lognormal:MU:SIGMA or lognormal:MU:SIGMA:LOW:HIGH"}


@dataclass(frozen=True)
class Uniform:
    """Every whole number of tokens in low..high, both included, equally often."""

    low: int
    high: int


@dataclass(frozen=True)
class Lognormal:
    """exp of a normal variable, rounded down and clamped to low..high tokens; None: to 1..Ld."""

    mu: float
    sigma: float
    low: int | None = None
    high: int | None = None


def parse(name: str, collections: Collection[str] | None = None) -> Uniform | Lognormal | None:
    """What a name says; None for the name of a collection, whose documents have the lengths.

    Args:
        name: "uniform:20:512", "lognormal:4.6:0.7", "scifact".
        collections: names of those whose lengths are known (None: any word may be one).

    Raises:
        ValueError: what is wrong with the name and what to write, as it goes on after "length_distribution = ..., but".
    """
    kind, *numbers = name.split(":")
    if kind == "uniform":
        return _uniform(numbers)
    if kind == "lognormal":
        return _lognormal(numbers)
    if (numbers or not name) if collections is None else name not in collections:
        raise ValueError(_unknown(kind, collections or ()))
    return None


def too_long(law: Uniform | Lognormal | None, Ld: int) -> str | None:
    """What is wrong with uniform lengths where documents hold Ld tokens; None for all that is cut there."""
    if not isinstance(law, Uniform) or law.high <= Ld:
        return None
    return f"HIGH = {law.high} exceeds Ld = {Ld}. Lower it, or raise Ld"


def _uniform(numbers: list[str]) -> Uniform:
    try:
        low, high = (int(x) for x in numbers)
        if 0 <= low <= high:
            return Uniform(low, high)
    except ValueError:
        pass
    raise ValueError(f"it is not {FORMS['uniform']} with whole numbers, 0 <= LOW <= HIGH")


def _lognormal(numbers: list[str]) -> Lognormal:
    try:
        mu, sigma = (float(x) for x in numbers[:2])
        law = Lognormal(mu, sigma)
        if numbers[2:]:
            low, high = (int(x) for x in numbers[2:])
            law = Lognormal(mu, sigma, low, high)
        if math.isfinite(mu) and 0 <= sigma < math.inf and 0 <= (law.low or 0) <= (law.high or 0):
            return law
    except ValueError:
        pass
    raise ValueError(f"it is not {FORMS['lognormal']} with finite MU, SIGMA >= 0 and whole 0 <= LOW <= HIGH")


def _unknown(kind: str, collections: Collection[str]) -> str:
    near = get_close_matches(kind, [*collections, *FORMS], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = f": {', '.join(sorted(collections))}" if collections else ""
    return f"there is no such distribution.{hint} Write {', '.join(FORMS.values())}, or the name of a collection{known}"
