"""Figures at the width of a column: what can be read there, where marks stand, what legends and captions name.

Room: tests of `report`. Imports the report and the builders of its conftest. Extents are those that matplotlib draws.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.report import style
from maxsim_bench.report.elements import artefacts
from maxsim_bench.report.elements.fidelity import draw_difference, draw_queries
from maxsim_bench.report.elements.memory import draw_frontier
from maxsim_bench.report.elements.square import draw_square
from maxsim_bench.report.elements.training import draw_differences, draw_losses
from maxsim_bench.report.figures import Figure, Lines, draw_lines
from maxsim_bench.report.load import load

COLUMN = 240.0  # points
TALLEST = 400.0
SCALE = 72 / 100  # points of a pixel: drawings have 100 of these an inch


def figures(results: Any) -> dict[str, Figure]:
    return {a.name: a for a in artefacts(results) if isinstance(a, Figure)}


def drawn(figure: Figure) -> Any:
    drawing = figure.draw(figure.data)
    with style.rc():
        drawing.draw_without_rendering()
    return drawing


def ticks(axis: Any) -> list[Any]:
    """Tick labels that are seen."""
    low, high = sorted(axis.get_view_interval())
    return [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high and t.label1.get_text()]


def words(drawing: Any) -> list[Any]:
    """Every text of a drawing that is seen: titles, labels, ticks, legends, numbers."""
    found = [*drawing.texts, *(text for legend in drawing.legends for text in legend.get_texts())]
    for ax in drawing.axes:
        found += [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label, *ticks(ax.xaxis), *ticks(ax.yaxis)]
    return [text for text in found if text.get_text().strip()]


def assert_readable(drawing: Any) -> None:
    """A column wide, no taller than a page, no text below 6 points, none cut off, and none on another."""
    assert drawing.bbox.width * SCALE == pytest.approx(COLUMN)
    assert drawing.bbox.height * SCALE <= TALLEST
    texts = words(drawing)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert min(text.get_fontsize() for text in texts) >= 6.0
    boxes += [("legend", legend.get_window_extent()) for legend in drawing.legends]
    for text, box in boxes:
        assert min(box.x0, box.y0) >= -1, text
        assert max(box.x1 - drawing.bbox.x1, box.y1 - drawing.bbox.y1) <= 1, text
    outer = [
        pair for pair in boxes if pair[0] not in {text.get_text() for leg in drawing.legends for text in leg.texts}
    ]
    for (one, a), (other, b) in itertools.combinations(outer, 2):
        assert not a.overlaps(b), f"{one!r} lies on {other!r}"


@pytest.fixture(scope="module")
def wide(made: Any) -> dict[str, Figure]:
    """Six panels with long titles, many values of an axis, every backend of the model, two cards."""
    cells = [
        made.cell("lengths", gpu, B=B, Lq=Lq, Ld=Ld)
        for gpu in ("h200", "a100-80gb")
        for B in (1000, 100_000)
        for Lq in (32, 48, 64, 128, 512, 768, 1024)
        for Ld in (128, 512, 2048)
    ]
    cells += [
        made.cell("lengths", B=10_000, Lq=Lq, Ld=512, layout="packed", length_distribution="uniform:20:512")
        for Lq in (32, 48, 64, 128, 512, 768, 1024)
    ]
    return figures(made.results(made.sweep(cells)))


@pytest.mark.parametrize(
    ("metric", "axis"), [("latency", "Lq"), ("memory", "Lq"), ("speedup", "Ld"), ("ceiling", "Ld")]
)
def test_figures_can_be_read_in_a_column(wide: dict[str, Figure], metric: str, axis: str) -> None:
    figure = wide[f"lengths/{metric}-over-{axis}"]
    drawing = drawn(figure)
    assert_readable(drawing)
    assert len({round(ax.bbox.x0) for ax in drawing.axes}) <= 2, "at most two panels abreast"
    assert len(drawing.axes) <= 6


def test_one_panel_fills_the_column(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100, 1000, 10_000, 20_000, 50_000, 100_000, 150_000)])
    drawing = drawn(figures(made.results(rows))["forward/latency-over-B"])
    assert_readable(drawing)
    assert drawing.axes[0].bbox.width * SCALE > 170
    labels = [text.get_text() for text in ticks(drawing.axes[0].xaxis)]
    assert labels[0] == "10"
    assert labels[-1] == "150K"
    assert len(labels) >= 5


def test_the_axis_of_y_is_named_once_and_that_of_x_below_each_column(wide: dict[str, Figure]) -> None:
    drawing = drawn(wide["lengths/latency-over-Lq"])
    assert [text.get_text() for text in drawing.texts] == ["latency [ms]"]
    named = [ax for ax in drawing.axes if ax.get_xlabel()]
    assert named == drawing.axes[-2:]
    low, high = min(ax.bbox.y0 for ax in drawing.axes), max(ax.bbox.y1 for ax in drawing.axes)
    box = drawing.texts[0].get_window_extent()
    assert low < (box.y0 + box.y1) / 2 < high


def test_marks_of_what_gave_no_number_stand_above_every_number(made: Any) -> None:
    rows = made.sweep(
        [
            made.cell("memory_scaling", B=B, Lq=1024, Ld=1024, memory_cap=cap)
            for cap in (42_400_000_000, None)
            for B in (1000, 10_000, 100_000, 200_000)
        ]
    )
    refused = made.cell("memory_scaling", B=100_000, Lq=1024, Ld=1024, memory_cap=42_400_000_000)
    rows = [row for row in rows if (row.cell, row.backend) != (refused, "lik")]
    rows += [Row(cell=refused, backend="lik", backend_version="1", gpu="x", status="unsupported", error="too large")]
    figure = figures(made.results(rows))["memory_scaling/footprint"]
    drawing = drawn(figure)
    assert_readable(drawing)
    marks = [(ax, line) for ax in drawing.axes for line in ax.lines if line.get_gid() == "mark"]
    assert len(marks) >= 5
    for ax, line in marks:
        heights = line.get_transform().transform(np.column_stack([line.get_xdata(), line.get_ydata()]))[:, 1]
        assert (heights > ax.bbox.y1 + 1).all()
        assert (heights < ax.title.get_window_extent().y0).all()
    caps = [line for line in drawing.axes[0].lines if set(line.get_ydata()) == {42.4}]
    assert len(caps) == 1
    assert drawing.axes[0].get_ylim()[1] > 42.4
    for word in ("OOM: out of memory", "n/a: the backend does not take the cell", "Marks above a panel"):
        assert word in figure.caption
    assert "Lq = 1024, Ld = 1024, d = 128" in figure.caption
    assert {"OOM", "n/a"} <= {text.get_text() for text in drawing.legends[0].get_texts()}


def test_two_rows_of_marks_do_not_cover_each_other(made: Any) -> None:
    rows = made.sweep([made.cell(gpu="a100-80gb", Lq=1024, Ld=1024, B=B) for B in (100, 1000, 100_000)])
    drawing = drawn(figures(made.results(rows))["forward/latency-over-B"])
    heights = {
        line.get_color(): line.get_transform().transform((line.get_xdata()[0], line.get_ydata()[0]))[1] * SCALE
        for line in drawing.axes[0].lines
        if line.get_gid() == "mark"
    }
    assert len(heights) > 2
    assert min(np.diff(sorted(heights.values()))) > 4


def test_a_backend_with_one_point_in_a_panel_of_lines_is_in_neither_the_figure_nor_its_legend(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100, 1000)], ["eager", "fused"])
    rows += made.sweep([made.cell(B=100)], ["lik"])
    figure = figures(made.results(rows))["forward/latency-over-B"]
    legend = {text.get_text() for text in drawn(figure).legends[0].get_texts()}
    assert legend == {"fused (ours)", "eager"}
    lost = made.cell(B=1000)
    rows.append(Row(cell=lost, backend="lik", backend_version="1", gpu="x", status="oom", error="CUDA out of memory"))
    figure = figures(made.results(rows))["forward/latency-over-B"]
    assert "LIK" in {text.get_text() for text in drawn(figure).legends[0].get_texts()}, "its end is a finding"


def test_captions_name_what_is_constant_and_titles_what_is_not(made: Any) -> None:
    rows = made.sweep([made.cell(Lq=Lq, B=B, Ld=1024) for Lq in (32, 128, 1024) for B in (1000, 10_000)])
    figure = figures(made.results(rows))["forward/latency-over-Lq"]
    assert set(figure.data["panel"]) == {"B = 1K", "B = 10K"}
    assert "Nq = 1, Ld = 1024, d = 128, layout = dense" in figure.caption
    assert "cold L2, fp16" in figure.caption
    assert "Lq = " not in figure.caption
    assert "B = " not in figure.caption


def test_a_legend_has_as_many_columns_as_fit_and_leaves_the_panels_their_height(made: Any) -> None:
    data = pd.DataFrame(
        [
            {"panel": "", "backend": name, "device": "h200", "x": x, "y": x * (i + 1), "low": x, "high": x, "mark": ""}
            for i, name in enumerate(["eager", "fused", "lik", "chunked", "compiled"])
            for x in (1.0, 10.0)
        ]
    )
    lines = Lines("x", "y", y_log=True)
    few, many = (draw_lines(data[data["backend"].isin(names)], lines) for names in (["eager"], set(data["backend"])))
    for drawing in (few, many):
        drawing.draw_without_rendering()
        assert_readable(drawing)
    assert few.axes[0].bbox.height == pytest.approx(many.axes[0].bbox.height, abs=4)
    left = {round(text.get_window_extent().x0) for text in many.legends[0].get_texts()}
    assert len(left) >= 3


def audited(backend: str, delta: float, dataset: str, device: str = "h200") -> Row:
    cell = Cell(experiment="fidelity", gpu=device, op="fidelity", dataset=dataset, split="test", encoder="minilm")
    spread = 5e-3 if delta else 0.0
    return Row(
        cell=cell, backend=backend, backend_version="1", gpu="x", status="ok", ndcg_at_10=0.7 + delta, delta=delta,
        ndcg_at_10_reference=0.7, delta_low=delta - spread, delta_high=delta + spread, queries=300,
    )  # fmt: skip


MOVING = ("eager", "chunked", "lik_fp8", "fused_int8", "fused_int8_doc", "fused_fp8_doc", "flash_maxsim_int8")


def test_differences_of_a_dozen_data_sets_fit_a_page_and_can_be_read_beyond_the_limit(made: Any) -> None:
    rows = [audited(b, (i - 3.5) * 1e-3, f"set{k}") for k in range(11) for i, b in enumerate(MOVING)]
    rows += [audited(b, 0.0, f"set{k}") for k in range(12) for b in ("fused", "lik")]
    rows += [audited("eager", 0.0, "set0", "cpu")]
    figure = figures(made.results(rows))["fidelity/difference"]
    drawing = drawn(figure)
    assert_readable(drawing)
    for ax in drawing.axes:
        labels = [text.get_text() for text in ticks(ax.xaxis)]
        assert {"−5", "−0.5", "0", "0.5", "5"} <= set(labels)
    said = [text.get_text() for ax in drawing.axes for text in ax.texts]
    assert said.count("all at 0") == 1
    assert {f"set{k}" for k in range(12)} <= set(said)
    assert "on H200: fused (ours); LIK" in figure.caption
    assert "on CPU: eager" in figure.caption
    legend = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert len(legend) == len(MOVING)
    assert "fused (ours)" not in legend


def test_one_data_set_has_one_panel_of_differences(made: Any) -> None:
    data = figures(made.results([audited("eager", 1e-3, "a"), audited("fused", 0.0, "a")]))["fidelity/difference"].data
    drawing = draw_difference(data)
    drawing.draw_without_rendering()
    assert_readable(drawing)
    (ax,) = drawing.axes
    assert len(ax.containers) == 1, "a scorer that moves something; the other is named in the caption"
    dashed = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    assert dashed == [-3.0, 3.0], "the limit for INT8, which the shaded one for exact scorers is not"


def test_who_moved_a_query_has_a_row_of_its_own() -> None:
    data = pd.DataFrame(
        [
            {"panel": panel, "backend": backend, "x": x, "y": x + moved, "queries": 2}
            for panel in ("scifact\nminilm", "cranfield\nminilm", "finslides L0")
            for backend, moved in (("fused", 0.0), ("eager", 0.2), ("chunked", 0.2), ("lik_fp8", 0.2))
            for x in (0.1, 0.3, 0.6)
        ]
    )
    drawing = draw_queries(data)
    drawing.draw_without_rendering()
    assert_readable(drawing)
    (ax,) = drawing.axes
    assert [text.get_text() for text in ticks(ax.yaxis)] == [
        "eager\n18 of 18",
        "chunked\n18 of 18",
        "LIK FP8\n18 of 18",
    ]
    places = [tuple(np.asarray(dot.get_offsets())[0]) for dot in ax.collections]
    assert len(set(places)) == len(places) == 9, "the same change by three scorers on three data sets"


def frontier(chunks: dict[str, tuple[float, ...]]) -> pd.DataFrame:
    lines: list[dict[str, Any]] = []
    for panel, sizes in chunks.items():
        for chunk in sizes:
            gb = (chunk or max(sizes) * 1.2) * 1e-3
            lines.append(
                {"panel": panel, "backend": "chunked", "x": gb, "y": 10 + 300 / (chunk or 2e4), "chunk": chunk}
            )
        lines.append({"panel": panel, "backend": "fused", "x": 1e-4, "y": 2.0, "chunk": float("nan")})
    return pd.DataFrame(lines).assign(device="h200", low=float("nan"), high=float("nan"), mark="")


def test_sizes_of_chunks_touch_neither_each_other_nor_a_point() -> None:
    drawing = draw_frontier(frontier({"Lq = 512, B = 20K": (0, 16, 64, 256, 1024, 4096, 16384), "B = 1K": (0, 1, 16)}))
    drawing.draw_without_rendering()
    assert_readable(drawing)
    said = {text.get_text() for text in drawing.axes[0].texts}
    assert {"16", "16384"} <= said, "the ends are named first"
    assert "auto" not in said
    assert "chunked, auto" in {text.get_text() for text in drawing.legends[0].get_texts()}


def test_a_cell_with_one_chunk_is_no_panel_of_the_frontier(made: Any) -> None:
    cells = [made.cell("frontier_chunked", Lq=512, Ld=1024, B=2000, chunk=c) for c in (0, 64, 1024)]
    cells += [made.cell("frontier_chunked", Lq=512, Ld=1024, B=5000, chunk=1024)]
    figure = figures(made.results(made.sweep(cells, ["chunked", "fused"])))["frontier_chunked/frontier"]
    assert set(figure.data["panel"]) == {"Lq = 512, Ld = 1024, B = 2K"}
    assert "1 of 2 cells are shown" in figure.caption


def series(panel: str, values: list[float], backend: str = "train_fused") -> pd.DataFrame:
    x = [7.0 * (i + 1) for i in range(len(values))]
    data = pd.DataFrame({"panel": panel, "backend": backend, "device": "h200", "x": x, "y": values, "mark": ""})
    return data.assign(low=float("nan"), high=float("nan"))


def test_losses_that_fall_by_decades_and_differences_down_to_nothing_can_be_seen() -> None:
    losses = pd.concat([series("batch 32", [0.3, 0.2, 0.15, 0.1]), series("Q and D", [1.0, 1e-2, 2e-3, 6e-4])])
    apart = pd.concat([series("fp16", [1e-3, 2e-3, 5e-4, 9e-4]), series("fp32", [1e-6, 0.0, 1e-6, 0.0])])
    drawings = [draw_losses(losses), draw_differences(apart)]
    for drawing in drawings:
        drawing.draw_without_rendering()
        assert_readable(drawing)
    assert [ax.get_yscale() for ax in drawings[0].axes] == ["linear", "log"]
    assert drawings[0].axes[0].get_ylim()[0] == 0
    for ax in drawings[1].axes:
        assert ax.get_yscale() == "symlog"
        labels = [text.get_text() for text in ticks(ax.yaxis)]
        assert labels[0] == "0"
        assert len(labels) >= 3
    heights = [drawings[1].axes[1].transData.transform((7.0, y))[1] for y in (0.0, 1e-6)]
    assert heights[1] - heights[0] > 5, "one ulp is told from nothing"
    assert len({text.get_text() for text in ticks(drawings[0].axes[0].xaxis)} & {"7", "14", "21"}) == 0


def test_the_square_holds_the_paired_ratio_and_says_so(tmp_path: Path, made: Any) -> None:
    lik, fused = made.sweep([made.cell("lengths", Lq=32, Ld=128)], ["lik", "fused"])
    alone = made.sweep([made.cell("lengths", Lq=64, Ld=128)], ["lik", "fused"])
    root = made.written(tmp_path, [lik, fused])
    slow, fast = [1.0, 2.0, 4.0], [1.0 / 0.998, 2.0 / 0.998, 4.0 / 0.998]  # a card that slows down: medians hide it
    append_samples(
        root / "h200" / "lengths.csv",
        {
            row.key: {"ms": ms, "round": [0, 1, 2], "interleaved_with": ["fused", "lik"]}
            for row, ms in ((lik, slow), (fused, fast))
        },
    )
    figure = figures(load([root]))["lengths/square-ahead-h200"]
    assert figure.data["value"].to_list() == [pytest.approx(0.998)]
    assert figure.caption.startswith("Medians of paired ratios over the rounds that both were timed in; above 1")
    drawing = draw_square(figure.data, centre=1.0)
    assert [text.get_text() for text in drawing.axes[0].texts] == ["0.998"]
    unpaired = figures(made.results([*alone]))["lengths/square-ahead-h200"]
    assert unpaired.caption.startswith("Ratios of medians; above 1 ours is faster.")
    assert "Nq = 1, d = 128, layout = dense" in unpaired.caption


@pytest.mark.parametrize("columns", [3, 5])
def test_numbers_of_the_square_fit_their_cells(columns: int) -> None:
    lengths = [128, 256, 512, 1024, 2048][:columns]
    data = pd.DataFrame(
        [{"B": B, "Lq": Lq, "Ld": Ld, "value": 0.998} for B in (16, 1000) for Lq in (32, 1024) for Ld in lengths]
    )
    drawing = draw_square(data, centre=1.0)
    drawing.draw_without_rendering()
    assert_readable(drawing)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1e-5, 900.0, ["1e-5", "0.001", "0.1", "10", "1000"]),
        (0.05, 2.0, ["0.1", "1"]),
        (0.012, 0.046, ["0.02"]),
        (10.0, 34.0, ["10", "20"]),
        (0.04, 2.6, ["0.1", "1"]),  # 1, 2 and 5 of each would touch
        (2.6, 5.3, ["3", "5"]),
        (0.02, 0.45, ["0.02", "0.05", "0.1", "0.2", "0.5"]),
        (0.2, 6.0, ["0.2", "1", "5"]),  # of 1, 2 and 5 what fits, before 1.5 and 7
        (0.015, 0.5, ["0.02", "0.1", "0.5"]),
    ],
)
def test_logarithmic_axes_have_two_ticks_or_more_in_plain_numbers(low: float, high: float, shown: list[str]) -> None:
    drawing, axes = style.grid(6, titles=["Lq = 1024, Ld = 1024, layout = packed"] * 6)
    ax = axes[0]
    with style.rc():
        ax.plot([0, 1], [low, high])
        style.log_ticks(ax, low, high)
        drawing.draw_without_rendering()
    labels = [text.get_text() for text in ticks(ax.yaxis)]
    assert set(shown) <= set(labels)
    assert len(labels) >= 2
    boxes = [text.get_window_extent() for text in ticks(ax.yaxis)]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))


def test_no_backend_has_a_marker_that_vanishes_or_means_that_there_is_no_number() -> None:
    from matplotlib.lines import Line2D

    markers = {marker for _, marker in style.LOOKS.values()}
    assert markers <= set(Line2D.filled_markers)
    assert not markers & {*style.FAILURE_MARKERS.values(), "X", "P"}, "X and P are x and +, filled"
    for one, other in (
        ("train_lik", "train_lik_lowmem"),
        ("train_fused", "train_stage"),
        ("fused_int8", "search_int8"),
    ):
        assert style.look(one)[1] != style.look(other)[1]
    assert len({style.LOOKS[name] for name in ("eager", "fused", "chunked", "compiled", "compiled_graphs")}) == 5


@pytest.mark.parametrize(("marker", "edge"), [("o", "white"), ("p", "#009E73"), ("2", "#009E73"), ("*", "#009E73")])
def test_a_white_edge_is_only_around_what_it_leaves_visible(
    monkeypatch: pytest.MonkeyPatch, marker: str, edge: str
) -> None:
    monkeypatch.setitem(style.LOOKS, "eager", (style.GREEN, marker))
    drawing = draw_lines(series("", [1.0, 2.0], "eager"), Lines("x", "y", y_log=False))
    (handle,) = drawing.legends[0].legend_handles
    for line in (drawing.axes[0].lines[0], handle):
        assert line.get_marker() == marker
        assert line.get_markeredgecolor() == edge


def test_speed_ups_without_an_interval_are_open_unjoined_points_and_the_caption_says_so(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100, 1000, 10_000)], ["eager", "fused"])
    rows = [row.model_copy(update={"samples": 5}) if row.cell.B == 1000 else row for row in rows]
    of = figures(made.results(rows))
    figure = of["forward/speedup-over-B"]
    (ax,) = figure.draw(figure.data).axes
    (points,) = [line for line in ax.lines if line.get_gid() == "open"]
    assert list(points.get_xdata()) == [1000]
    assert points.get_markerfacecolor() == "none"
    assert points.get_linestyle() == "None"
    joined = ax.lines[0].get_ydata()
    assert list(np.isnan(joined)) == [False, False, True, False]
    assert "Open points, not joined: fewer than 6 rounds, so no interval." in figure.caption
    for other in ("forward/latency-over-B", "forward/memory-over-B"):
        assert "open" not in of[other].data
        assert "Open points" not in of[other].caption


def test_an_axis_of_ratios_is_too_wide_for_noise_to_look_like_an_effect() -> None:
    data = series("", [0.98, 1.01, 0.99])
    for unit_line, seen in ((1.0, True), (None, False)):
        drawing = draw_lines(data, Lines("x", "speed-up", y_log=True, unit_line=unit_line))
        low, high = drawing.axes[0].get_ylim()
        assert (low <= 0.9 and high >= 1.1) == seen


def test_memory_from_kilobytes_to_gigabytes_is_told_in_words() -> None:
    far, near = series("a", [4e-6, 4e-3, 4.0]), series("b", [2.0, 3.0, 5.0])
    drawing = draw_lines(pd.concat([far, near]), Lines("x", "peak extra memory [GB]", y_log=True))
    drawing.draw_without_rendering()
    assert_readable(drawing)
    assert [text.get_text() for text in drawing.texts] == ["peak extra memory"]
    assert {"10 kB", "1 MB", "1 GB"} <= {text.get_text() for text in ticks(drawing.axes[0].yaxis)}
    assert all(text.get_text().endswith(" GB") for text in ticks(drawing.axes[1].yaxis))
    alone = draw_lines(near, Lines("x", "peak extra memory [GB]", y_log=True))
    assert alone.axes[0].get_ylabel() == "peak extra memory [GB]"
    assert style.in_bytes(200e-9, 1e9) == "200 B"
    assert style.in_bytes(0.0, 1e9) == "0"


def test_the_files_are_the_same_bytes_every_time(tmp_path: Path, wide: dict[str, Figure]) -> None:
    figure = wide["lengths/latency-over-Lq"]
    one, two = (
        style.save(figure.draw(figure.data), tmp_path / name, title="t", data_hash="0") for name in ("one", "two")
    )
    for a, b in zip(one, two, strict=True):
        assert a.read_bytes() == b.read_bytes()
    assert b"/MediaBox [ 0 0 240 " in one[0].read_bytes()
