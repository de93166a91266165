"""How far rankings move from the FP32 reference: differences with intervals and the limit, and query by query.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure, in_order
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

INT8_LIMIT = 3e-3  # of |ΔnDCG@10| for documents of INT8 codes: what `maxsim-bench fidelity` holds them to
LIMIT = 5e-4  # of |ΔnDCG@10| for an exact scorer: the paper's claim, and the default of `maxsim-bench fidelity`
_COLUMNS = (
    ("ndcg_at_10", "nDCG@10"), ("ndcg_at_10_reference", "reference"), ("delta", "Δ"), ("delta_low", "Δ low"),
    ("delta_high", "Δ high"), ("ndcg_at_5", "nDCG@5"), ("recall_at_10", "R@10"), ("recall_at_100", "R@100"),
    ("mrr_at_10", "MRR@10"), ("topk_overlap", "overlap@10"), ("topk_overlap_20", "overlap@20"),
    ("topk_overlap_100", "overlap@100"), ("spearman", "Spearman"), ("max_abs_err", "max error"),
)  # fmt: skip
_WHOLE = (("queries", "queries"), ("queries_moved", "moved"), ("ties_across_cut", "ties across the cut"))


def fidelity_rows(results: Results) -> pd.DataFrame:
    """Rows of rankings, with `collection`: data set, split where it is not the test split, bf16 where it is that."""
    frame = results.frame[results.frame["op"] == "fidelity"].copy()
    split = frame["split"].where(~frame["split"].isin(("test", None)) & frame["split"].notna(), "")
    rounded = frame["dtype"].where(frame["dtype"] == "bf16", "")  # fp16 embeddings are a GPU's rule, fp32 a processor's
    parts = frame["dataset"].fillna("?") + " " + split + " " + rounded
    frame["collection"] = parts.str.split().str.join(" ")
    return frame


@element
def fidelity_table(results: Results) -> Iterator[Table]:
    """One line a data set, encoder and backend."""
    frame = fidelity_rows(results)
    if frame.empty:
        return
    frame = frame.sort_values(["collection", "encoder", "device", "backend"], kind="stable")
    columns = [
        Column("collection", "data set", right=False),
        Column("encoder", "encoder", right=False),
        Column("device", "GPU", names.card, right=False),
        Column("backend", "backend", names.backend, right=False),
        *(Column(key, header, _score) for key, header in _COLUMNS if frame[key].notna().any()),
        *(Column(key, header, _whole) for key, header in _WHOLE if frame[key].notna().any()),
        Column("status", "status", right=False),
    ]
    columns = [c for c in columns if c.key != "status" or (frame["status"] != "ok").any()]
    yield Table(
        "fidelity/fidelity", "Retrieval quality of every scorer on the same embeddings", columns, frame,
        tuple(sorted(set(frame["source"]))),
        "Δ: nDCG@10 minus that of the FP32 reference, with a paired bootstrap interval over queries.",
    )  # fmt: skip


def _score(value: Any) -> str:
    if value is None or pd.isna(value):
        return ""
    return f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def _whole(value: Any) -> str:
    return "" if value is None or pd.isna(value) else str(int(value))


@element
def fidelity_difference(results: Results) -> Iterator[Figure]:
    """ΔnDCG@10 for each data set, with its interval and the limit."""
    frame = fidelity_rows(results)
    frame = frame[frame["delta"].notna() & (frame["backend"] != "reference")]
    if frame.empty:
        return
    data = frame[["collection", "encoder", "backend", "device", "delta", "delta_low", "delta_high"]]
    data = data.sort_values(["collection", "encoder", "backend", "device"], kind="stable").reset_index(drop=True)
    yield Figure(
        "fidelity/difference", "Difference of nDCG@10 from the FP32 reference", data, draw_difference,
        tuple(sorted(set(frame["source"]))),
        f"Paired bootstrap intervals over queries; shaded: within ±{LIMIT:g}, the limit claimed for exact scorers; "
        f"dashed: ±{INT8_LIMIT:g}, this project's for documents of INT8 codes; nothing else has one. The axis is "
        f"linear up to the former and logarithmic beyond.{_at_zero(data)}",
    )  # fmt: skip


def _moving(data: pd.DataFrame) -> pd.Series:
    """Whether the scorer of a row moves anything anywhere: those that do not are named and not drawn."""
    moved = (data[["delta", "delta_low", "delta_high"]].fillna(0.0) != 0.0).any(axis=1)
    return moved.groupby([data["backend"], data["device"]]).transform("any")


def _at_zero(data: pd.DataFrame) -> str:
    """A sentence for the caption that names the scorers at 0 wherever they were measured."""
    still = data[~_moving(data)]
    if still.empty:
        return ""
    several = data["device"].nunique() > 1
    found = still.drop_duplicates(["backend", "device"])
    pairs = sorted(zip(found["device"], found["backend"], strict=True), key=lambda p: (p[0] == "cpu", p))
    cards = list(dict.fromkeys(device for device, _ in pairs))
    told = [
        (f"on {names.card(card)}: " if several else "are: ")
        + "; ".join(names.backend(b) for b in in_order([b for d, b in pairs if d == card], list(style.LOOKS)))
        for card in cards
    ]
    return f" At 0 on every data set that they were measured on, and so not drawn, {', and '.join(told)}."


def draw_difference(data: pd.DataFrame) -> Drawing:
    """A band a data set and in it a line for each scorer that moves something anywhere, in two panels if they are many.

    A band without such a scorer says that all of it is at 0.
    """
    drawn = data[_moving(data)]
    bands = list(dict.fromkeys(zip(data["collection"], data["encoder"], strict=True)))
    parts = {b: drawn[(drawn["collection"] == b[0]) & (drawn["encoder"] == b[1])] for b in bands}
    lines = [_LABEL_LINES + max(len(parts[b]), 1) + _BAND_GAP for b in bands]
    panels = 2 if sum(lines) > _MOST_LINES else 1
    split = len(bands) if panels == 1 else int(np.argmin(np.abs(np.cumsum(lines) - sum(lines) / 2))) + 1
    columns = [bands[:split], bands[split:]][:panels]
    tall = max(sum(lines[:split]), sum(lines[split:]))
    several = drawn["device"].nunique() > 1
    drawing, axes = style.grid(panels, height=(25 + _LINE_POINTS * tall) / 72)
    with style.rc():
        for ax, column in zip(axes, columns, strict=True):
            ax.axvspan(-1000 * LIMIT, 1000 * LIMIT, color="#E8F0F8", zorder=0)
            ax.axvline(0, color="black", linewidth=0.5, zorder=1)
            for side in (-1000, 1000):
                ax.axvline(side * INT8_LIMIT, color="black", linewidth=0.5, linestyle=(0, (4, 3)), zorder=1)
            top = 0.0
            for band in column:
                label = f"{band[0]} ({band[1]})" if data["encoder"].nunique() > 1 else str(band[0])
                if not len(parts[band]):
                    _word(ax, "all at 0", ("data", "data"), (0, top + _LABEL_LINES))
                _word(ax, label, ("axes fraction", "data"), (0, top + _LABEL_LINES / 2 - 0.5))
                top += _LABEL_LINES
                for _, row in parts[band].iterrows():
                    _interval(ax, row, top, several)
                    top += 1
                top += _BAND_GAP + (0 if len(parts[band]) else 1)
                ax.axhline(top - 0.5 - _BAND_GAP / 2, color="#DDDDDD", linewidth=0.4, zorder=0)
            ax.set_ylim(tall - 0.5, -0.7)
            _limit_axis(ax, data)
        style.labels(drawing, axes, "ΔnDCG@10 × 1000", "")
        found: dict[str, Any] = {}
        for ax in axes:
            found |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        style.legend(drawing, list(found.values()), list(found))
    return drawing


# In lines of a band, each so many points high: what its name takes, and what is below it.
_LINE_POINTS, _LABEL_LINES, _BAND_GAP = 4.6, 2.0, 0.6
_MOST_LINES = 40  # of one panel; more go into two


def _word(ax: Any, text: str, coordinates: tuple[str, str], at: tuple[float, float]) -> None:
    """A word in a band; the layout leaves no room for it, the panel is wide enough."""
    word = ax.annotate(
        text, at, xycoords=coordinates, xytext=(1.5, 0), textcoords="offset points", va="center", fontsize=style.TEXT,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.3},
    )  # fmt: skip
    word.set_in_layout(False)


def _interval(ax: Any, row: pd.Series, y: float, several: bool) -> None:
    """One difference with its interval, in thousandths."""
    colour, marker = style.look(str(row["backend"]))
    device = f", {names.card(str(row['device']))}" if several else ""
    low, high = (row["delta"] if pd.isna(row[k]) else row[k] for k in ("delta_low", "delta_high"))
    ax.errorbar(
        1000 * row["delta"], y, color=colour, marker=marker, linestyle="none", capsize=1, elinewidth=0.7,
        xerr=[[1000 * max(row["delta"] - low, 0.0)], [1000 * max(high - row["delta"], 0.0)]], capthick=0.6,
        markersize=2.8, label=names.backend(str(row["backend"])) + device,
    )  # fmt: skip


def _limit_axis(ax: Any, data: pd.DataFrame) -> None:
    """Linear to the limit, logarithmic beyond, with ticks there: the limit and ten, a hundred times it."""
    from matplotlib.ticker import FixedLocator

    limit = 1000 * LIMIT
    furthest = 1000 * float(np.nanmax(np.abs(data[["delta", "delta_low", "delta_high"]].to_numpy())))
    reach = max(12 * limit, 1.3 * furthest)
    ax.set_xscale("symlog", linthresh=limit)
    ax.set_xlim(-reach, reach)
    tens = [limit * 10.0**e for e in range(math.floor(math.log10(reach / limit)) + 1)]
    ticks = [*(-t for t in reversed(tens)), 0.0, *tens]
    ax.set_xticks(ticks, [style.plain(t).replace("-", "−") for t in ticks])
    between = [s * t * k for s in (-1, 1) for t in tens for k in range(2, 10) if t * k <= reach]
    ax.xaxis.set_minor_locator(FixedLocator(between))
    ax.set_yticks([])
    ax.spines.left.set_visible(False)


@element
def query_by_query(results: Results) -> Iterator[Figure]:
    """nDCG@10 of each query against the reference's, where per-query values were kept; `panel` is the data set.

    Queries at one point are one line with their number: which they are, the files beside the rows say.
    """
    frame = fidelity_rows(results)
    several = frame.groupby("collection")["encoder"].transform("nunique") > 1
    titles = frame["collection"].where(~several, frame["collection"] + "\n" + frame["encoder"].astype(str))
    panels = dict(zip(frame["cell_hash"], titles, strict=True))
    parts, sources, seen = [], set(), set()
    for row in results.rows:
        if row.cell.op != "fidelity" or row.cell.hash() in seen:
            continue
        seen.add(row.cell.hash())
        kept = results.per_query(row)
        if kept is None:
            continue
        sources.add(kept[0])
        queries = kept[1].set_index("query")
        for backend in queries.columns.drop("reference"):
            part = pd.DataFrame({"x": queries["reference"], "y": queries["reference"] + queries[backend].fillna(0.0)})
            parts.append(part.assign(panel=panels[row.cell.hash()], backend=backend))
    if parts:
        points = pd.concat(parts, ignore_index=True).groupby(["panel", "backend", "x", "y"], sort=False)
        data = points.size().reset_index(name="queries")
        moved = int(data.loc[data["x"] != data["y"], "queries"].sum())
        yield Figure(
            "fidelity/queries", "Queries whose nDCG@10 moved from the FP32 reference, by scorer", data, draw_queries,
            tuple(sorted(sources)),
            f"A point is a query that a scorer moved, a larger one several; {moved} of {data['queries'].sum()} pairs "
            f"of a query and a scorer did.{_none_moved(data)}",
        )  # fmt: skip


def _none_moved(data: pd.DataFrame) -> str:
    still = sorted(set(data["backend"]) - set(data.loc[data["x"] != data["y"], "backend"]))
    told = "; ".join(names.backend(b) for b in in_order(still, list(style.LOOKS)))
    return f" Moved none: {told}." if still else ""


_FAMILY_LOOKS = (
    (style.BLUE, "o"), (style.VERMILION, "s"), (style.GREEN, "^"), (style.PURPLE, "D"), (style.ORANGE, "v"),
    (style.SKY, "P"), (style.GREY, "X"), (style.YELLOW, "h"),
)  # fmt: skip


def draw_queries(data: pd.DataFrame) -> Drawing:
    """A row a scorer, in it a lane a data set, and along them how far a query moved: no scorer hides another."""
    moved = data[data["x"] != data["y"]]
    scorers = in_order(moved["backend"], list(style.LOOKS))
    family = data["panel"].str.split().str[0]
    families = sorted(set(family))
    lanes = {name: (i + 0.5) / len(families) - 0.5 for i, name in enumerate(families)}
    drawing, (ax,) = style.grid(1, height=(24 + max(27.0, 4.0 * len(families)) * max(len(scorers), 1)) / 72)
    labels = []
    with style.rc():
        ax.axvline(0, color="black", linewidth=0.5, zorder=1)
        for place, scorer in enumerate(scorers):
            part = moved[moved["backend"] == scorer]
            for i, name in enumerate(families):
                here = part[family[part.index] == name]
                points = (here["y"] - here["x"]).round(6)
                several = here.groupby(points)["queries"].sum()
                colour, marker = _FAMILY_LOOKS[i % len(_FAMILY_LOOKS)]
                ax.scatter(
                    several.index, np.full(len(several), place + 0.84 * lanes[name]), s=5 * np.sqrt(several),
                    color=colour, marker=marker, alpha=0.75, linewidths=0,
                )  # fmt: skip
            total = int(data.loc[data["backend"] == scorer, "queries"].sum())
            labels.append(f"{names.backend(scorer).replace(', ', chr(10))}\n{int(part['queries'].sum())} of {total}")
        for edge in range(1, len(scorers)):
            ax.axhline(edge - 0.5, color="#DDDDDD", linewidth=0.4, zorder=0)
        reach = 1.08 * max((moved["y"] - moved["x"]).abs().max() if len(moved) else 0.0, 0.01)
        ax.set_xlim(-reach, reach)
        ax.set_ylim(max(len(scorers), 1) - 0.5, -0.5)
        ax.set_yticks(range(len(scorers)), labels)
        ax.grid(visible=False, axis="y")
        style.linear_ticks(ax.xaxis, 6)
        style.labels(drawing, [ax], "change of a query's nDCG@10", "")
        style.legend(drawing, [_family_handle(i) for i in range(len(families))], families)
    return drawing


def _family_handle(place: int) -> Any:
    from matplotlib.lines import Line2D

    colour, marker = _FAMILY_LOOKS[place % len(_FAMILY_LOOKS)]
    return Line2D([], [], linestyle="none", color=colour, marker=marker)
