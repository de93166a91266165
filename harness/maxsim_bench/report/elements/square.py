"""The square of lengths as heat maps: how close ours comes to the card, and how far it is ahead of the best other.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.axes import slice_for_figures
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.load import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

OURS = "fused"


@element
def square_of_lengths(results: Results) -> Iterator[Figure]:
    """For each card two figures over Lq × Ld, a panel for each B."""
    for device, rows in results.experiment("lengths").frame.groupby("device", sort=True):
        shown, chosen = slice_for_figures(rows)
        ours = shown[(shown["backend"] == OURS) & (shown["status"] == "ok")].set_index("cell_hash")
        if ours.empty:
            continue
        others = shown[(shown["backend"] != OURS) & (shown["status"] == "ok")]
        best = others.groupby("cell_hash")["latency_ms"].min()
        sources = tuple(sorted(set(shown["source"])))
        for key, title, values, centre in (
            ("ceiling", "Share of the binding ceiling [%], ours", ours["percent_of_ceiling"], None),
            ("ahead", "Best other implementation's time over ours", best / ours["latency_ms"], 1.0),
        ):
            data = ours[["B", "Lq", "Ld"]].assign(value=values).sort_values(["B", "Lq", "Ld"]).reset_index(drop=True)
            if data["value"].notna().any():
                yield Figure(
                    f"lengths/square-{key}-{device}", f"{title}: {names.card(str(device))}", data,
                    partial(draw_square, centre=centre), sources, f"{chosen[:1].upper()}{chosen[1:]}, d = 128.",
                )  # fmt: skip


def draw_square(data: pd.DataFrame, centre: float | None) -> Drawing:
    """Heat maps with the value in each cell; `centre` is where a value is neither good nor bad."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    sizes = sorted(data["B"].unique())
    drawing, axes = style.grid(len(sizes), height=2.2)
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
                text = "" if np.isnan(value) else names.number(value, 2)
                ax.text(j, i, text, ha="center", va="center", fontsize=5.5, color="white" if dark else "black")
            ax.set_xticks(range(len(wide.columns)), [names.count(v) for v in wide.columns])
            ax.set_yticks(range(len(wide.index)), [names.count(v) for v in wide.index])
            ax.grid(False)
            ax.set_title(f"B = {names.count(size)}")
            ax.set_xlabel(names.AXIS_LABELS["Ld"])
            ax.set_ylabel(names.AXIS_LABELS["Lq"])
    return drawing
