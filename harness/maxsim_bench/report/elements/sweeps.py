"""Latency, memory, speed-up and percent of the ceiling of every experiment: a table each, and a figure over each axis.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from maxsim_bench.record.row import Row
from maxsim_bench.report import names, style
from maxsim_bench.report.axes import NUMERIC_AXES, panels, slice_for_figures, varying
from maxsim_bench.report.elements import element
from maxsim_bench.report.figures import Figure, Lines, draw_lines, in_order, line_data, marks_told
from maxsim_bench.report.load import Results, results_of
from maxsim_bench.report.tables import CELL, Column, Table, shown

TITLES = {
    "latency": "Latency",
    "memory": "Peak extra memory",
    "speedup": "Speed-up",
    "ceiling": "Share of the binding ceiling",
}
CAPTIONS = {
    "latency": "Median of one call.",
    "memory": "Peak allocated during a call beyond its inputs.",
    "speedup": "Median of paired ratios over {baseline}, with its 95 % interval; above 1 is faster.",
    "ceiling": "Of the matrix-product rate or the read bandwidth measured in the same session, or an empty launch, "
    "whichever binds.",
}
# The same of searches whose corpus lies in host memory, where their sessions measured copies from there, and where not.
WITH_COPIES = (
    "Of the matrix-product rate, the read bandwidth or the rate of copies from pinned host memory measured in the same "
    "session, or an empty launch, whichever binds."
)
WITHOUT_COPIES = (
    "Of the matrix-product rate or the read bandwidth measured in the same session, or an empty launch, whichever "
    "binds; the corpus comes from host memory, and how fast copies from there are was not measured then."
)
PARTLY = " Without the copies, where a session did not measure them."
# Times of one line are compared by whoever reads them, and a card's clocks move with what it did before.
SITTING = pd.Timedelta(minutes=10)
APART = " Apart: measured more than ten minutes from the others of the line; compare it by ratios of turns taken."
UNIT_LINES = {"speedup": 1.0, "ceiling": 100.0}
BARS = {"latency": " Bars span the 20th to the 80th percentile."}
# What `slice_for_figures` chose is told in words beside these.
CHOSEN = ("dtype", "timing_policy", "chunk")


def measured(results: Results) -> Iterator[tuple[str, pd.DataFrame]]:
    """Experiments that time something, with their rows."""
    frame = results.frame
    timed = frame[frame["op"] != "fidelity"]
    for name, rows in timed.groupby("experiment", sort=True):
        yield str(name), rows


@element
def sweep_tables(results: Results) -> Iterator[Table]:
    """A wide table for each experiment and metric: one line a cell, one column a backend, a word where no number is."""
    turns = newest_turns(results).frame
    for name, rows in measured(results):
        for key, metric in names.METRICS.items():
            compared = comparable(key, rows, turns)
            if compared[metric.column].notna().any():
                yield wide_table(name, key, compared)


def newest_turns(results: Results) -> Results:
    """`results` in which a row without a speed-up is the newest earlier one of its cell and backend that has one.

    What was measured again by itself took no turns with a baseline, but what it replaced did.
    """
    earlier: dict[tuple[str, str], Row] = {}
    for row, _ in sorted(results.earlier, key=lambda pair: pair[0].measured_at or ""):
        if row.status == "ok" and row.speedup is not None:
            earlier[row.cell.hash(), row.backend] = row
    rows = (
        row if row.status != "ok" or row.speedup is not None else earlier.get((row.cell.hash(), row.backend), row)
        for row in results.rows
    )
    return results_of(zip(rows, results.frame["source"], strict=True), results.paths, results.environments)


def comparable(key: str, rows: pd.DataFrame, turns: pd.DataFrame) -> pd.DataFrame:
    """Rows that a metric means something for; `turns` are those of `newest_turns`, under the same index.

    What scores nothing is not faster than a scorer, nor near its ceiling, and a baseline alone is no comparison.
    """
    if key not in ("speedup", "ceiling"):
        return rows
    if key == "speedup":
        rows = turns.loc[rows.index]
    scorers = rows[~rows["backend"].isin(names.NO_SCORERS)]
    alone = key == "speedup" and scorers["backend"].isin(scorers["speedup_baseline"].dropna()).all()
    return scorers[:0] if alone else scorers


def wide_table(name: str, key: str, rows: pd.DataFrame) -> Table:
    """The table of one metric, in one unit; its frame holds the rows' own values, bytes among them."""
    metric = names.tabulated(names.METRICS[key], rows[rows["status"] == "ok"])
    axes = [*varying(rows), *varying(rows, ("seed",))]  # one seed is no setting, of several each is a line
    rows = rows.assign(shown=_cells(rows, metric))
    backends = in_order(rows["backend"], list(style.LOOKS))
    cards = ["device", "gpus"] if (rows["gpus"] > 1).any() else ["device"]
    index = [*cards, *axes, "cell_hash"]
    wide = rows.pivot(index=index, columns="backend", values="shown").reset_index()
    wide = wide.sort_values([*cards, *axes], na_position="first", kind="stable")
    kept = [b for b in backends if not wide[b].dropna().isin(("n/a", "")).all()]
    columns = [Column("device", "GPU", names.card, right=False)]
    columns += [Column(c, "GPUs", partial(names.axis_value, c)) for c in cards[1:]]
    columns += [Column(a, a.replace("_", " "), partial(names.axis_value, a)) for a in axes]
    columns += [Column(b, names.backend(b), partial(_shown, metric.factor)) for b in kept]
    told = ", or took no turns with the baseline." if key == "speedup" else "."
    if key == "latency":
        wide["apart"] = wide["cell_hash"].map(_other_sittings(rows[rows["status"] == "ok"])).fillna("")
        if wide["apart"].any():
            columns.append(Column("apart", "apart", right=False, roomy=True))
            told += APART
    columns.append(CELL)
    constant = {a: rows[a].iloc[0] for a in names.AXES if a not in axes and pd.notna(rows[a].iloc[0])}
    unit = f"{metric.unit} (the CSV: in bytes)" if key == "memory" else metric.unit
    caption = f"{_caption(key, rows)} In {unit}. {names.described(constant)}. An empty cell was not measured{told}"
    title = f"{TITLES[key]}: {name}"
    return Table(f"{name}/{key}", title, columns, wide, tuple(sorted(set(rows["source"]))), caption)


def _other_sittings(rows: pd.DataFrame) -> dict[str, str]:
    """Cell → the backends that were measured in another sitting than most of its line, the newest where equal."""
    told = {}
    for cell, line in rows.assign(at=pd.to_datetime(rows["measured_at"], utc=True)).groupby("cell_hash"):
        ordered = line.sort_values("at", kind="stable")
        sitting = (ordered["at"].diff() > SITTING).cumsum()
        most = max(sitting, key=lambda one: (int((sitting == one).sum()), one))
        told[str(cell)] = "; ".join(names.backend(b) for b in ordered["backend"][sitting != most])
    return told


def _shown(factor: float, value: Any) -> str:
    """A number in the unit of its table; a word as it stands."""
    return shown(value * factor if isinstance(value, float) else value)


def _cells(rows: pd.DataFrame, metric: names.Metric) -> pd.Series:
    """What was measured, in the unit of its column of the rows, or a word."""
    values = rows[metric.column].astype(float).astype(object)
    words = rows["status"].map(names.STATUS_WORDS)
    return values.where(rows["status"] == "ok", words)


def _caption(key: str, rows: pd.DataFrame) -> str:
    if key == "ceiling":
        return _ceilings(rows)
    baselines = sorted(set(rows["speedup_baseline"].dropna()))
    return CAPTIONS[key].format(baseline=" or ".join(names.backend(b) for b in baselines))


def _ceilings(rows: pd.DataFrame) -> str:
    """Which rates the shares are of."""
    streamed = rows[(rows["op"] == "search") & (rows["device"] != "cpu") & rows["percent_of_ceiling"].notna()]
    if streamed.empty:
        return CAPTIONS["ceiling"]
    beside = streamed["extra"].fillna("").str.contains('"percent_of_copy"', regex=False)
    if not beside.any():
        return WITHOUT_COPIES
    return WITH_COPIES if beside.all() else WITH_COPIES + PARTLY


@element
def sweep_figures(results: Results) -> Iterator[Figure]:
    """For each experiment, axis and metric a figure of lines, where the axis has enough values to be a curve."""
    turns = newest_turns(results).frame
    for name, rows in measured(results):
        shown, chosen = slice_for_figures(rows)
        ranks = (shown["gpus"] > 1).any()  # then B and the number of GPUs make Nq, and no line crosses that number
        for axis in ["B"] if ranks else curves(shown):
            part, panel, left_out = (shown, _by_gpus(shown), "") if ranks else panels(shown, axis)
            for key, metric in names.METRICS.items():
                compared = comparable(key, part, turns)
                if compared[metric.column].notna().any():
                    figure = _figure(name, key, axis, compared, panel[compared.index], f"{chosen}.{left_out}")
                    if len(figure.data):  # a speed-up of the baseline over itself is no line
                        yield figure


def _by_gpus(shown: pd.DataFrame) -> pd.Series:
    counts = sorted(shown["gpus"].dropna().unique())
    titles = {n: f"{n:.0f} GPU{'s' if n > 1 else ''}" for n in counts}
    return pd.Series(pd.Categorical(shown["gpus"].map(titles), list(titles.values()), ordered=True), index=shown.index)


def curves(shown: pd.DataFrame) -> list[str]:
    """Axes with three values or more; where there is none, the first with two, so that there is a figure."""
    counts = {axis: shown[axis].nunique() for axis in NUMERIC_AXES}
    lines = [axis for axis, count in counts.items() if count > 2]
    return lines or [axis for axis, count in counts.items() if count == 2][:1]


def _figure(name: str, key: str, axis: str, part: pd.DataFrame, panel: pd.Series, chosen: str) -> Figure:
    metric = names.readable(names.METRICS[key], part)
    data = line_data(part, metric, axis, panel)
    data["panel"] = data["panel"].astype(str)
    lines = Lines(names.AXIS_LABELS[axis], metric.axis_label, metric.log, UNIT_LINES.get(key))
    constant = {
        a: part[a].iloc[0]
        for a in names.AXES
        if a != axis and a not in CHOSEN and part[a].nunique(dropna=False) == 1 and pd.notna(part[a].iloc[0])
    }
    told = "; ".join(words for words in (names.described(constant), chosen) if words)
    return Figure(
        name=f"{name}/{key}-over-{axis}",
        title=f"{TITLES[key]} over {names.AXIS_LABELS[axis]}: {name}",
        data=data,
        draw=partial(draw_lines, lines=lines),
        sources=tuple(sorted(set(part["source"]))),
        caption=f"{_caption(key, part)}{BARS.get(key, '')}{marks_told(data)} {told}",
    )
