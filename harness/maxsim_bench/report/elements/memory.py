"""Memory against corpus size under caps, and what a chunk size costs and gains.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.axes import MOST_PANELS
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure, Lines, draw_lines, marks_told
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
        f"Inputs and peak extra memory of one call; {_constant(frame)}. The dashed line is the cap.{marks_told(data)}",
        "fig:scaling",
    )


def draw_footprint(data: pd.DataFrame) -> Drawing:
    """Lines as everywhere, and the cap of each panel, which no mark reaches."""
    drawing = draw_lines(data, Lines(names.AXIS_LABELS["B"], "inputs + peak extra [GB]", y_log=True))
    for ax, panel in zip(drawing.axes, dict.fromkeys(data["panel"]), strict=True):
        caps = data.loc[data["panel"] == panel, "cap"].dropna().unique()
        for cap in caps:
            ax.axhline(cap, color="black", linewidth=0.7, linestyle=(0, (4, 3)), zorder=0)
    return drawing


def _constant(frame: pd.DataFrame) -> str:
    """What all cells of the figure have in common."""
    axes = [a for a in ("Nq", "B", "Lq", "Ld", "d", "dtype") if frame[a].nunique(dropna=False) == 1]
    return names.described({a: frame[a].iloc[0] for a in axes if pd.notna(frame[a].iloc[0])})


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
        refused = rows.loc[rows["status"].isin(("unsupported", "error", "crash")), "B"]  # which says nothing of memory
        lines.append(
            {
                "device": device, "memory_cap": cap, "backend": backend,
                "largest": fits.max(), "first_oom": failed.min(), "first_refused": refused.min(),
            }
        )  # fmt: skip
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("memory_cap", "cap", lambda c: names.axis_value("memory_cap", c)),
        Column("backend", "backend", names.backend, right=False),
        Column("largest", "largest B that fits", lambda v: "" if pd.isna(v) else names.count(v)),
        Column("first_oom", "smallest B that does not", lambda v: "none tried" if pd.isna(v) else names.count(v)),
        Column("first_refused", "smallest B that it cannot score", lambda v: "" if pd.isna(v) else names.count(v)),
    ]
    yield Table(
        "memory_scaling/largest", "Largest corpus that fits", columns, pd.DataFrame(lines),
        tuple(sorted(set(frame["source"]))), "Among the corpus sizes of the grid; Lq = Ld = 1024. Cannot "
        "score: whatever memory there is; the rows say why.", "tab:mem",
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
    chunks = data.groupby("panel", sort=False)["chunk"].nunique()
    curves = list(chunks.index[chunks > 1])[:MOST_PANELS]  # one chunk is no curve: its cell is in the table
    data = data[data["panel"].isin(curves)]
    if data.empty:
        return
    left = f" {len(curves)} of {len(chunks)} cells are shown; the table has all." if len(chunks) > len(curves) else ""
    yield Figure(
        "frontier_chunked/frontier",
        "Chunked scoring: latency against memory",
        data.reset_index(drop=True),
        draw_frontier,
        tuple(sorted(set(frame["source"]))),
        "A point is a chunk size, its number beside it where there is room; the open one is auto, which picks it from "
        f"free memory. Lower left is better. {_constant(frame)}.{left}",
        "tab:chunked_sweep",
    )


def draw_frontier(data: pd.DataFrame) -> Drawing:
    """Scatter with the chunk sizes as labels, chunked points joined in the order of chunk."""
    panels = list(dict.fromkeys(data["panel"]))
    devices = list(dict.fromkeys(data["device"]))
    drawing, axes = style.grid(len(panels), titles=panels, height=1.35)
    handles: dict[str, Any] = {}
    with style.rc():
        for ax, panel in zip(axes, panels, strict=True):
            part = data[data["panel"] == panel]
            for (backend, device), points in part.groupby(["backend", "device"], sort=False):
                colour, marker = style.look(str(backend))
                joined = points[points["chunk"].fillna(1) > 0].sort_values("chunk")
                dash = style.LINE_STYLES[devices.index(device) % 4] if backend == "chunked" else "none"
                label = names.backend(str(backend)) + (f", {names.card(str(device))}" if len(devices) > 1 else "")
                (line,) = ax.plot(joined["x"], joined["y"], color=colour, marker=marker, linestyle=dash, markersize=3.6)
                handles.setdefault(label, line)
                auto = points[points["chunk"] == 0]
                if len(auto):
                    (open_,) = ax.plot(
                        auto["x"], auto["y"], color=colour, marker=marker, linestyle="none", markerfacecolor="none",
                        markersize=5.5, zorder=3,
                    )  # fmt: skip
                    handles.setdefault(f"{label}, auto", open_)
            ax.set_xscale("log")
            style.log_ticks(ax, part["y"].min(), part["y"].max())
            _byte_ticks(ax, part["x"].min(), part["x"].max())
            ax.margins(0.16, 0.18)
        style.labels(drawing, axes, "peak extra memory", "latency [ms]")
        style.legend(drawing, list(handles.values()), list(handles))
        drawing.draw_without_rendering()  # the layout: whether numbers touch is known after it
        for ax, panel in zip(axes, panels, strict=True):
            _number_chunks(ax, data[data["panel"] == panel])
    return drawing


def _byte_ticks(ax: Any, low: float, high: float) -> None:
    """Ticks of an axis in GB with their own unit, a factor of a thousand apart or less: 1 kB, 1 MB, 1 GB."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = 1 if last - first < 3 else 2 if last - first < 5 else 3
    places = [e for e in range(first, last + 1) if e % step == 0]
    ax.xaxis.set_major_locator(FixedLocator([10.0**e for e in places]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda gb, _: _bytes(gb)))


def _bytes(gb: float) -> str:
    unit, factor = next(((u, f) for u, f in (("GB", 1.0), ("MB", 1e3), ("kB", 1e6)) if gb * f >= 0.999), ("B", 1e9))
    return f"{gb * factor:.3g} {unit}"


def _number_chunks(ax: Any, part: pd.DataFrame) -> None:
    """The size of each chunk beside its point, where it touches neither a point nor another number.

    The smallest and the largest come first: where there is room for few, those name the ends of the curve.
    """
    from matplotlib.transforms import Bbox

    points = ax.transData.transform(part[["x", "y"]].to_numpy(dtype=float))
    scale = ax.figure.dpi / 72
    taken = [Bbox.from_extents(x - 2.2 * scale, y - 2.2 * scale, x + 2.2 * scale, y + 2.2 * scale) for x, y in points]
    chunks = part[part["chunk"] > 0].sort_values("chunk")
    curve = ax.transData.transform(chunks[["x", "y"]].to_numpy(dtype=float))
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):  # its line too, in boxes of no width
        steps = np.linspace(0, 1, 24)
        taken += [
            Bbox.from_extents(x, y, x + 0.1, y + 0.1)
            for x, y in zip(x0 + steps * (x1 - x0), y0 + steps * (y1 - y0), strict=True)
        ]
    order = [*chunks.index[:1], *chunks.index[-1:], *chunks.index[1:-1]]
    for index in dict.fromkeys(order):
        point = chunks.loc[index]
        for offset, ha, va in (((0, 3.5), "center", "bottom"), ((0, -3.5), "center", "top"), ((3, 2), "left", "bottom"),
                               ((-3, -2), "right", "top"), ((3.5, 0), "left", "center")):  # fmt: skip
            text = ax.annotate(
                names.count(point["chunk"]), (point["x"], point["y"]), xytext=offset, textcoords="offset points",
                fontsize=style.TEXT, ha=ha, va=va,
            )  # fmt: skip
            box = text.get_window_extent()
            inside = ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 + 4 and ax.bbox.y0 <= box.y0 and box.y1 <= ax.bbox.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()
