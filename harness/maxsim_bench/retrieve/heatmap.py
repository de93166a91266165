"""Which document tokens, or page patches, the query tokens chose: as data, as an image, and as HTML.

Room: `retrieve`. May import: record, backends. matplotlib is imported where a picture is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MAX_LABELS = 60  # more token labels than this on one axis cannot be read


@dataclass(frozen=True)
class HeatMap:
    """Similarities of one query with one document.

    Attributes:
        query, document: names of both.
        similarities: [Lq, Ld] fp32 on the CPU.
        winners: [Lq] int64: the document token that each query token chose, the first one on ties.
        query_tokens, document_tokens: a label each.
    """

    query: str
    document: str
    similarities: torch.Tensor
    winners: torch.Tensor
    query_tokens: list[str]
    document_tokens: list[str]

    @property
    def score(self) -> float:
        """The MaxSim score: the sum of what the winners give."""
        return float(self.similarities.amax(1).sum())

    def shares(self) -> list[float]:
        """What each document token gives to the score: the similarities of the query tokens that chose it, summed."""
        best = self.similarities.amax(1)
        out = best.new_zeros(len(self.document_tokens)).index_add_(0, self.winners, best)
        return [float(x) for x in out]


def heat_map(
    query: str,
    document: str,
    Q: torch.Tensor,
    D: torch.Tensor,
    query_tokens: Sequence[str] | None = None,
    document_tokens: Sequence[str] | None = None,
) -> HeatMap:
    """Similarities and winners, in IEEE fp32 over the operands as given.

    Args:
        query, document: names for titles.
        Q: [Lq, d], D: [Ld, d]; the tokens of one query and one document, at least one each, on the CPU.
        query_tokens, document_tokens: labels; by default numbers.

    Raises:
        ValueError: for shapes or numbers of labels that do not fit.
    """
    if Q.ndim != 2 or D.ndim != 2 or Q.shape[1] != D.shape[1] or not len(Q) or not len(D):
        raise ValueError(f"Q {tuple(Q.shape)} and D {tuple(D.shape)}: needed are [Lq, d] and [Ld, d] with a token each")
    labels = []
    for role, given, rows in (("query", query_tokens, Q), ("document", document_tokens, D)):
        named = [str(i) for i in range(len(rows))] if given is None else list(given)
        if len(named) != len(rows):
            raise ValueError(f"{role}_tokens: {len(named)} labels for {len(rows)} tokens")
        labels.append(named)
    similarities = Q.float() @ D.float().T
    return HeatMap(query, document, similarities, similarities.argmax(1), *labels)


def draw(found: HeatMap, path: Path) -> None:
    """The matrix of similarities as an image (the suffix decides: .png, .pdf, .svg), each winner marked."""
    from matplotlib.figure import Figure

    rows, columns = found.similarities.shape
    figure = Figure(figsize=(min(16.0, 2.5 + 0.16 * columns), min(12.0, 1.6 + 0.2 * rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(found.similarities.numpy(), aspect="auto", cmap="viridis", interpolation="nearest")
    axes.scatter(
        found.winners.tolist(), range(rows), s=14, marker="o", facecolors="none", edgecolors="red", linewidths=1
    )
    _label(axes.xaxis, found.document_tokens, rotation=90)
    _label(axes.yaxis, found.query_tokens, rotation=0)
    axes.set_xlabel("document token")
    axes.set_ylabel("query token")
    axes.set_title(f"{found.query} · {found.document} · MaxSim {found.score:.3f}", fontsize=9)
    figure.colorbar(image, ax=axes, label="similarity (circle: chosen)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def draw_page(found: HeatMap, page: bytes, grid: tuple[int, int], path: Path, first: int = 0) -> None:
    """A page image under what its patches give to the score.

    Args:
        page: the encoded image.
        grid: patches (across, down), row by row from the upper left.
        first: document token that is the first patch; prompt tokens stand before or behind.

    Raises:
        ValueError: if the document has fewer tokens than the grid needs.
    """
    import io

    import numpy as np
    from matplotlib.figure import Figure
    from PIL import Image

    across, down = grid
    shares = np.array(found.shares()[first : first + across * down])
    if shares.size != across * down:
        raise ValueError(
            f"grid {across} x {down}: the document has {len(found.document_tokens)} tokens, first is {first}"
        )
    picture = Image.open(io.BytesIO(page)).convert("RGB")
    figure = Figure(figsize=(7, 7 * picture.height / picture.width), layout="constrained")
    axes = figure.subplots()
    extent = (0.0, float(across), float(down), 0.0)
    axes.imshow(np.asarray(picture), extent=extent, aspect="auto")
    axes.imshow(shares.reshape(down, across), extent=extent, aspect="auto", cmap="Reds", alpha=0.55)
    axes.set_axis_off()
    axes.set_title(f"{found.query} · {found.document} · MaxSim {found.score:.3f}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def to_html(found: HeatMap) -> str:
    """One HTML page without scripts or other files: every document token tinted by what it gives to the score."""
    shares = found.shares()
    largest = max((s for s in shares if s > 0), default=1.0)
    chosen: dict[int, list[str]] = {}
    for token, winner in zip(found.query_tokens, found.winners.tolist(), strict=True):
        chosen.setdefault(winner, []).append(token)
    spans = []
    for i, token in enumerate(found.document_tokens):
        by = ", ".join(chosen.get(i, []))
        tint = max(0.0, shares[i]) / largest if by else 0.0
        title = f"{shares[i]:.3f} from {by}" if by else "chosen by no query token"
        style = f' style="background:rgba(220,40,40,{math.sqrt(tint):.2f})"' if by else ""
        spans.append(f'<span title="{html.escape(title, quote=True)}"{style}>{html.escape(token)}</span>')
    rows = "".join(
        f"<tr><td>{html.escape(token)}</td><td>{html.escape(found.document_tokens[winner])}</td><td>{winner}</td>"
        f"<td>{float(found.similarities[i, winner]):.3f}</td></tr>"
        for i, (token, winner) in enumerate(zip(found.query_tokens, found.winners.tolist(), strict=True))
    )
    title = html.escape(f"{found.query} · {found.document} · MaxSim {found.score:.3f}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px/1.7 sans-serif;max-width:60em;margin:2em auto}span{padding:1px 2px;border-radius:3px}"
        "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:2px 8px;text-align:left}</style>"
        f"<h1>{title}</h1><p>{' '.join(spans)}</p><table><tr><th>query token</th><th>chose</th><th>position</th>"
        f"<th>similarity</th></tr>{rows}</table></html>\n"
    )


def _label(axis: Any, labels: list[str], rotation: int) -> None:
    """Token labels, every n-th where all of them could not be read."""
    step = max(1, math.ceil(len(labels) / MAX_LABELS))
    places = list(range(0, len(labels), step))
    # a dollar sign would begin a formula
    axis.set_ticks(places, [labels[i].replace("$", r"\$") for i in places], rotation=rotation, fontsize=7)
