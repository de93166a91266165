"""What the data sets are that grids and results name: one line each, for lists, messages and tables.

Room: `declare`. Imports nothing else of ours.
"""

from __future__ import annotations

# Name → what it is, its size, where it comes from.
DATASETS = {
    "apidocs": (
        "docstrings of installed packages, each to be found by its first sentence: 1000 documents, 200 queries; needs "
        "neither network nor files"
    ),
    "scifact": (
        "BEIR SciFact: scientific claims and the abstracts that they are checked by, 5183 documents, 300 queries; "
        "downloaded by `beir`"
    ),
    "cranfield": (
        "Cranfield: abstracts on aerodynamics and questions to them, 1400 documents, 225 queries, "
        "judgements graded 1 to 4; ir_datasets has it as `cranfield`"
    ),
    "limit-small": (
        "LIMIT-small (Weller et al. 2025): who likes what, made to be hard for one vector a document, 46 documents, "
        "1000 queries; on the Hugging Face hub as orionweller/LIMIT-small"
    ),
    "finslides": (
        "REAL-MM-RAG FinSlides: slides of financial reports as the text that OCR reads, 2280 documents, 1048 queries, "
        "rephrased more from split L0 to L3; pages and queries are on the Hugging Face hub as "
        "ibm-research/REAL-MM-RAG_FinSlides_BEIR, the text is read from an archive realmmrag_finslides_text"
    ),
}
