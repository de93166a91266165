"""BEIR data sets: by path, by name in a local folder, or downloaded by the package `beir` and read by our own reader.

Room: `retrieve`. May import: declare, record, backends.
"""

from __future__ import annotations

from pathlib import Path

from maxsim_bench.declare.datasets import DATASETS
from maxsim_bench.retrieve.archive import SUFFIXES, open_files
from maxsim_bench.retrieve.beir_reader import read_beir
from maxsim_bench.retrieve.dataset import DataError, Dataset
from maxsim_bench.retrieve.datasets.registry import DATA_ENV, Request
from maxsim_bench.retrieve.paths import cache_dir

# The public sets that the package `beir` downloads without a licence to sign.
NAMES = (
    "arguana", "climate-fever", "cqadupstack", "dbpedia-entity", "fever", "fiqa", "germanquad", "hotpotqa", "msmarco",
    "msmarco-v2", "mrtydi", "nfcorpus", "nq", "nq-train", "quora", "scidocs", "scifact", "trec-covid", "vihealthbert",
    "webis-touche2020",
)  # fmt: skip
URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{}.zip"
# Short names of collections whose files are called otherwise.
ALIASES = {"finslides": "realmmrag_finslides_text"}


class Beir:
    """Loader of whatever no other loader claims."""

    order = 100

    def claims(self, request: Request) -> bool:
        return True

    def load(self, request: Request) -> Dataset:
        path = self.find(request)
        split = request.split or (f"L{request.level}" if request.level is not None else default_split(path))
        level = request.level
        if level is None and len(split) == 2 and split[0] == "L" and split[1].isdigit():
            level = int(split[1])
        manifest = {"level": level} if level is not None else {}
        name = request.name if not Path(request.name).exists() else Path(request.name).name.split(".")[0]
        return read_beir(path, name=name, split=split, strict=request.strict, manifest=manifest)

    def find(self, request: Request) -> Path:
        """Where the files are; a known name that is nowhere is downloaded.

        Raises:
            DataError: with the places that were searched.
        """
        if Path(request.name).exists():
            return Path(request.name)
        file_name = ALIASES.get(request.name, request.name)
        folders = [f for f in (request.folder, cache_dir() / "datasets") if f is not None]
        for folder in folders:
            for candidate in (folder / file_name, *(folder / f"{file_name}{suffix}" for suffix in SUFFIXES)):
                if candidate.exists():
                    return candidate
        if request.name.split("/")[0] in NAMES:
            return download(request.name, cache_dir() / "datasets")
        places = ", ".join(str(f) for f in folders)
        told = f" It is {DATASETS[request.name]}." if request.name in DATASETS else ""
        raise DataError(
            f"{request.name}: no data set of that name in {places}.{told} Point --data-dir or ${DATA_ENV} at the "
            f"folder that holds it as a folder or archive, or give a path. Known by name: apidocs, {', '.join(NAMES)}."
        )


LOADER = Beir()


def default_split(path: Path) -> str:
    """test where there is one, else the only split; DataError where neither says which."""
    names = open_files(path).names()
    splits = sorted(n[len("qrels/") : -len(".tsv")] for n in names if n.startswith("qrels/") and n.endswith(".tsv"))
    if "test" in splits:
        return "test"
    if len(splits) != 1:
        raise DataError(f"{path}: which split? There are: {', '.join(splits) or 'none'}.")
    return splits[0]


def download(name: str, folder: Path) -> Path:
    """Fetch a BEIR data set by the package `beir`; the folder of its files. DataError where that cannot be done."""
    base, _, part = name.partition("/")  # cqadupstack/android: one archive of twelve forums
    try:
        from beir.util import download_and_unzip
    except ImportError as error:
        raise DataError(
            f"{name}: is not on this machine, and downloading it needs the package {error.name}: "
            f"pip install 'maxsim-bench[text]' {error.name}. Or put the files into a folder and name it in ${DATA_ENV}."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = Path(download_and_unzip(URL.format(base), str(folder)))
    except OSError as error:  # requests' exceptions are OSErrors; so is a full disk
        partial = folder / f"{base}.zip"
        partial.unlink(missing_ok=True)
        raise DataError(
            f"{name}: download of {URL.format(base)} failed: {error}. Put the archive into a folder by hand and name "
            f"the folder in ${DATA_ENV}."
        ) from error
    return found / part if part else found
