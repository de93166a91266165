"""From a data set, a query and a document to pictures of which document tokens the query chose.

Orchestration beside `cli.py`. May import: retrieve; heavy packages only inside functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxsim_bench.retrieve.dataset import Dataset, Document
    from maxsim_bench.retrieve.embeddings import Embeddings
    from maxsim_bench.retrieve.encoders.base import Encoder
    from maxsim_bench.retrieve.heatmap import HeatMap


@dataclass(frozen=True)
class Request:
    """What to draw.

    Attributes:
        dataset: name or path.
        query: id of one of its queries, or any other text.
        document: id of one of its documents.
        encoder: name with options.
        split, data_dir: of the data set; None for its own.
        into: folder of the pictures.
        grid, first: patches of a page image across and down, and the document token that is the first of them.
    """

    dataset: str
    query: str
    document: str
    encoder: str = "minilm"
    split: str | None = None
    data_dir: Path | None = None
    into: Path = Path("figures/local/heatmaps")
    grid: tuple[int, int] | None = None
    first: int = 0


def heat_maps(request: Request) -> tuple[HeatMap, list[Path]]:
    """Encode the two, and draw the matrix, the HTML page and, with a grid, the page image; what was found, and files.

    Raises:
        DataError, EncoderError: for a data set, document or encoder that cannot be had.
        ValueError: for a query or document without tokens, or a grid that the document does not fill.
    """
    from maxsim_bench.retrieve.cache import Holder
    from maxsim_bench.retrieve.dataset import DataError
    from maxsim_bench.retrieve.datasets.registry import load_dataset
    from maxsim_bench.retrieve.encoders.registry import load_encoder
    from maxsim_bench.retrieve.heatmap import draw, draw_page, heat_map, to_html

    dataset = load_dataset(request.dataset, request.split, data_dir=request.data_dir)
    document = document_of(dataset, request.document)
    if request.grid is not None and document.image is None:
        raise DataError(f"document {document.id!r} has no page image, so a grid of patches shows nothing")
    text = dataset.queries.get(request.query, request.query)
    encoder = load_encoder(request.encoder)
    if isinstance(encoder, Holder) and request.query not in dataset.queries:
        raise DataError(f"{request.encoder} holds embeddings by id, and {dataset.name} has no query {request.query!r}")
    Q, D = _embeddings(dataset, encoder, request, text, document)
    labels = [getattr(encoder, "labels", lambda text: None)(t) for t in (text, document.content)]
    found = heat_map(request.query, document.id, Q.values, D.values, *labels)
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{dataset.name}-{request.query[:60]}-{document.id}").strip("-")
    image, page = request.into / f"{stem}.png", request.into / f"{stem}.html"
    draw(found, image)
    page.write_text(to_html(found), encoding="utf-8")
    written = [image, page]
    if request.grid is not None and document.image is not None:
        written.append(request.into / f"{stem}-page.png")
        draw_page(found, document.image, request.grid, written[-1], request.first)
    return found, written


def document_of(dataset: Dataset, name: str) -> Document:
    """The document of this id; DataError with near ids if there is none."""
    import difflib

    from maxsim_bench.retrieve.dataset import DataError

    for document in dataset.documents():
        if document.id == name:
            return document
    near = difflib.get_close_matches(name, dataset.document_ids, n=3) or list(dataset.document_ids[:3])
    raise DataError(f"{dataset.name} has no document {name!r}. Some that it has: {', '.join(near)}.")


def heat_map_lines(found: HeatMap, written: list[Path]) -> list[str]:
    """The score, what each query token chose, and the files."""
    rows = [
        f"  {token:<18} → {found.document_tokens[winner]} ({winner}), {float(found.similarities[i, winner]):.3f}"
        for i, (token, winner) in enumerate(zip(found.query_tokens, found.winners.tolist(), strict=True))
    ]
    return [f"MaxSim {found.score:.4f}", *rows, *(path.as_posix() for path in written)]


def _embeddings(
    dataset: Dataset, encoder: Encoder, request: Request, text: str, document: Document
) -> tuple[Embeddings, Embeddings]:
    """Of the query and of the document, one item each: encoded now, or looked up where the encoder holds them."""
    from maxsim_bench.retrieve.cache import Holder

    if isinstance(encoder, Holder):
        place = list(dataset.queries).index(request.query)
        at = dataset.document_ids.index(document.id)
        return encoder.stored(dataset, "query").select([place]), encoder.stored(dataset, "document").select([at])
    return encoder.queries([text]), encoder.documents([document])
