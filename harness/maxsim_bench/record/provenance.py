"""Where a table or figure came from: the hash of every CSV it read and the command that made it.

Room: `record`. Imports nothing else of ours.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from maxsim_bench import __version__


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Provenance(BaseModel):
    """Origin of one artefact. `inputs` maps a path relative to the results directory to the SHA-256 of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    inputs: dict[str, str]
    version: str = __version__

    @classmethod
    def of(cls, files: Iterable[Path], root: Path, command: Iterable[str]) -> Provenance:
        """Provenance of what `command` makes of `files` below `root`; independent of where the checkout lies."""
        inputs = {path.relative_to(root).as_posix(): file_hash(path) for path in sorted(files)}
        return cls(command=shlex.join(command), inputs=inputs)

    def lines(self) -> list[str]:
        """One line for the command and one for each input, to stand in the artefact."""
        made = f"made by `{self.command}` (maxsim-bench {self.version}) from"
        return [made, *(f"{name} sha256:{digest}" for name, digest in self.inputs.items())]

    def stale(self, root: Path) -> list[str]:
        """Inputs below `root` that are gone or no longer have the recorded hash."""
        return [n for n, digest in self.inputs.items() if not (root / n).exists() or file_hash(root / n) != digest]
