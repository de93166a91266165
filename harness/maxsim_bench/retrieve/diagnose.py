"""Names what is wrong with a backend whose scores are off, by evidence from its own output.

Room: `retrieve`. May import: declare, record, backends. Each check states a known mistake, computes what that mistake
would give,
and compares. What fits none of them is said to be unexplained, with the worst pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.embeddings import Corpus, Embeddings
from maxsim_bench.retrieve.rank import ScoreErrors, columns_of
from maxsim_bench.retrieve.scoring import PADDING, DocumentBlock, Scorer

if TYPE_CHECKING:
    import torch

SUSPECTS = 32  # the worst documents; a mistake that touches any of them is looked for in all of them


@dataclass(frozen=True)
class Evidence:
    """Scores of the worst documents.

    Attributes:
        documents: [n] indices into the corpus, the worst first, then neighbours that only explain.
        suspects: how many of them are off.
        got, want: [Nq, n] fp32, the backend's and the reference's.
        tolerance: relative error within which two scores agree.
    """

    documents: list[int]
    suspects: int
    got: torch.Tensor
    want: torch.Tensor
    tolerance: float

    def agrees(self, got: torch.Tensor, want: torch.Tensor) -> bool:
        """Whether two columns of scores are the same up to the tolerance, infinities included."""
        import torch

        return torch.allclose(got, want, rtol=self.tolerance, atol=self.tolerance)


def diagnose(
    dataset: Dataset,
    queries: Embeddings,
    corpus: Corpus,
    reference: Scorer,
    scorer: Scorer,
    errors: ScoreErrors,
    tolerance: float,
) -> list[str]:
    """Every mistake that the scores show, in words; empty if all are within `tolerance` (relative)."""
    off = np.flatnonzero(errors.document_max_rel > tolerance)
    if off.size == 0:
        return []
    worst = off[np.argsort(-errors.document_max_rel[off], kind="stable")][:SUSPECTS].tolist()
    near = [n for i in worst for n in (i - 1, i + 1) if 0 <= n < len(dataset.document_ids)]
    documents = list(dict.fromkeys([*worst, *near]))
    evidence = Evidence(
        documents,
        len(worst),
        columns_of(scorer, queries, corpus, documents),
        columns_of(reference, queries, corpus, documents),
        max(tolerance, 1e-5),
    )
    found = [*_exchanged(dataset, evidence), *_padding(evidence, queries, corpus, reference)]
    if errors.half is not None:
        found.append(f"every score is a {errors.half} number: similarities or sums are kept in 16 bits")
    if not found:
        size, query, document = errors.worst
        found.append(
            f"unexplained: relative error {size:.2e} at query {list(dataset.queries)[query]!r}, document "
            f"{dataset.document_ids[document]!r}; {off.size} of {len(dataset.document_ids)} documents are off"
        )
    return found


def _exchanged(dataset: Dataset, evidence: Evidence) -> Iterator[str]:
    """A document that has another's scores under every query: an id or offset is wrong."""
    ids = dataset.document_ids
    told = 0
    for i in range(evidence.suspects):
        mine = evidence.got[:, i]
        owner = next(
            (
                j
                for j in range(len(evidence.documents))
                if j != i
                and evidence.agrees(mine, evidence.want[:, j])
                and not evidence.agrees(mine, evidence.want[:, i])
            ),
            None,
        )
        if owner is not None and told < 3:  # a shifted corpus would fill the page
            told += 1
            a, b = ids[evidence.documents[i]], ids[evidence.documents[owner]]
            yield f"document {a!r} has the scores of document {b!r}: ids or offsets are exchanged"


def _padding(evidence: Evidence, queries: Embeddings, corpus: Corpus, reference: Scorer) -> Iterator[str]:
    """Scores that equal those of the same documents with one more token, made of what padding holds."""
    import torch

    suspects = evidence.documents[: evidence.suspects]
    own = corpus.select(suspects)
    for value in (0.0, PADDING):
        pad = own.values.new_full((1, own.d), value)
        longer = Embeddings.of([torch.cat([t, pad]) for t in own.values.split(own.lengths.tolist())], own.d)
        block = DocumentBlock(longer, np.arange(len(suspects)), reference.device)
        if evidence.agrees(evidence.got[:, : len(suspects)], reference.scores(queries, block).cpu()):
            yield f"padding takes part in the maximum: scores are those with a token of {value:g} added to the document"
