"""What a figure is, and the one that most of the report is made of: lines over an axis, a panel for each other setting.

Room: `report`. Imports nothing of other rooms. A figure is data (a table of what is plotted, hashed) and a function
that draws it; checks compare the data, never the bytes of a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from maxsim_bench.report import names, style
from maxsim_bench.report.compare.statistics import FEWEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Columns of the data behind a figure of lines: one line a point; `mark` is the status of what gave no number, `cell`
# leads to the row.
LINE_COLUMNS = ("panel", "backend", "device", "x", "y", "low", "high", "mark", "cell")
_EDGE = 0.06  # of a panel's width, between its first or last point and its side
_LABEL_GAP = 3.0  # points between two labels below an axis
_MARK_POINTS, _MARK_ROW = 3.4, 4.6  # of a mark that says why there is no number, and between two rows of them
_LEAST_RATIOS = (0.9, 1.1)  # seen on an axis of ratios: noise of a per cent or two would fill a narrower one
_UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3}  # bytes of one
_ONE_UNIT = 1000.0  # the ratio of the largest to the smallest up to which one unit serves all ticks
# What the words of marks mean, for captions.
WHY = {
    "oom": "OOM: out of memory",
    "skipped": "skipped: a smaller cell had run out of memory",
    "unsupported": "n/a: the backend does not take the cell",
    "timeout": "timeout: took too long",
    "crash": "crash: its process died",
    "error": "error: it raised one",
    "incorrect": "incorrect: its result was wrong",
}


@dataclass(frozen=True)
class Figure:
    """A figure of an element.

    Attributes:
        name: path below the output folder, without suffix ("forward/latency-over-B").
        title, caption: plain text; the caption says what error bars and marks are.
        data: exactly what is plotted, unrounded.
        draw: data → matplotlib figure.
        sources: CSVs that it follows from.
        element: label of the paper's element that it answers, if one.
    """

    name: str
    title: str
    data: pd.DataFrame
    draw: Callable[[pd.DataFrame], Drawing]
    sources: tuple[str, ...]
    caption: str = ""
    element: str | None = None

    def csv(self) -> str:
        """What is plotted, unrounded."""
        return str(self.data.to_csv(index=False, lineterminator="\n"))

    def data_hash(self) -> str:
        """SHA-256 of the plotted data, the title and the caption."""
        return hashlib.sha256(f"{self.title}\x1f{self.caption}\x1e{self.csv()}".encode()).hexdigest()


@dataclass(frozen=True)
class Lines:
    """How a figure of lines is drawn.

    Attributes:
        unit_line: a horizontal bound such as 1 × or 100 %; with 1 it is an axis of ratios.
        x_log: whether an axis that spans a factor of four is logarithmic; steps of a run are not.
        log_from: the ratio of the largest to the smallest y from which a panel's y is logarithmic, if `y_log`.
        y_zero: whether 0 stands on the logarithmic axis of y too, below its smallest other value.
    """

    x_label: str
    y_label: str
    y_log: bool
    unit_line: float | None = None
    x_log: bool = True
    log_from: float = 3.0
    y_zero: bool = False


def draw_lines(data: pd.DataFrame, lines: Lines) -> Drawing:
    """Panels of lines with p20 to p80 as error bars, a colour and marker a backend, a line style a card.

    What ran out of memory (or failed otherwise) stands above the upper edge of its panel, at its place on the axis, in
    the colour of its backend: never a gap, and never where a number could be.
    """
    panels = list(dict.fromkeys(data["panel"]))
    devices = list(dict.fromkeys(data["device"]))
    rows = data[data["mark"] != ""].groupby("panel")["backend"].nunique()
    strip = _MARK_ROW * int(rows.max()) + 1 if len(rows) else 0.0
    y_label, word = _words(data["y"], lines)
    drawing, axes = style.grid(len(panels), titles=[str(panel) for panel in panels], strip=strip)
    handles: dict[str, Any] = {}  # backends; cards and marks come after them
    marks: dict[str, Any] = {}
    with style.rc():
        for ax, panel in zip(axes, panels, strict=True):
            part = data[data["panel"] == panel]
            for backend, device, points, hidden in _series(part):
                dash = style.LINE_STYLES[devices.index(device) % len(style.LINE_STYLES)]
                _line(ax, points, backend, dash, hidden)
                handles[names.backend(backend)] = _handle(*style.look(backend))
            _scales(ax, part, lines, style.ALONE_POINTS if len(panels) == 1 else style.PANEL_POINTS, word)
            marks |= _failures(ax, part)
        style.labels(drawing, axes, lines.x_label, y_label)
        if len(devices) > 1:
            marks |= {names.card(device): _card_handle(i) for i, device in enumerate(devices)}
        labels = [*in_order(handles, [names.backend(b) for b in style.LOOKS]), *marks]
        style.legend(drawing, [(handles | marks)[label] for label in labels], labels)
    return drawing


def _words(y: pd.Series, lines: Lines) -> tuple[str, Callable[[float], str]]:
    """The label of y and how its ticks are written: bytes over more than a thousandfold each in the unit that suits."""
    above = y[y > 0]
    label, _, unit = lines.y_label.rstrip("]").rpartition(" [")
    if unit not in _UNITS or above.empty or above.max() / above.min() <= _ONE_UNIT:
        return lines.y_label, style.plain
    return label, partial(style.in_bytes, per_unit=_UNITS[unit])


def _series(part: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame, int]]:
    """Backend, card, points and how many later lines lie on this one; ours last, so that they are on top."""
    order = in_order(part["backend"], list(style.LOOKS))[::-1]
    groups = [
        (str(backend), str(device), points.sort_values("x"))
        for (backend, device), points in part.groupby(["backend", "device"], sort=False)
    ]
    groups.sort(key=lambda group: order.index(group[0]))
    for i, (backend, device, points) in enumerate(groups):
        hidden = sum(_coincide(points, later) for _, _, later in groups[i + 1 :])
        yield backend, device, points, hidden


def _coincide(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two lines share every point within 1 %: the lower one is then drawn wider to be seen."""
    both = one.merge(other, on="x")[["y_x", "y_y"]].dropna()
    return len(both) > 0 and bool(np.allclose(both["y_x"], both["y_y"], rtol=0.01, atol=0))


def _line(ax: Any, points: pd.DataFrame, backend: str, dash: str, hidden: int) -> None:
    colour, marker = style.look(backend)
    good = points[points["y"].notna()]
    y = good["y"].to_numpy()
    error = np.vstack([y - good["low"].fillna(good["y"]), good["high"].fillna(good["y"]) - y]).clip(min=0)
    open_ = _open(good)
    ax.errorbar(
        good["x"], np.where(open_, np.nan, y), yerr=_bars(error), color=colour, linestyle=dash, capsize=1.2,
        elinewidth=0.5, capthick=0.5, linewidth=0.9 + 1.0 * min(hidden, 3),
        **style.marked(colour, marker, 3.0 + 1.4 * min(hidden, 3)),
    )  # fmt: skip
    if open_.any():
        ax.plot(
            good["x"][open_], y[open_], color=colour, linestyle="none", gid="open",
            **{**style.marked(colour, marker), "markerfacecolor": "none", "markeredgecolor": colour,
               "markeredgewidth": 0.6},
        )  # fmt: skip


def _open(data: pd.DataFrame) -> np.ndarray:
    """Which points are drawn open and unjoined; only a figure that has some has the column."""
    return data["open"].to_numpy(dtype=bool) if "open" in data else np.zeros(len(data), dtype=bool)


def _card_handle(place: int) -> Any:
    """A black line in the style of a card: colours are the backends'."""
    from matplotlib.lines import Line2D

    styles: Any = style.LINE_STYLES
    return Line2D([], [], color="black", linestyle=styles[place % len(styles)])


def _handle(colour: str, marker: str) -> Any:
    """A legend entry of normal width, whatever the line's own."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, **style.marked(colour, marker))


def _bars(error: np.ndarray) -> np.ndarray | None:
    """The error bars, or None where all have no length: bars of nothing are caps on nothing."""
    return error if error.size and (error > 0).any() else None


def _apart(x: np.ndarray, *, log: bool, room: float) -> list[float]:
    """The smallest and the largest of sorted values, and those between whose labels do not touch on `room` points."""
    if len(x) < 2:
        return list(x)
    places = np.log(x) if log else x
    at = room * (1 - 2 * _EDGE) * (places - places[0]) / (places[-1] - places[0])
    half = [style.width(names.count(value), style.TEXT) / 2 for value in x]

    def clear(i: int, j: int) -> bool:
        return bool(at[j] - at[i] >= half[i] + half[j] + _LABEL_GAP)

    last = len(x) - 1
    kept = [0]
    for i in range(1, last):
        if clear(kept[-1], i) and clear(i, last):
            kept.append(i)
    return [float(x[i]) for i in [*kept, last]]


def _scales(ax: Any, part: pd.DataFrame, lines: Lines, room: float, word: Callable[[float], str]) -> None:
    x = np.unique(part["x"].to_numpy(dtype=float))
    if lines.x_log and len(x) > 1 and x[0] > 0 and x[-1] / x[0] >= 4:
        ax.set_xscale("log")
        ax.minorticks_off()
    if len(x) > 1:
        ax.set_xlim(_margin(x[0], x[-1], ax.get_xscale()))
    if lines.x_log:
        ticks = _apart(x, log=ax.get_xscale() == "log", room=room)
        ax.set_xticks(ticks, [names.count(value) for value in ticks])
    else:  # steps: round numbers, not where the points happen to lie
        style.linear_ticks(ax.xaxis, 3)
    if lines.unit_line is not None:
        ax.axhline(lines.unit_line, color="black", linewidth=0.6, linestyle=(0, (4, 3)), zorder=0)
    _y_scale(ax, part["y"].dropna(), lines, word)


def _y_scale(ax: Any, y: pd.Series, lines: Lines, word: Callable[[float], str]) -> None:
    above = y[y > 0]
    if lines.y_zero and len(above):
        style.zero_log_ticks(ax, above.min(), above.max())
    elif lines.y_log and len(y) and (y > 0).all() and y.max() / y.min() >= lines.log_from:
        style.log_ticks(ax, y.min(), y.max(), word)
    else:
        style.linear_ticks(ax.yaxis, word=word)  # a narrow range on a log axis would show no tick
        if len(y) and (not lines.y_log or lines.log_from > 3):
            ax.set_ylim(bottom=0)
        elif len(y) and lines.unit_line == 1:
            low, high = ax.get_ylim()
            ax.set_ylim(min(low, _LEAST_RATIOS[0]), max(high, _LEAST_RATIOS[1]))


def _margin(low: float, high: float, scale: str) -> tuple[float, float]:
    if scale == "log":
        edge = (high / low) ** (_EDGE / (1 - 2 * _EDGE))
        return low / edge, high * edge
    edge = _EDGE / (1 - 2 * _EDGE) * (high - low)
    return low - edge, high + edge


def _failures(ax: Any, part: pd.DataFrame) -> dict[str, Any]:
    """Marks above the upper edge, a row for each backend so that they do not cover each other."""
    failed = part[part["mark"] != ""]
    if failed.empty:
        return {}
    handles: dict[str, Any] = {}
    level = {name: i for i, name in enumerate(in_order(failed["backend"], list(style.LOOKS)))}
    ax.spines.top.set_visible(True)
    ax.spines.top.set_color("#BBBBBB")
    ax.set_title(ax.get_title(), pad=_MARK_ROW * len(level) + 4)
    for (backend, status), points in failed.groupby(["backend", "mark"], sort=False):
        ax.plot(
            points["x"], np.ones(len(points)), transform=style.above(ax, _MARK_ROW * (level[str(backend)] + 0.7)),
            linestyle="none", color=style.look(str(backend))[0], gid="mark",
            marker=style.FAILURE_MARKERS.get(str(status), "|"), markersize=_MARK_POINTS, markeredgewidth=0.9,
            clip_on=False,
        )  # fmt: skip
        handles.setdefault(names.STATUS_WORDS.get(str(status), str(status)), _mark_handle(str(status)))
    return handles


def _mark_handle(status: str) -> Any:
    from matplotlib.lines import Line2D

    marker = style.FAILURE_MARKERS.get(status, "|")
    return Line2D([], [], linestyle="none", color="black", marker=marker, markersize=_MARK_POINTS)


def marks_told(data: pd.DataFrame) -> str:
    """Sentences for a caption on the marks and the open points of a figure of lines, "" where it has none."""
    words = [WHY.get(mark, str(mark)) for mark in dict.fromkeys(data["mark"]) if mark]
    told = f" Marks above a panel: no number ({'; '.join(words)})." if words else ""
    if _open(data).any():
        told += f" Open points, not joined: fewer than {FEWEST} rounds, so no interval."
    return told


def line_data(frame: pd.DataFrame, metric: names.Metric, axis: str, panel: pd.Series) -> pd.DataFrame:
    """`LINE_COLUMNS` of the rows: latency with p20 and p80, a speed-up with its interval, others without bars.

    A baseline's speed-up over itself is left out: the line at 1 says it. "unsupported" rows are left out where their
    backend has no number in the panel (it claims nothing there); where it has one they say why its line ends, as every
    other status does. Speed-ups without an interval are marked `open`, a column that others lack. A backend with one
    point in a panel of several has no line there and is left to the table.
    """
    bounds = {"latency_ms": ("latency_p20_ms", "latency_p80_ms"), "speedup": ("speedup_low", "speedup_high")}
    low, high = bounds.get(metric.column, (metric.column, metric.column))
    told = (frame["samples"] >= FEWEST) | (metric.column != "speedup")
    data = pd.DataFrame(
        {
            "panel": panel,
            "backend": frame["backend"],
            "device": frame["device"],
            "x": frame[axis],
            "y": frame[metric.column] * metric.factor,
            "low": frame[low].where(told) * metric.factor,
            "high": frame[high].where(told) * metric.factor,
            "mark": frame["status"].where(frame["status"] != "ok", ""),
            "cell": frame["cell_hash"],
        },
        columns=list(LINE_COLUMNS),
    )
    line = ["panel", "backend", "device"]
    claimed = data["y"].notna().groupby([data[key] for key in line], observed=True).transform("any")
    kept = (claimed | (data["mark"] != "unsupported")) & data["x"].notna() & (data["y"].notna() | (data["mark"] != ""))
    if metric.column == "speedup":
        kept &= (frame["backend"] != frame["speedup_baseline"]) | (data["mark"] != "")
    data = data[kept].sort_values(["panel", "backend", "device", "x"], kind="stable").reset_index(drop=True)
    if data.empty:
        return data
    points = data.groupby(line, observed=True)["x"].transform("nunique")
    several = data.groupby("panel", observed=True)["x"].transform("nunique") > 1
    data = data[(points > 1) | ~several].reset_index(drop=True)
    open_ = data["y"].notna() & data["low"].isna() & (metric.column == "speedup")
    return data.assign(open=open_) if open_.any() else data


def in_order(values: Iterable[str], order: Sequence[str]) -> list[str]:
    """Values in a given order, unknown ones last by name."""
    place: dict[str, int] = {}
    for i, name in enumerate(order):
        place.setdefault(name, i)
    return sorted(set(values), key=lambda v: (place.get(v, len(place)), v))
