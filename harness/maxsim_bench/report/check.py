"""Whether everything committed below figures/ and in the README still follows from results/.

Room: `report`. May import: record, declare. Data is compared, not bytes: fonts and versions of matplotlib move
pixels, results do not. A figure's files carry the hash of what they plot, so a file that
shows something else is seen too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from maxsim_bench.report.build import PAGE, Places, Report, compose, sidecars_below
from maxsim_bench.report.elements import Artefact
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.origins import origins
from maxsim_bench.report.page import page_hash, stored_page_hash
from maxsim_bench.report.readme import current_block, readme_block
from maxsim_bench.report.sidecar import read_sidecar, sidecar_of

REMEDY = "Run `make report` and commit what it writes."


def check(roots: Sequence[Path], out: Path, *, places: Places | None = None, readme: Path | None = None) -> list[str]:
    """What no longer follows from the rows, and rows that contradict their own samples, one sentence each; else empty.

    Raises:
        ReportError, StoreError: for data that cannot be read.
    """
    report = compose(roots, places or Places())
    found = [*report.results.contradictions, *_stale(report, out)]
    expected = {artefact.name for artefact in report.artefacts}
    found += [
        f"{path}: nothing in the results makes this any more"
        for n, path in sidecars_below(out).items()
        if n not in expected
    ]
    if stored_page_hash(out / PAGE) != page_hash(report.artefacts):
        found.append(f"{out / PAGE}: does not show these results")
    rows = origins(report.results, report.ledger, report.declared, out)
    found += [
        f"{out / name}: does not show these rows"
        for name, text in rows.texts()
        if not (out / name).is_file() or (out / name).read_text(encoding="utf-8") != text
    ]
    if readme is not None and current_block(readme) != readme_block(
        report.results, report.artefacts, report.ledger, out.name
    ):
        found.append(f"{readme}: the generated block does not follow from the results")
    return found


def _stale(report: Report, out: Path) -> Iterator[str]:
    for artefact in report.artefacts:
        path = out / artefact.name
        sidecar = read_sidecar(out, artefact.name)
        if sidecar is None:
            yield f"{path}.json: not there"
            continue
        if sidecar.data_sha256 != artefact.data_hash():
            yield f"{path}: shows other data than the results give"
            continue
        wanted = sidecar_of(artefact, report.results.paths, ())
        if sidecar.provenance.inputs != wanted.provenance.inputs:
            yield f"{path}.json: names other CSVs, or other versions of them, than it follows from"
        yield from _stale_files(artefact, path)


def _stale_files(artefact: Artefact, path: Path) -> Iterator[str]:
    texts = {"csv": artefact.csv()} if isinstance(artefact, Figure) else artefact.texts()
    for suffix, text in texts.items():
        file = path.with_name(f"{path.name}.{suffix}")
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            yield f"{file}: is not what the results give"
    if isinstance(artefact, Figure):
        mark = f"data sha256:{artefact.data_hash()}".encode()
        for suffix in ("pdf", "png"):
            file = path.with_name(f"{path.name}.{suffix}")
            if not file.is_file() or mark not in file.read_bytes():
                yield f"{file}: does not plot these data"
