"""One look for every figure: one column of a paper, colours that colour-blind readers tell apart, vector output.

Room: `report`. Of ours it imports `sheets` alone, for the widths of words. matplotlib is imported in the functions that
draw.

Every figure is as wide as a column and is meant to be shown at that size: no text is smaller than `TEXT` there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.report.sheets import width

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

COLUMN_INCHES = 240 / 72  # one column of the ACM format; the ACL's is 219 points, where 6.6 points become 6
TEXT, HEAD = 6.6, 7.0  # points: of ticks, legends and numbers; of titles and axes
ABREAST = 2  # panels side by side at most
PANEL_POINTS = 82.0  # across the axes of one of two panels abreast
ALONE_POINTS = 196.0  # across the axes of a panel alone
_TITLE_POINTS = 94.0  # a title may stand out on both sides of the axes of one of two panels
_LINE_POINTS = HEAD * 1.2
_LEAST_POINTS, _TICK_POINTS = 48.0, 9.0  # down the axes of a row at least, and from a tick to the next
_ROW_INCHES, _SINGLE_INCHES, _ALONE_INCHES = 1.12, 1.4, 1.6  # down a panel of several rows, of one row, alone
_PNG_DPI = 240  # 800 pixels across: no wider than the column of text of a README, so that none is scaled down
# Okabe & Ito (2008), "Color universal design": eight colours for every common colour vision; black is kept for bounds.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#B8A800", "#777777"
# Backend → colour and marker. Ours are blue, peers warm, what people run today grey and green. No marker is one that
# says why there is no number, and none is of strokes alone: those vanish on a line.
LOOKS: dict[str, tuple[str, str]] = {
    "fused": (BLUE, "o"),
    "fused_portable": (SKY, "o"),
    "flash_maxsim": (VERMILION, "s"),
    "lik": (ORANGE, "D"),
    "eager": (GREY, "^"),
    "eager_fp32": ("#444444", "v"),
    "eager_tf32": ("#AAAAAA", "<"),
    "eager_tf32_cast": ("#444444", ">"),
    "eager_pylate": (GREEN, "v"),
    "chunked": (GREEN, "*"),
    "compiled": (PURPLE, "p"),
    "compiled_graphs": ("#8A4F7D", "d"),
    "compiled_tf32": (YELLOW, ">"),
    "compiled_graphs_tf32": (GREEN, "d"),
    "reference": (YELLOW, "p"),
    "maxsim_cpu": (ORANGE, "h"),
    "fused_int8": (SKY, "p"),
    "fused_int8_doc": ("#003F66", "p"),
    "fused_int8_mixed": (GREEN, "p"),
    "fused_fp8": (PURPLE, "v"),
    "fused_fp8_doc": ("#8A4F7D", "v"),
    "flash_maxsim_int8": ("#8C3A00", "s"),
    "flash_maxsim_int8_mixed": ("#F0A57A", "s"),
    "lik_fp8": (YELLOW, "D"),
    "dequantise_eager": ("#444444", "^"),
    "search": (BLUE, "8"),
    "search_int8": (SKY, "D"),
    "search_int8_rescored": (GREEN, "^"),
    "read_streaming": (YELLOW, "v"),
    "read_persistent": ("#5E9C76", "<"),
    "empty_launch": ("#AAAAAA", "p"),
    "pipeline_fused": (BLUE, "o"),
    "pipeline_chunked": (GREEN, "*"),
    "pipeline_flash": (VERMILION, "s"),
    "train_fused": (BLUE, "o"),
    "train_lean": (SKY, "o"),
    "train_eager": (GREY, "^"),
    "train_eager_tf32": ("#AAAAAA", "<"),
    "train_checkpointed": (GREEN, "*"),
    "train_eager_max_tf32": ("#777777", ">"),
    "train_checkpointed_max": ("#5E9C76", "d"),
    "train_flash_maxsim": (VERMILION, "s"),
    "train_lik": (ORANGE, "D"),
    "train_lik_lowmem": (YELLOW, "v"),
    "train_csr": ("#003F66", "o"),
    "train_csr_sort": (PURPLE, "o"),
    "train_atomic": ("#8A4F7D", "p"),
    "train_recompute": ("#4C9F70", "p"),
    "train_stage": (SKY, "D"),
    "train_flash_csr": ("#8C3A00", "s"),
    "train_flash_atomic": ("#F0A57A", "s"),
    "ddp_conventional": (GREY, "^"),
    "ddp_tiled": (BLUE, "o"),
    "ddp_sharded": (SKY, "o"),
    "ddp_flash_tiled": (VERMILION, "s"),
    "ddp_flash_sharded": ("#F0A57A", "s"),
    "full_step_fused": (BLUE, "o"),
    "full_step_eager": (GREY, "^"),
    "full_step_flash": (VERMILION, "s"),
}
_SPARE_COLOURS = (PURPLE, GREEN, YELLOW, "#003F66", "#8C3A00")
_SPARE_MARKERS = ("h", "p", "8", "d", ">")
_BYTES = (("GB", 1e-9), ("MB", 1e-6), ("kB", 1e-3))
_WHITE_EDGED = "osD^v"  # an edge eats most of others at this size
_SIZES = {"*": 1.4, "d": 1.2}  # of markers that cover less than others of their width
LINE_STYLES = ("-", "--", ":", "-.")  # one a card, where a figure shows several
# Status → marker of what gave no number.
FAILURE_MARKERS = {"oom": "x", "skipped": "+", "timeout": "1", "crash": "2", "error": "3", "incorrect": "4"}

_RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": HEAD,
    "axes.titlesize": HEAD,
    "axes.titlepad": 3.0,
    "axes.labelsize": HEAD,
    "axes.labelpad": 1.5,
    "figure.labelsize": HEAD,
    "xtick.labelsize": TEXT,
    "ytick.labelsize": TEXT,
    "xtick.major.pad": 1.5,
    "ytick.major.pad": 1.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.minor.size": 1.2,
    "ytick.minor.size": 1.2,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.fontsize": TEXT,
    "legend.labelspacing": 0.25,
    "legend.handletextpad": 0.5,
    "legend.borderpad": 0.2,
    "legend.borderaxespad": 0.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.4,
    "lines.linewidth": 0.9,
    "lines.markersize": 3.0,
    "legend.frameon": False,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "svg.hashsalt": "maxsim-bench",
    "figure.dpi": 100,
}


def look(backend: str) -> tuple[str, str]:
    """Colour and marker; a backend that the table does not know gets a steady one by its name."""
    if backend in LOOKS:
        return LOOKS[backend]
    place = sum(backend.encode())
    return _SPARE_COLOURS[place % len(_SPARE_COLOURS)], _SPARE_MARKERS[place // 7 % len(_SPARE_MARKERS)]


def marked(colour: str, marker: str, size: float = 3.0) -> dict[str, Any]:
    """How a marker is drawn: white parts it from its line where that leaves enough of it, others have no other edge."""
    white = marker in _WHITE_EDGED
    return {
        "marker": marker,
        "markersize": size * _SIZES.get(marker, 1.0),
        "markeredgecolor": "white" if white else colour,
        "markeredgewidth": 0.3 if white else 0.5,
    }


def across(panels: int, abreast: int = ABREAST) -> int:
    """Panels side by side."""
    return min(panels, abreast)


def title(text: str, wide: int) -> str:
    """The title of one of so many panels abreast, broken where its panel ends: between axes, or after an axis's "="."""
    room = ALONE_POINTS if wide == 1 else _TITLE_POINTS
    lines = [""]
    for part in text.split(", "):
        pieces = [part]
        for sign in (";", " ="):  # an axis that is too long for a line is broken inside
            pieces = [p for piece in pieces for p in (_after(sign, piece) if width(piece, HEAD) > room else [piece])]
        for i, piece in enumerate(pieces):
            glue = "" if not lines[-1] else ", " if i == 0 else "" if pieces[i - 1].endswith(";") else " "
            if not lines[-1] or width(lines[-1] + glue + piece, HEAD) <= room:
                lines[-1] += glue + piece
            else:
                lines[-1] += glue.rstrip()
                lines.append(piece)
    return "\n".join(lines)


def _after(sign: str, text: str) -> list[str]:
    """The parts of a text, each but the last with the sign at its end."""
    first, *rest = text.split(sign)
    pieces = [first]
    for part in rest:
        pieces[-1] += sign
        pieces.append(part.strip())
    return pieces


def grid(
    panels: int, *, height: float | None = None, titles: Sequence[str] = (), strip: float = 0.0, abreast: int = ABREAST
) -> tuple[Drawing, list[Any]]:
    """A figure of a column's width with so many axes, at most two abreast.

    Args:
        height: inches down a panel with a title of one line.
        titles: of the panels, broken here; rows with longer ones become taller, their axes do not become shorter.
        strip: points above each panel for what stands there (`above`).
        abreast: 1 where a panel takes the whole width.
    """
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    wide = across(panels, abreast)
    down = -(-panels // wide)
    broken = [title(text, wide) for text in titles]
    rows = [broken[row * wide : (row + 1) * wide] for row in range(down)]
    height = height or (_ALONE_INCHES if panels == 1 else _SINGLE_INCHES if down == 1 else _ROW_INCHES)
    lines = sum(max((text.count("\n") for text in row), default=0) for row in rows)
    extra = lines * _LINE_POINTS + down * strip
    with matplotlib.rc_context(_RC):
        drawing = Drawing(figsize=(COLUMN_INCHES, height * down + extra / 72), layout="constrained")
        engine: Any = drawing.get_layout_engine()
        engine.set(w_pad=2 / 72, h_pad=2 / 72, wspace=0.02, hspace=0.02)
        axes = drawing.subplots(down, wide, squeeze=False).flatten().tolist()
        for ax, text in zip(axes, broken, strict=False):
            ax.set_title(text)
    for spare in axes[panels:]:
        spare.remove()
    return drawing, axes[:panels]


def labels(drawing: Drawing, axes: Sequence[Any], x: str, y: str) -> None:
    """Names of the axes: that of y once for all panels, that of x below the lowest panel of each column."""
    if len(axes) == 1:
        axes[0].set_ylabel(y)
    else:
        drawing.supylabel(y, gid=_SHARED)
        _centre(drawing, 0.0)
    for ax in axes[-axes[0].get_gridspec().ncols :]:
        ax.set_xlabel(x)


_SHARED = "shared y"


def _centre(drawing: Drawing, below: float) -> None:
    """Put the shared label of y beside the middle of the panels, `below` points of something else under them."""
    height = 72 * drawing.get_figheight()
    for text in drawing.texts:
        if text.get_gid() == _SHARED:
            middle = ((below + 3 * _LINE_POINTS) + (height - _LINE_POINTS)) / 2
            half = width(text.get_text(), HEAD) / 2 + 3  # a long one beside a single row of panels reaches lower
            text.set_y(max(min(middle, height - half), half) / height)


def above(ax: Any, points: float) -> Any:
    """Transform of what stands so many points above the upper edge of a panel: x in data, y 1."""
    from matplotlib.transforms import ScaledTranslation

    edge = ax.get_xaxis_transform()
    return edge + ScaledTranslation(0, points / 72, ax.figure.dpi_scale_trans)


def rc() -> Any:
    """Context in which figures are drawn and saved."""
    import matplotlib

    return matplotlib.rc_context(_RC)


def plain(value: float) -> str:
    """A tick without superscripts, which would be smaller than `TEXT`: 0.001, 20, 5000, 10K, 1e-5."""
    if value and not 1e-4 < abs(value) < 1e7:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if abs(value) >= 1e4:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}K"
    return f"{value:g}"


def in_bytes(value: float, per_unit: float) -> str:
    """A tick in the unit that suits it: 200 B, 1 kB, 50 MB, 2 GB; `per_unit` is bytes of one of the axis."""
    size = value * per_unit
    unit, factor = next(((u, f) for u, f in _BYTES if abs(size) * f >= 0.999), ("B", 1.0))
    return f"{size * factor:.3g} {unit}" if size else "0"


def log_ticks(ax: Any, low: float, high: float, word: Callable[[float], str] = plain) -> None:
    """A logarithmic y axis with plain numbers, or words: decades, or 1, 2 and 5 of each, or more, so that two fit."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ax.set_yscale("log")
    seen = ax.get_ylim()  # error bars and bounds reach beyond the points
    low, high = min(low, seen[0]), max(high, seen[1])

    def within(*parts: float) -> list[float]:
        decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        return [p * 10.0**e for e in decades for p in parts if low <= p * 10.0**e <= high]

    def apart(one: float, other: float) -> bool:
        return abs(math.log(other / one)) / math.log(high / low) * _LEAST_POINTS >= _TICK_POINTS

    def thinned(*parts: float) -> list[float]:
        """What is a tick's distance from those before it; the parts come first that matter most."""
        kept: list[float] = []
        for part in parts:
            kept += [tick for tick in within(part) if all(apart(tick, other) for other in kept)]
        return sorted(kept)

    ticks = within(1.0)
    between = thinned(1.0, 2.0, 5.0)
    if len(ticks) < 2 or (len(ticks) < 3 and between == sorted(within(1.0, 2.0, 5.0))):
        ticks = between  # beside two decades all of them, or the steps would be uneven
    if len(ticks) < 2:
        ticks = thinned(1.0, 2.0, 5.0, 3.0, 1.5, 4.0, 7.0)
    if len(ticks) < 2:
        return  # less than a step apart: matplotlib's own
    step = -(-len(ticks) // 6)
    ax.yaxis.set_major_locator(FixedLocator(ticks[(len(ticks) - 1) % step :: step]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: word(value)))
    ax.yaxis.set_minor_formatter(NullFormatter())


def zero_log_ticks(ax: Any, low: float, high: float) -> None:
    """A logarithmic y axis with 0 below its lowest decade: for differences, some of them nothing."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    ax.set_yscale("symlog", linthresh=10.0**first, linscale=0.7)
    step = -(-(last - first) // 4)
    ax.yaxis.set_major_locator(FixedLocator([0.0, *(10.0**e for e in range(first, last + 1, step))]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    ax.set_ylim(-0.25 * 10.0**first, 10.0**last * 1.3)


def linear_ticks(axis: Any, most: int = 4, word: Callable[[float], str] = plain) -> None:
    """At most so many intervals between ticks of a linear axis, at round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: word(round(value, 9))))


def legend(drawing: Drawing, handles: list[Any], labels: list[str]) -> None:
    """One legend for all panels, below them, in as many columns as fit; the figure grows by it, the axes stay."""
    if not handles:
        return
    for columns in range(min(len(labels), 5), 0, -1):
        made = drawing.legend(
            handles, labels, loc="outside lower center", ncols=columns, handlelength=1.8, columnspacing=0.9
        )
        size = made.get_window_extent()
        if columns == 1 or size.width <= drawing.bbox.width - 4:
            break
        made.remove()
    points = 72 * size.height / drawing.dpi + 2
    drawing.set_figheight(drawing.get_figheight() + points / 72)
    _centre(drawing, points)


def save(drawing: Drawing, path: Path, *, title: str, data_hash: str) -> list[Path]:
    """Write `path`.pdf (vector) and `path`.png; both carry the hash of what is plotted, and neither a date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pdf, png = path.with_suffix(".pdf"), path.with_suffix(".png")
    with rc():
        engine = drawing.get_layout_engine()
        if engine is not None:  # the layout, once for both files: it costs as much as all the drawing
            engine.execute(drawing)
            drawing.set_layout_engine(None)
        drawing.savefig(pdf, metadata={"Title": title, "Keywords": f"data sha256:{data_hash}", "CreationDate": None})
        drawing.savefig(
            png, dpi=_PNG_DPI, metadata={"Title": title, "Comment": f"data sha256:{data_hash}", "Software": None}
        )
    return [pdf, png]
