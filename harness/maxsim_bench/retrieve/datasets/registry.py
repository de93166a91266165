"""Names to data sets. A module of this package that defines `LOADER` is found; a new source is one file.

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import maxsim_bench.retrieve.datasets as package
from maxsim_bench.retrieve.dataset import Dataset

DATA_ENV = "MAXSIM_BENCH_DATA"


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes:
        name: "apidocs", a BEIR name, a path, "ir_datasets:<id>", "realmmrag:<subset>".
        split: None takes the source's default.
        level: rephrase level 0 to 3 of REAL-MM-RAG.
        data_dir: folder with data sets as folders or archives; None takes $MAXSIM_BENCH_DATA.
        strict: whether judgements of unknown ids are an error.
        revision: of a data set on the hub; None takes the pinned one.
        options: sizes and the like that one loader alone knows.
    """

    name: str
    split: str | None = None
    level: int | None = None
    data_dir: Path | None = None
    strict: bool = True
    revision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """`data_dir`, or what the environment names, or None."""
        if self.data_dir is not None:
            return self.data_dir
        named = os.environ.get(DATA_ENV)
        return Path(named) if named else None


class Loader(Protocol):
    """One source of data sets. Loaders are asked by ascending `order`; the first that claims a request loads it."""

    order: int

    def claims(self, request: Request) -> bool: ...

    def load(self, request: Request) -> Dataset: ...


@functools.cache
def loaders() -> tuple[Loader, ...]:
    """Every loader, in the order in which they are asked."""
    found: list[Loader] = []
    for module in pkgutil.iter_modules(package.__path__):
        loader = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "LOADER", None)
        if loader is not None:
            found.append(loader)
    return tuple(sorted(found, key=lambda loader: loader.order))


def load_dataset(
    name: str,
    split: str | None = None,
    *,
    level: int | None = None,
    data_dir: Path | str | None = None,
    strict: bool = True,
    revision: str | None = None,
    **options: Any,
) -> Dataset:
    """The data set of that name; see `Request` for the arguments.

    Raises:
        DataError: if it cannot be found or read, with what to do.
    """
    folder = Path(data_dir) if data_dir is not None else None
    request = Request(name, split, level, folder, strict, revision, options)
    return next(loader for loader in loaders() if loader.claims(request)).load(request)
