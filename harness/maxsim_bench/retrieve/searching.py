"""Backends that search rather than score: the best documents of every query in one call over the whole corpus.

Room: `retrieve`. May import: declare (the cell), record, backends. A search returns a few documents a query, so its
scores are compared with the reference's on those, and nothing is known about the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.tolerances import FP32_ACCUMULATE
from maxsim_bench.declare.cell import Cell
from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.metrics import DEPTH, ScoreError
from maxsim_bench.retrieve.rank import RELATIVE_FLOOR, Ranked, ScoreErrors, TopK
from maxsim_bench.retrieve.scoring import Scorer, operand

if TYPE_CHECKING:
    import torch

FIRST = 10  # documents for which it is asked whether they are the best ones


def searches(scorer: Scorer) -> bool:
    """Whether the backend answers op "search" and not op "forward"."""
    search = _cell(scorer, 1, 1, 1, FIRST)
    forward = search.model_copy(update={"op": "forward", "Lq": 1, "Ld": 1, "k": None})
    supports = scorer.backend.supports
    return supports(search, scorer.device) is None and supports(forward, scorer.device) is not None


def search_all(
    dataset: Dataset, queries: Embeddings, corpus: Corpus, searchers: Mapping[str, Scorer], base: Ranked
) -> dict[str, Ranked]:
    """The first documents of every query by every searcher, with errors against the reference's ranking `base`.

    The corpus is in host memory once, in the operands' dtype, and is copied to the device in blocks by the search
    itself. A quantiser gets it on the device, which quantises a corpus in no time.
    """
    import torch

    if not searchers:
        return {}
    whole = Embeddings.concatenate([part for _, part in corpus.parts()])
    depth = min(len(whole), DEPTH + int(dataset.drop_own_id))
    want = base.top.best()
    found = {}
    for name, scorer in searchers.items():
        errors = ScoreErrors.empty(len(queries), len(whole))
        one = Ranked(TopK(dataset.document_ids, len(queries), depth), errors)
        try:
            scores, documents = _ask(scorer, queries, whole, depth)
            _, chosen = _ask(scorer, queries, whole, FIRST)
            compare(errors, scores.cpu().numpy(), documents.cpu().numpy(), want)
            one.exact_first = exact_share(chosen.cpu().numpy(), want, min(FIRST, len(whole)))
            one.top.put(scores, documents)
        except torch.cuda.OutOfMemoryError as error:
            one.failure = "oom", str(error).splitlines()[0]
        except ScoreError as error:
            one.failure = "incorrect", str(error)
        except Exception as error:  # whatever a backend raises is its row's status
            one.failure = "error", f"{type(error).__name__}: {error}"
        found[name] = one
    return found


def exact_share(documents: np.ndarray, want: tuple[np.ndarray, np.ndarray], k: int) -> float:
    """Share of queries whose first k documents are the reference's k best, up to ties and rounding of an fp32 sum.

    Args:
        documents: [Nq, >= k], best first; -1 is none.
        want: the reference's documents and scores [Nq, depth], best first.
    """
    if documents.shape[0] == 0 or k == 0:
        return 1.0
    scores = scores_of(documents[:, :k], want)
    last = want[1][:, k - 1 : k]
    slack = FP32_ACCUMULATE * np.abs(np.where(np.isfinite(last), last, 0.0))
    return float((scores >= last - slack).all(axis=1).mean())


def scores_of(documents: np.ndarray, want: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """[Nq, k] the reference's scores of documents [Nq, k]; NaN where it does not have them among its best."""
    places = places_of(documents, want[0])
    return np.where(places < 0, np.nan, np.take_along_axis(want[1], np.maximum(places, 0), axis=1))


def places_of(documents: np.ndarray, among: np.ndarray) -> np.ndarray:
    """[Nq, k] int64: the column in `among` [Nq, n] of each of `documents` [Nq, k], row by row; -1 where absent."""
    rows = np.arange(among.shape[0])[:, None]
    width = int(max(documents.max(initial=-1), among.max(initial=-1))) + 2
    keys = (rows * width + among + 1).ravel()
    order = np.argsort(keys, kind="stable")
    asked = rows * width + documents + 1
    at = np.minimum(np.searchsorted(keys[order], asked), keys.size - 1)
    hit = (keys[order][at] == asked) & (documents >= 0)
    return np.where(hit, order[at] % among.shape[1], -1)


def compare(
    errors: ScoreErrors, scores: np.ndarray, documents: np.ndarray, want: tuple[np.ndarray, np.ndarray]
) -> None:
    """Count the errors of scores [Nq, k] of documents [Nq, k].

    A document that the reference does not have among its best is an infinite error: it has no business there.
    """
    true = scores_of(documents, want).astype(np.float64)
    given = documents >= 0
    difference = np.where(scores == true, 0.0, np.abs(scores - true))
    size = np.where(np.isfinite(true), np.abs(true), 0.0)
    largest = size.max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / np.maximum(size, RELATIVE_FLOOR * largest))
    relative = np.where(given, np.nan_to_num(relative, nan=np.inf, posinf=np.inf), 0.0)
    difference = np.where(given, np.nan_to_num(difference, nan=np.inf), 0.0)
    errors.max_abs[:], errors.max_rel[:] = difference.max(axis=1), relative.max(axis=1)
    np.maximum.at(errors.document_max_rel, documents[given], relative[given])
    usable = given & np.isfinite(difference)
    errors.total_abs, errors.pairs = float(difference[usable].sum()), int(usable.sum())
    row, column = np.unravel_index(int(relative.argmax()), relative.shape)
    if relative[row, column] > 0:
        errors.worst = float(relative[row, column]), int(row), int(documents[row, column])
    errors.fits = dict.fromkeys(errors.fits, False)


def unexplained(dataset: Dataset, errors: ScoreErrors) -> str:
    """What the worst result of a search is, where it is beyond the tolerance."""
    size, query, document = errors.worst
    return (
        f"query {list(dataset.queries)[query]!r} finds document {dataset.document_ids[document]!r} with a score "
        f"that is off by {size:.2e}, relative" + (" (it is not among the reference's best)" if np.isinf(size) else "")
    )


def _ask(scorer: Scorer, queries: Embeddings, whole: Embeddings, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(scores [Nq, k] fp32, documents [Nq, k] int64) of the backend."""
    import torch

    cell = _cell(scorer, len(queries), len(whole), whole.d, k)
    on = scorer.device if getattr(scorer.backend, "quantiser", None) else "cpu"
    D = operand(whole.values, scorer.dtype, on)
    if on == "cpu" and scorer.device == "cuda":
        D = D.pin_memory()
    inputs = Inputs(
        Q=operand(queries.padded(), scorer.dtype, scorer.device),
        D=D,
        q_lengths=queries.lengths.to(scorer.device),
        d_lengths=whole.lengths.to(on),
        cu_seqlens=whole.offsets().to(on),
    )
    answer: Any = scorer.backend.prepare(cell, inputs)()
    scores, documents = answer
    if bool(scores.isnan().any()):
        raise ScoreError(f"{scorer.backend.name}: a score is NaN. Look at the embeddings.")
    return scores.to(torch.float32), documents


def _cell(scorer: Scorer, Nq: int, B: int, d: int, k: int) -> Cell:
    """The search that is asked of the backend."""
    given = scorer.cell
    return Cell(
        experiment=given.experiment,
        gpu=given.gpu,
        op="search",
        Nq=Nq,
        B=B,
        d=d,
        dtype=given.dtype,
        layout="packed",
        pairing="all",
        precision=given.precision,
        quantiser=given.quantiser,
        k=k,
    )
