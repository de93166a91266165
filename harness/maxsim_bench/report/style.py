"""One look for every figure: sizes of a two-column paper, colours that colour-blind readers tell apart, vector output.

Room: `report`. Imports nothing else of ours. matplotlib is imported in the functions that draw.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

COLUMN_INCHES = 3.35  # one column of the ACM and ACL formats
PAGE_INCHES = 7.0
_LEGEND_LINE_INCHES = 0.14
# Okabe & Ito (2008), "Color universal design": eight colours for every common colour vision; black is kept for bounds.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#B8A800", "#777777"
# Backend → colour and marker. Ours are blue, peers warm, what people run today grey and green.
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
    "chunked": (GREEN, "P"),
    "compiled": (PURPLE, "X"),
    "compiled_graphs": ("#8A4F7D", "X"),
    "compiled_tf32": (YELLOW, "X"),
    "compiled_graphs_tf32": (GREEN, "X"),
    "reference": (YELLOW, "*"),
    "maxsim_cpu": (ORANGE, "h"),
    "fused_int8": (SKY, "p"),
    "fused_int8_doc": ("#003F66", "p"),
    "fused_int8_mixed": (GREEN, "p"),
    "fused_fp8": (PURPLE, "h"),
    "fused_fp8_doc": ("#8A4F7D", "h"),
    "flash_maxsim_int8": ("#8C3A00", "s"),
    "flash_maxsim_int8_mixed": ("#F0A57A", "s"),
    "lik_fp8": (YELLOW, "D"),
    "dequantise_eager": ("#AAAAAA", "^"),
    "search": (BLUE, "8"),
    "search_int8": (SKY, "8"),
    "search_int8_rescored": (GREEN, "8"),
    "read_streaming": (YELLOW, "2"),
    "read_persistent": ("#5E9C76", "1"),
    "empty_launch": ("#AAAAAA", "_"),
    "pipeline_fused": (BLUE, "o"),
    "pipeline_chunked": (GREEN, "P"),
    "pipeline_flash": (VERMILION, "s"),
    "train_fused": (BLUE, "o"),
    "train_lean": (SKY, "o"),
    "train_eager": (GREY, "^"),
    "train_eager_tf32": ("#AAAAAA", "<"),
    "train_checkpointed": (GREEN, "P"),
    "train_eager_max_tf32": ("#777777", ">"),
    "train_checkpointed_max": ("#5E9C76", "d"),
    "train_flash_maxsim": (VERMILION, "s"),
    "train_lik": (ORANGE, "D"),
    "train_lik_lowmem": (YELLOW, "D"),
    "train_csr": ("#003F66", "o"),
    "train_csr_sort": (PURPLE, "o"),
    "train_atomic": ("#8A4F7D", "X"),
    "train_recompute": ("#4C9F70", "P"),
    "train_stage": (BLUE, "p"),
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
LINE_STYLES = ("-", "--", ":", "-.")  # one a card, where a figure shows several
# Status → marker of what gave no number.
FAILURE_MARKERS = {"oom": "x", "skipped": "+", "timeout": "1", "crash": "2", "error": "3", "incorrect": "4"}

_RC: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
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


def across(panels: int) -> int:
    """Panels abreast: at most three, and four make a square."""
    return 2 if panels == 4 else min(panels, 3)


def title(text: str, panels: int) -> str:
    """The title of one panel among so many, broken where its panel ends and only between axes."""
    room = 60 if panels == 1 else 132 // across(panels)
    lines: list[str] = []
    for part in text.split(", "):
        if lines and len(lines[-1]) + len(part) + 2 <= room:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return ",\n".join(lines)


def grid(panels: int, *, height: float = 1.75) -> tuple[Drawing, list[Any]]:
    """A figure with so many axes, at most three abreast: one panel fills a column, more fill the page."""
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    down = -(-panels // across(panels))
    width = COLUMN_INCHES if panels == 1 else PAGE_INCHES
    with matplotlib.rc_context(_RC):
        drawing = Drawing(figsize=(width, max(height, 2.3 if down == 1 else 0) * down), layout="constrained")
        axes = drawing.subplots(down, across(panels), squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.remove()
    return drawing, axes[:panels]


def rc() -> Any:
    """Context in which figures are drawn and saved."""
    import matplotlib

    return matplotlib.rc_context(_RC)


def log_ticks(ax: Any, low: float, high: float) -> None:
    """A logarithmic y axis with plain numbers: 1, 2 and 5 of a decade where there are less than two, else decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=9))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def legend(drawing: Drawing, handles: list[Any], labels: list[str]) -> None:
    """One legend for all panels, below them, in as many columns as fit the width."""
    if handles:
        wide = drawing.get_figwidth() > COLUMN_INCHES
        longest = max(len(text) for text in labels)
        columns = max(1, min(len(labels), int((100 if wide else 46) // (longest + 6))))
        lines = -(-len(labels) // columns)
        drawing.set_figheight(drawing.get_figheight() + _LEGEND_LINE_INCHES * max(0, lines - 1))  # not from the axes
        drawing.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.2, columnspacing=1.2)


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
            png, dpi=200, metadata={"Title": title, "Comment": f"data sha256:{data_hash}", "Software": None}
        )
    return [pdf, png]
