"""Training for real: fused and eager runs side by side, with the spread between seeds as the yardstick, and what fits.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from maxsim_bench.report import names
from maxsim_bench.report.elements import element
from maxsim_bench.report.elements.memory import CAP_NAMES
from maxsim_bench.report.figures import LINE_COLUMNS, Figure, Lines, draw_lines
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

ELEMENT = "fig:training_parity"
BASELINE = "train_eager"
CURVE = "training_curve"  # the command whose rows are the paper's own: Q and D themselves are trained
_GROUP = ["device", "B", "dtype", "memory_cap"]
_POINTS = 24  # of a curve: each the mean of that part of the steps


def _runs(results: Results, experiment: str = "training_parity") -> pd.DataFrame:
    """Rows of training runs with their `losses` and the last of them."""
    frame = results.experiment(experiment).frame.copy()
    frame["losses"] = [json.loads(x)["losses"] if isinstance(x, str) else [] for x in frame["extra"]]
    frame["last_loss"] = [x[-1] if x else float("nan") for x in frame["losses"]]
    return frame


@element
def parity(results: Results) -> Iterator[Table]:
    """One line a batch size and scorer: nDCG@10 over seeds, and how far each seed is from eager autograd's run."""
    frame = _runs(results)
    if frame.empty:
        return
    lines = [_line(rows, frame) for _, rows in frame.groupby([*_GROUP, "backend"], dropna=False, sort=True)]
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("B", "batch", lambda b: str(int(b))),
        Column("dtype", "dtype", right=False),
        Column("memory_cap", "cap", lambda c: names.axis_value("memory_cap", c)),
        Column("backend", "backend", names.backend, right=False),
        Column("status", "status", right=False),
        Column("seeds", "seeds", lambda n: str(int(n))),
        Column("ndcg", "nDCG@10", _four),
        Column("spread", "SD between seeds", _four),
        Column("moved", "largest difference from eager", _four),
        Column("loss", "last loss", _four),
        Column("loss_moved", "largest difference of a loss", _four),
    ]
    yield Table(
        "training_parity/parity", "Contrastive training on SciFact, fused and eager", columns, pd.DataFrame(lines),
        tuple(sorted(set(frame["source"]))),
        "A 384 to 128 token projection over a frozen encoder, in-batch negatives; nDCG@10 on the test queries. "
        "Differences are between runs of one seed: same start, same batches. Scorers that compute the same thing "
        "differ by less than seeds do.",
        ELEMENT,
    )  # fmt: skip


def _line(rows: pd.DataFrame, frame: pd.DataFrame) -> dict[str, Any]:
    """One backend at one batch size, against eager runs of the same seeds."""
    first = rows.iloc[0]
    same = frame[(frame["backend"] == BASELINE) & (frame["status"] == "ok")]
    for axis in _GROUP:
        same = same[(same[axis] == first[axis]) | (same[axis].isna() & pd.isna(first[axis]))]
    both = rows[rows["status"] == "ok"].merge(same, on="seed", suffixes=("", "_eager"))
    apart = [
        float(np.abs(np.subtract(a, b)).max())
        for a, b in zip(both["losses"], both["losses_eager"], strict=True)
        if len(a) == len(b)
    ]
    other = first["backend"] != BASELINE and len(both)
    return {
        **{axis: first[axis] for axis in [*_GROUP, "backend"]},
        "status": ", ".join(sorted(set(rows["status"]))),
        "seeds": len(rows),
        "ndcg": rows["ndcg_at_10"].mean(),
        "spread": rows["ndcg_at_10"].std(),
        "moved": (both["ndcg_at_10"] - both["ndcg_at_10_eager"]).abs().max() if other else float("nan"),
        "loss": rows["last_loss"].mean(),
        "loss_moved": max(apart) if other and apart else float("nan"),
    }


def _four(value: Any) -> str:
    if pd.isna(value):
        return ""
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-4 else f"{value:.1e}"


@element
def curve(results: Results) -> Iterator[Table]:
    """One line a scorer of the paper's curves: first and last loss, how far from eager's, seconds and memory."""
    frame = results.experiment(CURVE).frame
    frame = frame[frame["status"] != "unsupported"]
    if frame.empty:
        return
    found = [json.loads(x) if isinstance(x, str) else {} for x in frame["extra"]]
    told = pd.DataFrame(found, index=frame.index).reindex(columns=_CURVE_FIGURES)
    lines = pd.concat([frame[["device", "B", "Lq", "dtype", "backend", "status"]], told], axis=1)
    lines["bytes"] = frame["input_bytes"] + frame["peak_extra_bytes"]
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("B", "batch", lambda b: str(int(b))),
        Column("Lq", "tokens", lambda n: str(int(n))),
        Column("dtype", "dtype", right=False),
        Column("backend", "backend", names.backend, right=False),
        Column("status", "status", right=False),
        Column("loss_first", "first loss", _four),
        Column("loss_final", "last loss", _four),
        Column("loss_max_abs_drift", "largest difference of a loss", _four),
        Column("loss_mean_abs_drift", "mean difference", _four),
        Column("loss_max_rel_drift", "largest relative difference", _four),
        Column("wall_s", "all steps [s]", lambda v: "" if pd.isna(v) else f"{v:.1f}"),
        Column("first_step_s", "of it the first [s]", lambda v: "" if pd.isna(v) else f"{v:.1f}"),
        Column("bytes", "peak with Q and D [GB]", lambda v: "" if pd.isna(v) else f"{v / 1e9:.3f}"),
    ]
    yield Table(
        "training_parity/curve", "Q and D themselves trained, fused and eager", columns,
        lines.sort_values(["device", "B", "backend"], kind="stable"), tuple(sorted(set(frame["source"]))),
        "Adam on fp32 Q and D, cast to the dtype inside each step; every scorer starts from the same numbers. The "
        "cross-entropy is in the dtype of the scores, fp16 for eager autograd on fp16. Differences are from eager "
        "autograd, step by step; the first step holds what compiles.",
        ELEMENT,
    )  # fmt: skip


_CURVE_FIGURES = [
    "loss_first", "loss_final", "loss_max_abs_drift", "loss_mean_abs_drift", "loss_max_rel_drift", "wall_s",
    "first_step_s",
]  # fmt: skip


@element
def loss_curves(results: Results) -> Iterator[Figure]:
    """Loss over steps, the mean over seeds with the smallest and largest, a panel for each batch size and dtype.

    The paper's curves, of Q and D themselves, have panels of their own behind those.
    """
    own, paper = _runs(results), _runs(results, CURVE)
    own["what"], paper["what"] = "batch", "Q and D, batch"
    lost = _lost(own)
    own, paper = own[own["status"] == "ok"], paper[paper["status"] == "ok"]
    groups = [
        rows for frame in (own, paper) for _, rows in frame.groupby([*_GROUP, "backend"], dropna=False, sort=True)
    ]
    if not groups:
        return
    points: list[dict[str, Any]] = []
    for rows in groups:
        curves = np.array([[part.mean() for part in np.array_split(losses, _POINTS)] for losses in rows["losses"]])
        for x, values in zip(_ends(rows), curves.T, strict=True):
            points.append({**_place(rows), "x": x, "y": values.mean(), "low": values.min(), "high": values.max()})
    sources = tuple(sorted({*own["source"], *paper["source"]}))
    yield Figure(
        "training_parity/losses",
        "Loss of a contrastive run, fused and eager",
        pd.DataFrame(points, columns=list(LINE_COLUMNS)).fillna({"mark": ""}),
        draw_losses,
        sources,
        "Mean over seeds of the cross-entropy, each point the mean of its share of the steps; bars reach from the "
        f"lowest to the highest seed.{lost}" + ("" if paper.empty else _OF_Q_AND_D),
        ELEMENT,
    )
    apart = [point for frame in (own, paper) for point in _apart(frame)]
    if apart:
        yield Figure(
            "training_parity/differences",
            "How far the loss of a run is from eager autograd's",
            pd.DataFrame(apart, columns=list(LINE_COLUMNS)).fillna({"mark": ""}),
            draw_differences,
            sources,
            "Largest absolute difference of the cross-entropy between runs of one seed, over the seeds and the steps "
            "of each share; the axis is logarithmic, with 0 below it." + ("" if paper.empty else _OF_Q_AND_D),
            ELEMENT,
        )


def _lost(frame: pd.DataFrame) -> str:
    """A sentence on runs that have no line because they ran out of memory."""
    told = [
        f"{names.backend(backend)} at batch {int(B)}, {dtype}" + (f" under {cap / 1e9:g} GB" if pd.notna(cap) else "")
        for B, dtype, cap, backend in frame.loc[frame["status"] == "oom", ["B", "dtype", "memory_cap", "backend"]]
        .drop_duplicates()
        .itertuples(index=False, name=None)
    ]
    return f" Out of memory, so without a line: {'; '.join(told)}." if told else ""


def _place(rows: pd.DataFrame) -> dict[str, Any]:
    first = rows.iloc[0]
    panel = f"{first['what']} {int(first['B'])}, {first['dtype']}"
    return {"panel": panel, "backend": first["backend"], "device": first["device"], "mark": ""}


def _ends(rows: pd.DataFrame) -> list[float]:
    """The last step of each share."""
    return [float(end) for end in np.cumsum([len(part) for part in np.array_split(rows["losses"].iloc[0], _POINTS)])]


def _apart(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Points of |loss − eager autograd's|, where it ran with the same seed for as many steps."""
    for _, group in frame.groupby(_GROUP, dropna=False, sort=True):
        eager = group[group["backend"] == BASELINE]
        for _, rows in group[group["backend"] != BASELINE].groupby("backend", sort=True):
            both = rows.merge(eager[["seed", "losses"]], on="seed", suffixes=("", "_eager"))
            gaps = [
                np.abs(np.subtract(a, b))
                for a, b in zip(both["losses"], both["losses_eager"], strict=True)
                if len(a) == len(b)
            ]
            if not gaps:
                continue
            for x, part in zip(_ends(rows), np.array_split(np.max(gaps, axis=0), _POINTS), strict=True):
                yield {**_place(rows), "x": x, "y": part.max(initial=0.0)}


_OF_Q_AND_D = " Panels of Q and D show the published experiment: the embeddings themselves are trained, by one seed."


def draw_losses(data: pd.DataFrame) -> Drawing:
    """Lines as everywhere; a loss that falls by orders of magnitude on a logarithmic axis."""
    return draw_lines(data, Lines("step", "cross-entropy", y_log=True, x_log=False, log_from=20.0))


def draw_differences(data: pd.DataFrame) -> Drawing:
    """Lines as everywhere, on a logarithmic axis with its 0."""
    return draw_lines(data, Lines("step", "|difference of cross-entropy|", y_log=True, x_log=False, y_zero=True))


@element
def largest_batch(results: Results) -> Iterator[Table]:
    """The largest contrastive batch (Nq = B) whose inputs and peak fit each of the usual cards, by backend."""
    frame = results.experiment("training_capacity").frame
    if frame.empty:
        return
    needed = (frame["input_bytes"] + frame["peak_extra_bytes"]).where(frame["status"] == "ok")
    lines = []
    for cap, card in CAP_NAMES.items():
        for (device, backend), rows in frame.groupby(["device", "backend"], sort=True):
            if (rows["status"] == "unsupported").all():
                continue
            fits = needed[rows.index] <= cap
            lines.append(
                {
                    "device": device, "card": card, "backend": backend, "largest": rows.loc[fits, "B"].max(),
                    "smallest": rows.loc[~fits, "B"].min(), "gb": needed[rows.index][fits].max() / 1e9,
                }
            )  # fmt: skip
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("card", "as large as a", right=False),
        Column("backend", "backend", names.backend, right=False),
        Column("largest", "largest batch that fits", lambda v: "none" if pd.isna(v) else names.count(v)),
        Column("gb", "takes [GB]", lambda v: "" if pd.isna(v) else f"{v:.1f}"),
        Column("smallest", "smallest that does not", lambda v: "none tried" if pd.isna(v) else names.count(v)),
    ]
    yield Table(
        "training_capacity/largest", "Largest contrastive batch that fits", columns, pd.DataFrame(lines),
        tuple(sorted(set(frame["source"]))),
        "Nq = B, doubled until one step fails; Lq = Ld = 1024, d = 128, fp16. A batch fits a card if inputs and peak "
        "do.", "tab:train",
    )  # fmt: skip
