"""The square of lengths as heat maps: how close ours comes to the card, and how far it is ahead of the best other.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.axes import slice_for_figures
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.load import Results
from maxsim_bench.report.paired import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

OURS = "fused"
_MOST_COLUMNS = 4  # of one of two panels abreast: numbers of three digits touch where there are more


@element
def square_of_lengths(results: Results) -> Iterator[Figure]:
    """For each card two figures over Lq × Ld, a panel for each B."""
    for device, rows in results.experiment("lengths").frame.groupby("device", sort=True):
        shown, chosen = slice_for_figures(rows)
        ours = shown[(shown["backend"] == OURS) & (shown["status"] == "ok")].set_index("cell_hash")
        if ours.empty:
            continue
        best = _ahead(results, shown)
        sources = tuple(sorted(set(shown["source"])))
        constant = names.described({a: shown[a].iloc[0] for a in ("Nq", "d", "layout") if shown[a].nunique() == 1})
        for key, title, values, centre, words in (
            ("ceiling", "Share of the binding ceiling [%], ours", ours["percent_of_ceiling"], None, ""),
            ("ahead", "Best other implementation's time over ours", best["ratio"], 1.0, _how(best)),
        ):
            data = ours[["B", "Lq", "Ld"]].assign(value=values).sort_values(["B", "Lq", "Ld"]).reset_index(drop=True)
            if data["value"].notna().any():
                yield Figure(
                    f"lengths/square-{key}-{device}", f"{title}: {names.card(str(device))}", data,
                    partial(draw_square, centre=centre), sources, f"{words}{constant}; {chosen}.",
                )  # fmt: skip


def _ahead(results: Results, shown: pd.DataFrame) -> pd.DataFrame:
    """For each cell the `ratio` of the best other's time over ours, and whether it is `paired`.

    Paired is what the goal of the square asks: the median of ratios of rounds in which both took turns. Where a cell
    has no such rounds, medians are divided.
    """
    pairs = Pairs(results)
    ran = shown[shown["status"] == "ok"]
    at = {(row.cell.hash(), row.backend): row for row in results.rows}
    lines: dict[Any, dict[str, Any]] = {}
    for found, rows in ran.groupby("cell_hash", sort=False):
        cell = str(found)
        times = rows.set_index("backend")["latency_ms"].dropna()
        if OURS not in times or len(times) < 2:
            continue
        best = str(times.drop(OURS).idxmin())
        effect = pairs.ratio(at[cell, best], at[cell, OURS])
        lines[cell] = {
            "ratio": times[best] / times[OURS] if effect is None else effect.ratio, "paired": effect is not None,
        }  # fmt: skip
    return pd.DataFrame.from_dict(lines, orient="index", columns=["ratio", "paired"])


def _how(best: pd.DataFrame) -> str:
    """Which ratio the numbers are."""
    paired = int(best["paired"].sum())
    if paired == 0:
        return "Ratios of medians; above 1 ours is faster. "
    rest = "" if paired == len(best) else f"; in {len(best) - paired} of {len(best)} cells, without them, of medians"
    return f"Medians of paired ratios over the rounds that both were timed in{rest}; above 1 ours is faster. "


def draw_square(data: pd.DataFrame, centre: float | None) -> Drawing:
    """Heat maps with the value in each cell; `centre` is where a value is neither good nor bad."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    sizes = sorted(data["B"].unique())
    titles = [f"B = {names.count(size)}" for size in sizes]
    abreast = style.ABREAST if data["Ld"].nunique() <= _MOST_COLUMNS else 1
    drawing, axes = style.grid(len(sizes), titles=titles, height=1.25, abreast=abreast)
    found = data["value"].dropna()
    if centre is None:
        norm, colours = Normalize(0, 100), "cividis"
    else:
        norm = TwoSlopeNorm(centre, min(found.min(), 0.5 * centre), max(found.max(), 2 * centre))
        colours = "RdBu"
    with style.rc():
        for ax, size in zip(axes, sizes, strict=True):
            wide = data[data["B"] == size].pivot(index="Lq", columns="Ld", values="value")
            image = ax.imshow(wide.to_numpy(), norm=norm, cmap=colours, origin="lower", aspect="auto")
            for (i, j), value in np.ndenumerate(wide.to_numpy()):
                red, green, blue, _ = image.cmap(norm(value))
                dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
                text = "" if np.isnan(value) else names.number(value, 3)
                ax.text(j, i, text, ha="center", va="center", fontsize=style.TEXT, color="white" if dark else "black")
            ax.set_xticks(range(len(wide.columns)), [names.count(v) for v in wide.columns])
            ax.set_yticks(range(len(wide.index)), [names.count(v) for v in wide.index])
            ax.grid(False)
        style.labels(drawing, axes, names.AXIS_LABELS["Ld"], names.AXIS_LABELS["Lq"])
    return drawing
