"""Run files in TREC format: `query Q0 document rank score tag`, one line a document.

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

import math
from pathlib import Path

from maxsim_bench.record.files import replace_file
from maxsim_bench.retrieve.archive import Folder
from maxsim_bench.retrieve.beir_reader import read_qrels
from maxsim_bench.retrieve.dataset import DataError
from maxsim_bench.retrieve.metrics import Evaluation, Run, evaluate, ranked


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """query → document → score of a run file; ranks and tags in it are ignored, as trec_eval does.

    Raises:
        DataError: with file and line, for another number of columns, a score that is no number (NaN included), or a
            document that one query has twice; or bytes that are not UTF-8.
    """
    run: dict[str, dict[str, float]] = {}
    places: dict[tuple[str, str], int] = {}
    try:
        stream = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}. Check the path.") from None
    with stream:
        for number, line in enumerate(stream, start=1):
            try:
                fields = line.decode("utf-8-sig" if number == 1 else "utf-8").split()
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from None
            if not fields:
                continue
            if len(fields) != 6:
                raise DataError(f"{path}:{number}: {len(fields)} columns, not query Q0 document rank score tag.")
            query, _, document, _, text, _ = fields
            try:
                score = float(text)
            except ValueError:
                score = math.nan
            if math.isnan(score):
                raise DataError(
                    f"{path}:{number}: query {query!r}, document {document!r}: score {text!r} is no number."
                )
            if document in run.setdefault(query, {}):
                before = places[query, document]
                raise DataError(
                    f"{path}:{number}: query {query!r} has document {document!r} already, on line {before}."
                )
            run[query][document] = score
            places[query, document] = number
    if not run:
        raise DataError(f"{path}: holds no result.")
    return run


def write_run(path: Path, run: Run, tag: str) -> None:
    """Write a run in trec_eval's order; scores with all their digits, so that reading gives them back.

    Raises:
        DataError: for an id or tag with a blank in it, which the format cannot hold.
    """
    lines = []
    for query, scores in run.items():
        for rank, document in enumerate(ranked(scores, query=query), start=1):
            for what, value in (("query", query), ("document", document), ("tag", tag)):
                if len(value.split()) != 1:
                    raise DataError(f"{what} {value!r} holds a blank, which a TREC run file cannot express.")
            lines.append(f"{query} Q0 {document} {rank} {scores[document]!r} {tag}\n")
    replace_file(path, "".join(lines).encode())


def evaluate_files(run: Path, qrels: Path, *, drop_own_id: bool = False) -> Evaluation:
    """Judge anyone's run file by a file of judgements (BEIR's TSV or TREC's four columns)."""
    if not qrels.is_file():
        raise DataError(f"{qrels}: there is no such file. Check the path.")
    return evaluate(read_run(run), read_qrels(Folder(qrels.parent), qrels.name).grades, drop_own_id=drop_own_id)
