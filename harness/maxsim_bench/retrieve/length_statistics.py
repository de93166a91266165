"""Counts the tokens of every document of a collection: the real length distributions of packed cells.

Room: `retrieve`. May import: record, backends. `python -m maxsim_bench.retrieve.length_statistics scifact apidocs
...` writes
`backends/lengths.json`: counts of lengths and nothing of the texts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from maxsim_bench.record.files import replace_file
from maxsim_bench.retrieve.dataset import Dataset
from maxsim_bench.retrieve.datasets.registry import load_dataset
from maxsim_bench.retrieve.encoders.minilm import weights_folder


def count_lengths(dataset: Dataset) -> dict[int, int]:
    """Tokens of title and text under the MiniLM tokenizer, not truncated, special tokens not counted → documents."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(weights_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    counts: Counter[int] = Counter()
    documents = dataset.documents()
    while some := list(islice(documents, 1024)):
        encoded = tokenizer.encode_batch([d.content for d in some], add_special_tokens=False)
        counts.update(len(e.ids) for e in encoded)
    return dict(sorted(counts.items()))


def statistics(names: Sequence[str]) -> dict[str, Any]:
    """What `lengths.json` holds, for these collections ("finslides:L0" names a split)."""
    collections = {}
    for name in names:
        base, _, split = name.partition(":")
        dataset = load_dataset(base, split or None)
        counts = count_lengths(dataset)
        collections[base] = {
            "source": f"{base}, {len(dataset.document_ids)} documents, corpus sha256:{dataset.corpus_hash[:16]}, "
            "tokens of title and text under the all-MiniLM-L6-v2 tokenizer, not truncated, special tokens not counted",
            "lengths": list(counts),
            "counts": list(counts.values()),
        }
    command = f"python -m maxsim_bench.retrieve.length_statistics {' '.join(names)}"
    return {"made_by": command, "collections": collections}


def main(names: Sequence[str]) -> None:
    """Write the file that `backends.lengths` reads."""
    import maxsim_bench.backends as backends

    path = Path(next(iter(backends.__path__))) / "lengths.json"
    made = statistics(names)
    entries = [f'  "{name}": {json.dumps(entry)}' for name, entry in made["collections"].items()]
    text = f'{{"made_by": {json.dumps(made["made_by"])},\n "collections": {{\n' + ",\n".join(entries) + "\n }}\n"
    replace_file(path, text.encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m maxsim_bench.retrieve.length_statistics", description=main.__doc__)
    parser.add_argument("names", nargs="+", metavar="COLLECTION", help="a BEIR data set, finslides:L0")
    main(parser.parse_args().names)
