"""Elements of the report: each a function from rows to tables and figures, found by being here.

Room: `report`. May import: record, declare.
Adding a table or figure is one function with `@element` in a module of this package.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator

from maxsim_bench.report.figures import Figure
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import Table

Artefact = Table | Figure
Maker = Callable[[Results], Iterable[Artefact]]

_MAKERS: dict[str, Maker] = {}


def element(maker: Maker) -> Maker:
    """Register a function of this package; what it yields for rows it knows nothing about is nothing."""
    _MAKERS[f"{maker.__module__.rsplit('.', 1)[-1]}.{maker.__name__}"] = maker
    return maker


@functools.cache
def makers() -> dict[str, Maker]:
    """Every registered function by name, in the order of modules and of their lines."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_MAKERS)


def artefacts(results: Results) -> Iterator[Artefact]:
    """Everything the rows give, each name once.

    Raises:
        RuntimeError: if two functions make an artefact of one name.
    """
    seen: dict[str, str] = {}
    for name, maker in makers().items():
        for artefact in maker(results):
            kind = "table" if isinstance(artefact, Table) else "figure"
            if seen.setdefault(f"{kind} {artefact.name}", name) != name:
                raise RuntimeError(f"{name} and {seen[f'{kind} {artefact.name}']} both make the {kind} {artefact.name}")
            yield artefact
