"""Names to encoders. A module of this package that defines `ENCODER` is found; a new encoder is one file.

Room: `retrieve`. May import: record, backends. A name is the encoder and its options, parts separated by colons:
"minilm", "minilm:512", "pylate:lightonai/GTE-ModernColBERT-v1", "precomputed:/data/bundle".
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import maxsim_bench.retrieve.encoders as package
from maxsim_bench.retrieve.encoders.base import Encoder, EncoderError


@dataclass(frozen=True)
class EncoderKind:
    """One kind of encoder.

    Attributes:
        name: first part of the names it makes.
        usage: how a name is written, for lists and messages.
        make: from what follows the first colon ("" if nothing) and a device to an encoder.
    """

    name: str
    usage: str
    make: Callable[[str, str], Encoder]


@functools.cache
def encoder_kinds() -> dict[str, EncoderKind]:
    """Every kind by name. Imports no model library."""
    found: dict[str, EncoderKind] = {}
    for module in pkgutil.iter_modules(package.__path__):
        kind = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "ENCODER", None)
        if kind is not None:
            found[kind.name] = kind
    return dict(sorted(found.items()))


def load_encoder(name: str, device: str = "cpu") -> Encoder:
    """The encoder of that name on `device`.

    Raises:
        EncoderError: for an unknown name, with the nearest; for packages or weights that are missing, with how to get
        them.
    """
    kind, _, options = name.partition(":")
    known = encoder_kinds()
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise EncoderError(f"unknown encoder {name!r}.{hint} Known: {', '.join(k.usage for k in known.values())}")
    return known[kind].make(options, device)
