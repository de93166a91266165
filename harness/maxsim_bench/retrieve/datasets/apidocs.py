"""Known-item collection made at run time from the documentation of installed packages: needs neither network nor files.

Room: `retrieve`. May import: record, backends. A document is the docstring of a public function, class or method of
numpy, scipy, pandas, matplotlib and torch without its first sentence and without its name; the query is that first
sentence; its own document is relevant. Identical bodies are one document, relevant to each of their sentences.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np

from maxsim_bench.retrieve.dataset import DataError, Dataset, Document, build
from maxsim_bench.retrieve.datasets.registry import Request

DOCUMENTS, QUERIES, SEED = 1000, 200, 0

# Public entry modules as each project documents them. What they export is taken; nothing is searched for on the disk.
MODULES = {
    "numpy": "numpy numpy.fft numpy.linalg numpy.ma numpy.polynomial numpy.random numpy.strings numpy.testing",
    "scipy": (
        "scipy.cluster.hierarchy scipy.cluster.vq scipy.constants scipy.fft scipy.integrate scipy.interpolate scipy.io "
        "scipy.linalg scipy.ndimage scipy.optimize scipy.signal scipy.sparse scipy.sparse.csgraph scipy.sparse.linalg "
        "scipy.spatial scipy.spatial.distance scipy.special scipy.stats scipy.stats.qmc"
    ),
    "pandas": "pandas pandas.api.types pandas.api.extensions pandas.api.indexers pandas.tseries.offsets"
    " pandas.plotting",
    "matplotlib": (
        "matplotlib.artist matplotlib.axes matplotlib.axis matplotlib.cm matplotlib.collections matplotlib.colors "
        "matplotlib.dates matplotlib.figure matplotlib.gridspec matplotlib.image matplotlib.legend matplotlib.lines "
        "matplotlib.patches matplotlib.path matplotlib.scale matplotlib.text matplotlib.ticker matplotlib.transforms"
    ),
    "torch": (
        "torch torch.nn torch.nn.functional torch.nn.init torch.nn.utils torch.optim torch.optim.lr_scheduler "
        "torch.linalg torch.fft torch.special torch.distributions torch.autograd "
        "torch.sparse torch.utils.data torch.cuda"
    ),
}

# A sentence this short names nothing that could be looked for, a body this short holds nothing to be found by.
MIN_QUERY_WORDS, MIN_BODY_WORDS = 5, 40
# A sentence that introduces more bodies than this was written for none of them ("Set multiple properties at once.").
MAX_BODIES_A_SENTENCE = 3
# Bodies that say "see elsewhere" or that a metaclass wrote: the same text hangs on many names.
_BOILERPLATE = re.compile(
    r"^(alias (for|of)|see (also )?:|this (function|method|class) is deprecated|deprecated|\.\. deprecated|inherited)|"
    r"self\.__doc__|automatically generated",
    re.IGNORECASE,
)
# Text that a package writes anew in every process: example output of a random draw, the order of a set.
_UNSTABLE = re.compile(r"# may vary|``\{'")
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)?\s*(->.*)?$")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*:\[(])|\n\s*\n")


@dataclass(frozen=True)
class _Entry:
    """One docstring taken apart."""

    name: str
    query: str
    body: str


class ApiDocs:
    """Loader of the embedded collection `apidocs`."""

    order = 0

    def claims(self, request: Request) -> bool:
        return request.name == "apidocs"

    def load(self, request: Request) -> Dataset:
        """The collection; options `documents` and `queries` (integers, or "all") and `seed` size it."""
        if request.split not in (None, "test"):
            raise DataError(f"apidocs has one split, test; {request.split!r} was asked for.")
        documents = _size(request, "documents", DOCUMENTS)
        queries = _size(request, "queries", QUERIES)
        seed = int(request.options.get("seed", SEED))
        return _sample(_entries(), documents, queries, seed)


LOADER = ApiDocs()


def _size(request: Request, key: str, default: int) -> int | None:
    given = request.options.get(key, default)
    if given == "all":
        return None
    try:
        size = int(given)
    except ValueError:
        raise DataError(f"apidocs: {key} = {given!r} is no number. Give a positive number or all.") from None
    if size < 1:
        raise DataError(f"apidocs: {key} = {given}, but at least one is needed. Give a positive number or all.")
    return size


def _sample(entries: list[_Entry], documents: int | None, queries: int | None, seed: int) -> Dataset:
    """Bodies merged, sampled and named by their hash; queries sampled from the sentences of sampled bodies."""
    introduced: dict[str, set[str]] = {}
    for entry in entries:
        introduced.setdefault(entry.query, set()).add(entry.body)
    bodies: dict[str, list[_Entry]] = {}
    for entry in entries:
        if len(introduced[entry.query]) <= MAX_BODIES_A_SENTENCE:
            bodies.setdefault(entry.body, []).append(entry)
    by_id = {_short(body): (body, owners) for body, owners in bodies.items()}
    random = np.random.default_rng(seed)
    ids = _draw(random, sorted(by_id), documents)
    texts = {i: by_id[i][0] for i in ids}
    # one sentence may introduce several bodies: all of them answer it
    asked: dict[str, list[str]] = {}
    for i in ids:
        for entry in by_id[i][1]:
            asked.setdefault(entry.query, []).append(i)
    chosen = _draw(random, sorted(asked), queries)
    named = {f"q{_short(text)}": text for text in chosen}
    qrels = {q: dict.fromkeys(asked[text], 1) for q, text in named.items()}
    manifest: dict[str, Any] = {
        "format": "apidocs",
        "seed": seed,
        "fields": ["text"],
        "versions": {package: metadata.version(package) for package in MODULES},
        "docstrings": len(entries),
        "bodies": len(bodies),
        "documents": {i: by_id[i][1][0].name for i in ids},
    }
    return build(
        "apidocs", "test", lambda: (Document(i, "", text) for i, text in texts.items()), named, qrels, manifest=manifest
    )


def _draw(random: np.random.Generator, names: list[str], count: int | None) -> list[str]:
    """`count` of the names (all for None, or if there are fewer), in sorted order."""
    if count is None or count >= len(names):
        return names
    return [names[i] for i in sorted(random.choice(len(names), count, replace=False))]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _entries() -> list[_Entry]:
    """Every usable docstring, by qualified name; an object reached by several names counts once, under the first."""
    seen: dict[int, Any] = {}  # keeps what it has seen: the id of a bound method that is gone is given away again
    found: list[_Entry] = []
    for name, item in _public():
        if id(item) in seen:
            continue
        seen[id(item)] = item
        entry = _taken_apart(name, item)
        if entry is not None:
            found.append(entry)
    return found


def _public() -> Iterator[tuple[str, Any]]:
    """(qualified name, object) of public callables: what modules export, and the public methods of their classes."""
    # all of them first: importing scipy adds to the docstrings of numpy
    imported = {name: _import(name) for modules in MODULES.values() for name in modules.split()}
    for package, modules in MODULES.items():
        for module_name in modules.split():
            module = imported[module_name]
            for attribute in sorted(getattr(module, "__all__", None) or vars(module)):
                item = getattr(module, attribute, None)
                if attribute.startswith("_") or not callable(item) or not _belongs(item, package):
                    continue
                yield f"{module_name}.{attribute}", item
                if inspect.isclass(item):
                    yield from _methods(f"{module_name}.{attribute}", item)


def _import(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names warn when touched; reading their text is no use of them
        return importlib.import_module(name)


def _belongs(item: Any, package: str) -> bool:
    """Whether the package itself defines it, rather than importing it from elsewhere."""
    module = getattr(item, "__module__", None) or getattr(type(item), "__module__", None) or ""
    return str(module).split(".")[0] in (package, package.replace("torch", "torch._C"), "builtins") and not (
        inspect.isclass(item) and issubclass(item, BaseException)
    )


def _methods(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    for attribute in sorted(vars(cls)):
        item = vars(cls)[attribute]
        item = item.__func__ if isinstance(item, (staticmethod, classmethod)) else item
        if not attribute.startswith("_") and callable(item):
            yield f"{name}.{attribute}", item


def _taken_apart(name: str, item: Any) -> _Entry | None:
    """First sentence and rest of a docstring; None for one that is missing, short or boilerplate."""
    text = item.__doc__
    if not isinstance(text, str) or _UNSTABLE.search(text):
        return None
    text = _without_signature(inspect.cleandoc(text))
    first, rest = _first_sentence(text)
    body = _without_name(rest, name.rsplit(".", 1)[-1])
    if len(first.split()) < MIN_QUERY_WORDS or len(body.split()) < MIN_BODY_WORDS:
        return None
    if _BOILERPLATE.search(first) or _BOILERPLATE.match(body) or first.rstrip(".") in body:
        return None  # a body that repeats its sentence would be found by it, however it is scored
    return _Entry(name, first, body)


def _without_signature(text: str) -> str:
    """Docstrings of compiled functions begin with their own signature, perhaps over several lines."""
    head, _, rest = text.partition("\n\n")
    joined = " ".join(head.split())
    return rest.strip() if rest and _SIGNATURE.match(joined) else text


def _first_sentence(text: str) -> tuple[str, str]:
    parts = _SENTENCE.split(text, maxsplit=1)
    return " ".join(parts[0].split()), parts[1] if len(parts) > 1 else ""


def _without_name(body: str, name: str) -> str:
    """The body, blanks collapsed, without the object's own name wherever it stands as a word."""
    return " ".join(re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", " ", body).split())
