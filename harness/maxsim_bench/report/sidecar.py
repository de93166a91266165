"""What lies beside every artefact: what it shows, the hash of its data, the CSVs it follows from, the command.

Room: `report`. May import: record.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from maxsim_bench.record.provenance import Provenance, file_hash
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.tables import Table


class Sidecar(BaseModel):
    """`<name>.json` beside `<name>.pdf`, `.png`, `.csv` (a figure) or `<name>.md`, `.tex`, `.csv` (a table).

    Attributes:
        data_sha256: of the plotted data or the table; what checks compare.
        drawn_by: hash of the report's own sources: an artefact is drawn again when it changes, and no check reads it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Literal["figure", "table"]
    title: str
    caption: str
    element: str | None
    data_sha256: str
    files: tuple[str, ...]
    provenance: Provenance
    drawn_by: str

    def write(self, out: Path) -> Path:
        """Write it below `out`."""
        path = out / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return path


def sidecar_of(artefact: Table | Figure, paths: Mapping[str, Path], command: Sequence[str]) -> Sidecar:
    """The sidecar of an artefact whose sources lie at `paths`."""
    import shlex

    inputs = {name: file_hash(paths[name]) for name in artefact.sources if name in paths}
    kind: Literal["figure", "table"] = "figure" if isinstance(artefact, Figure) else "table"
    suffixes = ("pdf", "png", "csv") if isinstance(artefact, Figure) else artefact.spellings
    stem = artefact.name.rsplit("/", 1)[-1]
    return Sidecar(
        name=artefact.name, kind=kind, title=artefact.title, caption=artefact.caption, element=artefact.element,
        data_sha256=artefact.data_hash(), files=tuple(f"{stem}.{suffix}" for suffix in suffixes),
        provenance=Provenance(command=shlex.join(command), inputs=inputs), drawn_by=sources_hash(),
    )  # fmt: skip


def read_sidecar(out: Path, name: str) -> Sidecar | None:
    """The sidecar of an artefact, None if there is none or another version wrote it."""
    path = out / f"{name}.json"
    if not path.is_file():
        return None
    try:
        return Sidecar.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


@functools.cache
def sources_hash() -> str:
    """Twelve hex digits over the sources that decide what a figure or table looks like."""
    room = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*room.rglob("*.py"), *room.rglob("*.j2")]):
        digest.update(path.relative_to(room).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
