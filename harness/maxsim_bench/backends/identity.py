"""What version a backend is: the hash of the sources that decide its result, or the installed version of a peer.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_DATA = (".py", ".toml", ".json", ".csv")  # launch tables decide results as much as code does


@functools.cache
def source_hash(*parts: str) -> str:
    """Twelve hex digits over source files of the `maxsim` package.

    Args:
        parts: files or folders relative to the package, such as "fused" or "baselines.py".

    Raises:
        FileNotFoundError: for a part that does not exist, so a renamed file cannot silently leave the identity.
    """
    spec = find_spec("maxsim")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package `maxsim` is not importable")
    return _hash_below(Path(spec.origin).parent, "the package `maxsim`", parts)


@functools.cache
def room_hash(*parts: str) -> str:
    """The same over files or folders of this room, for a backend whose kernels lie here."""
    return _hash_below(Path(__file__).parent, "this room", parts)


def _hash_below(folder: Path, told: str, parts: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        path = folder / part
        if not path.exists():
            raise FileNotFoundError(f"{part} is not part of {told}")
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in _DATA)
        for file in files:
            digest.update(file.relative_to(folder).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def installed_version(distribution: str) -> str:
    """Version of an installed distribution, or "not installed"."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def missing(module: str, install: str) -> str | None:
    """A reason with the install line if `module` cannot be found, else None. Imports nothing."""
    if find_spec(module) is None:
        return f"{module} is not installed: {install}"
    return None
