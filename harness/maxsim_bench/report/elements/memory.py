"""Memory against corpus size under caps, and what a chunk size costs and gains.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure, Lines, draw_lines
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# The caps that the figures call 40 and 80 GB (docs/measurement.md).
CAP_NAMES = {42_400_000_000: "40 GB card", 85_000_000_000: "80 GB card"}


@element
def memory_scaling(results: Results) -> Iterator[Figure]:
    """Resident inputs and what a call needs beyond them, over the corpus size, a panel for each cap."""
    frame = results.experiment("memory_scaling").frame
    if frame.empty:
        return
    cap = frame["memory_cap"].map(
        lambda c: "whole card" if pd.isna(c) else CAP_NAMES.get(int(c), f"{c / 1e9:g} GB cap")
    )
    data = pd.DataFrame(
        {
            "panel": cap, "backend": frame["backend"], "device": frame["device"], "x": frame["B"],
            "y": (frame["input_bytes"] + frame["peak_extra_bytes"]) / 1e9, "low": float("nan"), "high": float("nan"),
            "mark": frame["status"].where(frame["status"] != "ok", ""), "cap": frame["memory_cap"] / 1e9,
        }
    )  # fmt: skip
    data = data[(data["mark"] != "") | data["y"].notna()].sort_values(["panel", "backend", "device", "x"])
    yield Figure(
        "memory_scaling/footprint",
        "Memory against corpus size until it no longer fits",
        data.reset_index(drop=True),
        draw_footprint,
        tuple(sorted(set(frame["source"]))),
        "Inputs and peak extra memory of one call, Lq = Ld = 1024, d = 128. The dashed line is the cap; a mark at the "
        "upper edge is a corpus that did not fit.",
        "fig:scaling",
    )


def draw_footprint(data: pd.DataFrame) -> Drawing:
    """Lines as everywhere, and the cap of each panel."""
    drawing = draw_lines(data, Lines(names.AXIS_LABELS["B"], "inputs + peak extra [GB]", y_log=True))
    for ax, panel in zip(drawing.axes, dict.fromkeys(data["panel"]), strict=True):
        caps = data.loc[data["panel"] == panel, "cap"].dropna().unique()
        for cap in caps:
            ax.axhline(cap, color="black", linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)
    return drawing


@element
def largest_corpus(results: Results) -> Iterator[Table]:
    """How many documents each backend could score under each cap, and the first corpus that did not fit."""
    frame = results.experiment("memory_scaling").frame
    if frame.empty:
        return
    lines = []
    for (device, cap, backend), rows in frame.groupby(["device", "memory_cap", "backend"], dropna=False, sort=True):
        fits = rows.loc[rows["status"] == "ok", "B"]
        failed = rows.loc[rows["status"].isin(("oom", "skipped")), "B"]
        lines.append(
            {"device": device, "memory_cap": cap, "backend": backend, "largest": fits.max(), "first_oom": failed.min()}
        )
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("memory_cap", "cap", lambda c: names.axis_value("memory_cap", c)),
        Column("backend", "backend", names.backend, right=False),
        Column("largest", "largest B that fits", lambda v: "" if pd.isna(v) else names.count(v)),
        Column("first_oom", "smallest B that does not", lambda v: "none tried" if pd.isna(v) else names.count(v)),
    ]
    yield Table(
        "memory_scaling/largest", "Largest corpus that fits", columns, pd.DataFrame(lines),
        tuple(sorted(set(frame["source"]))), "Among the corpus sizes of the grid; Lq = Ld = 1024.", "tab:mem",
    )  # fmt: skip


@element
def chunk_frontier(results: Results) -> Iterator[Figure]:
    """Latency against memory, a point a chunk size, a panel for each shape and corpus."""
    frame = results.experiment("frontier_chunked").frame
    frame = frame[(frame["status"] == "ok") & frame["peak_extra_bytes"].notna()]
    if frame.empty:
        return
    # A backend without a chunk is measured in several cells of a corpus; that with the largest chunk stands for it.
    place = [frame[axis] for axis in ("device", "B", "Lq", "Ld", "backend")]
    frame = frame[(frame["backend"] == "chunked") | (frame["chunk"] == frame["chunk"].groupby(place).transform("max"))]
    data = pd.DataFrame(
        {
            "panel": [names.described({"Lq": q, "Ld": d, "B": b}) for q, d, b in frame[["Lq", "Ld", "B"]].to_numpy()],
            "backend": frame["backend"], "device": frame["device"], "x": frame["peak_extra_bytes"] / 1e9,
            "y": frame["latency_ms"], "low": frame["latency_p20_ms"], "high": frame["latency_p80_ms"], "mark": "",
            "chunk": frame["chunk"].where(frame["backend"] == "chunked"), "B": frame["B"], "Lq": frame["Lq"],
        }
    )  # fmt: skip
    data = data.sort_values(["Lq", "B", "device", "backend", "x"], kind="stable").drop(columns=["B", "Lq"])
    yield Figure(
        "frontier_chunked/frontier",
        "Chunked scoring: latency against memory",
        data.reset_index(drop=True),
        draw_frontier,
        tuple(sorted(set(frame["source"]))),
        "A point is a chunk size (its number beside it; auto picks itself from free memory). The fastest chunk and the "
        "leanest are different points. Lower left is better.",
        "tab:chunked_sweep",
    )


def draw_frontier(data: pd.DataFrame) -> Drawing:
    """Scatter with the chunk sizes as labels, chunked points joined in the order of chunk."""
    panels = list(dict.fromkeys(data["panel"]))[:6]
    devices = list(dict.fromkeys(data["device"]))
    drawing, axes = style.grid(len(panels), height=2.1)
    handles: dict[str, Any] = {}
    with style.rc():
        for ax, panel in zip(axes, panels, strict=True):
            part = data[data["panel"] == panel]
            for (backend, device), points in part.groupby(["backend", "device"], sort=False):
                colour, marker = style.look(str(backend))
                joined = points[points["chunk"].fillna(1) > 0].sort_values("chunk")
                dash = style.LINE_STYLES[devices.index(device) % 4] if backend == "chunked" else "none"
                label = names.backend(str(backend)) + (f", {names.card(str(device))}" if len(devices) > 1 else "")
                (line,) = ax.plot(joined["x"], joined["y"], color=colour, marker=marker, linestyle=dash, markersize=4)
                handles.setdefault(label, line)
                auto = points[points["chunk"] == 0]
                ax.plot(auto["x"], auto["y"], color=colour, marker=marker, linestyle="none", markerfacecolor="white")
                for i, point in enumerate(points[points["chunk"].notna()].itertuples()):
                    # every second label below its point: large chunks lie close together
                    text, below = ("auto", -14) if point.chunk == 0 else (names.count(point.chunk), (4, -8)[i % 2])
                    ax.annotate(
                        text, (point.x, point.y), xytext=(0, below), textcoords="offset points", fontsize=5.5,
                        ha="center",
                    )  # fmt: skip
            ax.set_xscale("log")
            style.log_ticks(ax, part["y"].min(), part["y"].max())
            ax.margins(0.12)
            ax.set_title(panel)
            ax.set_xlabel("peak extra memory [GB]")
        for first in range(0, len(axes), style.across(len(axes))):
            axes[first].set_ylabel("latency [ms]")
        style.legend(drawing, list(handles.values()), list(handles))
    return drawing
