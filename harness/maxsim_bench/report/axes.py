"""Which axes of an experiment vary, and which rows a figure over one of them shows.

Room: `report`. May import: declare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from maxsim_bench.declare.experiment import variant_parts
from maxsim_bench.report import names

NUMERIC_AXES = ("B", "Nq", "Lq", "Ld", "d", "k")
MOST_PANELS = 6
# What a figure shows where an experiment has several; the tables have all of them.
PREFERRED = {"timing_policy": ("cold_l2", "clean_l2", "host", "warm_l2", "graph"), "dtype": ("fp16", "bf16", "fp32")}
REFERENCE_CHUNK = 1024.0


def varying(frame: pd.DataFrame, among: Sequence[str] = names.AXES) -> list[str]:
    """Axes with more than one value (unused counts as one), in the order of `names.AXES`."""
    return [axis for axis in among if frame[axis].nunique(dropna=False) > 1]


def slice_for_figures(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """One element type, one timing policy and one chunk, and words for a caption on what was chosen.

    The element type is the one most backends measured (fp16 before bf16 before fp32 where that is equal).
    """
    told = []
    for axis, order in PREFERRED.items():
        present = frame[axis].dropna().unique()
        if len(present) > 1:
            backends = frame[frame["status"] == "ok"].groupby(axis)["backend"].nunique()
            best = max(present, key=lambda v: (backends.get(v, 0) if axis == "dtype" else 0, -_place(v, order)))
            frame = frame[frame[axis] == best]
        if len(present):
            chosen_value = str(frame[axis].dropna().iloc[0])
            told.append(names.POLICIES.get(chosen_value, chosen_value))
    if frame["chunk"].nunique(dropna=False) > 1:
        chunks = frame["chunk"].dropna()
        chosen = REFERENCE_CHUNK if (chunks == REFERENCE_CHUNK).any() else chunks.max()
        frame = frame[frame["chunk"].isna() | (frame["chunk"] == chosen)]
        told.append(f"chunk {names.count(chosen)}")
    return frame, ", ".join(told)


def _place(value: Any, order: Sequence[str]) -> int:
    return order.index(value) if value in order else len(order)


def panels(frame: pd.DataFrame, axis: str) -> tuple[pd.DataFrame, pd.Series, str]:
    """Rows of at most six settings of the other axes, the panel each row belongs to, and what was left out in words.

    Settings with the most points on the axis come first; of equals, evenly spaced ones. A setting with a single point
    has no line and is left to the table.
    """
    others = [a for a in varying(frame) if a != axis]
    keys = frame[others].astype(object).where(frame[others].notna(), None).apply(tuple, axis=1) if others else None
    if keys is None:
        return frame, pd.Series("", index=frame.index), ""
    points = frame[axis].groupby(keys).nunique()
    usable = points[points > 1]
    if usable.empty:
        return frame[:0], pd.Series("", index=frame.index[:0]), ""
    best = sorted(usable[usable == usable.max()].index, key=_sortable)
    fewer = sorted(usable[usable < usable.max()].index, key=lambda key: (-usable[key], _sortable(key)))
    chosen = _spread(best, MOST_PANELS) + fewer[: max(0, MOST_PANELS - len(best))]
    chosen.sort(key=_sortable)
    shown = frame[keys.isin(chosen)]
    titles, shared = _titles(others, chosen)
    panel = keys[shown.index].map(titles)
    order = pd.Categorical(panel, categories=list(dict.fromkeys(titles.values())), ordered=True)
    left = (
        f" {len(chosen)} of {len(points)} settings are shown; the table has all." if len(points) > len(chosen) else ""
    )
    return shown, pd.Series(order, index=shown.index), shared + left


def _titles(others: Sequence[str], chosen: Sequence[tuple[Any, ...]]) -> tuple[dict[tuple[Any, ...], str], str]:
    """The title of each setting, and for the caption what parts of a variant they have in common."""
    differing = [i for i in range(len(others)) if len({key[i] for key in chosen}) > 1]
    given = {key: {others[i]: key[i] for i in differing} for key in chosen}
    shared: dict[str, Any] = {}
    titled = given
    if "variant" in (others[i] for i in differing):
        variants = {key: variant_parts(axes["variant"]) for key, axes in given.items()}
        every = list(dict.fromkeys(part for variant in variants.values() for part in variant))
        shared = {p: variants[chosen[0]].get(p) for p in every if len({v.get(p) for v in variants.values()}) == 1}
        titled = {
            key: {**axes, "variant": {p: variants[key].get(p) for p in every if variants[key] and p not in shared}}
            for key, axes in given.items()
        }
    titles = {key: names.settings(axes) for key, axes in titled.items()}
    if len(set(titles.values())) < len(titles):  # the short words hide what tells two apart
        titles = {key: names.described({a: v for a, v in axes.items() if v is not None}) for key, axes in given.items()}
    return titles, f" All panels: {names.settings({'variant': shared})}." if shared else ""


def _spread(keys: list[Any], most: int) -> list[Any]:
    if len(keys) <= most:
        return list(keys)
    return [keys[i] for i in np.linspace(0, len(keys) - 1, most).round().astype(int)]


def _sortable(key: tuple[Any, ...]) -> tuple[tuple[int, float, str], ...]:
    return tuple(
        (1, float(v), "") if isinstance(v, (int, float)) else (0 if v is None else 2, 0.0, str(v)) for v in key
    )
