"""How far rankings move from the FP32 reference: differences with intervals and the limit, and query by query.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

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
        f"Paired bootstrap intervals over queries; shaded: within ±{LIMIT:g}, the claimed limit. The axis is linear up "
        "to the limit and logarithmic beyond. Scorers that move no query are counted at 0.",
    )  # fmt: skip


def draw_difference(data: pd.DataFrame) -> Drawing:
    """A band a data set: one line for all scorers that move nothing, one for each of the others."""
    bands = list(dict.fromkeys(zip(data["collection"], data["encoder"], strict=True)))
    still = (data[["delta", "delta_low", "delta_high"]].fillna(0.0) == 0.0).all(axis=1)
    shown: list[tuple[float, pd.Series]] = []
    ticks: list[float] = []
    quiet: list[tuple[float, int]] = []
    top = 0.0
    for band in bands:
        here = data[(data["collection"] == band[0]) & (data["encoder"] == band[1])]
        moved = here[~still[here.index]]
        count = len(here) - len(moved)
        if count:
            quiet.append((top, count))
        shown += [(top + bool(count) + i, row) for i, (_, row) in enumerate(moved.iterrows())]
        lines = len(moved) + bool(count)
        ticks.append(top + (lines - 1) / 2)
        top += lines + 0.8
    drawing, (ax,) = style.grid(1, height=0.9 + 0.13 * top)
    several = len(set(data["device"])) > 1
    with style.rc():
        ax.axvspan(-LIMIT, LIMIT, color="#E8F0F8", zorder=0)
        ax.axvline(0, color="black", linewidth=0.6)
        for y, count in quiet:
            ax.plot(0, y, marker="|", color="black", markersize=6)
            ax.annotate(f"{count} at 0", (0, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6)
        for y, row in shown:
            colour, marker = style.look(str(row["backend"]))
            device = f", {names.card(str(row['device']))}" if several else ""
            low, high = (row["delta"] if pd.isna(row[k]) else row[k] for k in ("delta_low", "delta_high"))
            ax.errorbar(
                row["delta"], y, xerr=[[max(row["delta"] - low, 0.0)], [max(high - row["delta"], 0.0)]], color=colour,
                marker=marker, linestyle="none", capsize=1.5, elinewidth=0.8,
                label=names.backend(str(row["backend"])) + device,
            )  # fmt: skip
        ax.set_xscale("symlog", linthresh=LIMIT)
        reach = max(2 * LIMIT, float(np.nanmax(np.abs(data[["delta", "delta_low", "delta_high"]].to_numpy()))) * 1.3)
        ax.set_xlim(-reach, reach)
        ax.set_xticks([-LIMIT, 0, LIMIT], [f"−{LIMIT:g}", "0", f"{LIMIT:g}"])
        ax.set_yticks(ticks, [f"{c} ({e})" if len({b[1] for b in bands}) > 1 else str(c) for c, e in bands])
        ax.set_ylim(top - 0.3, -0.8)
        ax.set_xlabel("ΔnDCG@10")
        handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        if handles:
            style.legend(drawing, list(handles.values()), list(handles))
    return drawing


@element
def query_by_query(results: Results) -> Iterator[Figure]:
    """nDCG@10 of each query against the reference's, a panel a data set and encoder, where per-query values were kept.

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
            "fidelity/queries", "nDCG@10 of each query against the FP32 reference", data, draw_queries,
            tuple(sorted(sources)),
            f"A point is a query, or several; {moved} of {data['queries'].sum()} lie off the diagonal.",
        )  # fmt: skip


def draw_queries(data: pd.DataFrame) -> Drawing:
    """Scatter on equal axes with the diagonal."""
    panels = list(dict.fromkeys(data["panel"]))
    drawing, axes = style.grid(len(panels), height=2.3)
    handles: dict[str, Any] = {}
    with style.rc():
        for ax, panel in zip(axes, panels, strict=True):
            ax.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=(0, (4, 3)))
            for backend, points in data[data["panel"] == panel].groupby("backend", sort=True):
                colour, marker = style.look(str(backend))
                dots = ax.scatter(points["x"], points["y"], s=9, color=colour, marker=marker, alpha=0.6, linewidths=0)
                handles.setdefault(names.backend(str(backend)), dots)
            ax.set_title(panel)
            ax.set_xlabel("reference nDCG@10")
            ax.set_aspect("equal")
        axes[0].set_ylabel("nDCG@10")
        style.legend(drawing, list(handles.values()), list(handles))
    return drawing
