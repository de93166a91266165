"""Names to backends. A module of this room that defines `BACKENDS` is found; nothing is registered by hand.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

import maxsim_bench.backends as room
from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.load import suggest

# The order in which backends are listed and drawn: ground truth, what people run today, ours, peers.
ORDER = (
    "reference", "eager", "eager_fp32", "eager_tf32", "chunked", "compiled", "compiled_graphs", "fused",
    "flash_maxsim", "lik", "maxsim_cpu",
)  # fmt: skip


class UnknownBackendError(ValueError):
    """No backend has this name."""


@functools.cache
def backends() -> dict[str, Backend]:
    """Every backend by name, the well-known ones first and the rest by name. Imports no peer and no torch kernel."""
    found: dict[str, Backend] = {}
    for module in pkgutil.iter_modules(room.__path__):
        for backend in getattr(importlib.import_module(f"{room.__name__}.{module.name}"), "BACKENDS", ()):
            if backend.name in found:
                raise RuntimeError(f"two backends are called {backend.name!r}")
            found[backend.name] = backend
    rank = {name: i for i, name in enumerate(ORDER)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], len(ORDER)), item[0])))


def about(backend: Backend) -> str:
    """What a backend is, in the one line that it has for itself."""
    told = getattr(backend, "about", "") or (type(backend).__doc__ or "").strip().splitlines()[0]
    return str(told).removesuffix(".")


def get(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        UnknownBackendError: with the nearest name, or all of them.
    """
    known = backends()
    if name in known:
        return known[name]
    raise UnknownBackendError(f"unknown backend {name!r}. {suggest(name, known)}")
