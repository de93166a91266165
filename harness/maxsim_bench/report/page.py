"""One HTML page with everything on it: it opens without a server and loads only the pictures that lie beside it.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from maxsim_bench.record.environments import session_of
from maxsim_bench.report import names
from maxsim_bench.report.claims import Ledger
from maxsim_bench.report.declared import Declared, measuring
from maxsim_bench.report.elements import Artefact
from maxsim_bench.report.figures import Figure
from maxsim_bench.report.load import Results
from maxsim_bench.report.origins import Origins
from maxsim_bench.report.sidecar import Sidecar
from maxsim_bench.report.tables import templates

LONG = 12  # lines of a table that is shown at once; longer ones open on a click
_REASON = 160  # characters of why a row failed
# Groups with a place of their own on the page; the others are experiments.
_OWN_PLACES = ("summary", "goals", "claims", "losses")
_META = re.compile(r'<meta name="data-sha256" content="([0-9a-f]{64})">')
_ENVIRONMENT = (
    "gpu", "gpu_memory_bytes", "driver", "cuda", "torch", "triton", "cpu", "cpu_threads", "gpu_power_limit_w",
)  # fmt: skip

PROTOCOL = (
    "Inputs are random unit vectors drawn once a cell from its seed, the same tensors for every backend; casting, "
    "padding and quantising happen before the timed region on every side. Backends of a cell are timed by CUDA "
    "events in random interleaved order, with the L2 overwritten before each sample unless a policy says "
    "otherwise; sampling stops when the 95 % interval of the median is within 1 % or a cap is reached. A speed-up "
    "is the median of paired ratios. Memory is measured in a pass of its own with nothing else alive. Every "
    "output is compared with the FP32 reference before timing and again on what timing produced; a wrong backend "
    "has no time. The ceiling is what the same timer reached in the same session in matrix products and streaming "
    "reads, and in copies to the device where documents lie in host memory. The full text is docs/measurement.md."
)


@dataclass(frozen=True)
class Page:
    """What the page shows."""

    results: Results
    artefacts: Sequence[Artefact]
    sidecars: Sequence[Sidecar]
    ledger: Ledger
    declared: Declared
    origins: Origins


def page_hash(made: Sequence[Artefact]) -> str:
    """SHA-256 over the data of everything that the page shows."""
    return hashlib.sha256("\n".join(f"{a.name} {a.data_hash()}" for a in made).encode()).hexdigest()


def stored_page_hash(path: Path) -> str | None:
    """The hash that a page carries, None without a page."""
    found = _META.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else None


def write_page(page: Page, path: Path) -> Path:
    """Render the page into the folder where its figures were written before."""
    shown = [_shown(a, s) for a, s in zip(page.artefacts, page.sidecars, strict=True)]
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in shown:
        groups.setdefault(entry["name"].split("/")[0], []).append(entry)
    titles, covered = coverage(page.results, page.declared)
    frame = page.results.frame
    measured = set(frame["experiment"])  # some have no table of their own: goals and claims alone speak of their rows
    html = templates().get_template("page.html.j2").render(
        digest=page_hash(page.artefacts),
        groups={name: groups.get(name, []) for name in sorted(measured | groups.keys()) if name not in _OWN_PLACES},
        titles=titles,
        summary=groups.get("summary", []),
        goals=groups.get("goals", []),
        losses=groups.get("losses", []),
        claims=[entry for entry in groups.get("claims", []) if entry["name"] != "claims/ledger"],
        counts=page.ledger.counts(),
        basis=page.ledger.basis(),
        elements=_elements(page.ledger),
        statuses=frame.groupby(["device", "status"]).size().unstack(fill_value=0),
        card=names.card,
        environments=environments(page.results),
        failures=failures(frame),
        warnings=page.results.warnings,
        coverage=covered,
        protocol=PROTOCOL,
        rows=len(frame),
        measured=len(page.results.measured),
        link=page.origins.link,
        page_of=page.origins.page_of,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


def _shown(artefact: Artefact, sidecar: Sidecar) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": artefact.name, "title": artefact.title, "caption": artefact.caption, "element": artefact.element,
        "inputs": sidecar.provenance.inputs, "command": sidecar.provenance.command,
    }  # fmt: skip
    if isinstance(artefact, Figure):
        return {**entry, "kind": "figure"}
    cells = artefact.cells()
    return {**entry, "kind": "table", "columns": artefact.columns, "cells": cells, "long": len(cells) > LONG}


def environments(results: Results) -> list[dict[str, Any]]:
    """What each environment that a row names was, oldest row first, and its sessions of rows, alike ones once."""
    frame = results.frame
    found = []
    for identity in dict.fromkeys(frame["environment_id"].dropna()):
        facts = results.environments.get(identity, {})
        rows = frame[frame["environment_id"] == identity]
        of = [session_of(facts, at) for at in rows["measured_at"]]
        sessions = [(s, of.count(s)) for s in facts.get("sessions", []) if s in of]
        known = {k: facts[k] for k in _ENVIRONMENT if k in facts}
        told = _alike([_session(*s) for s in sessions])
        found.append({"id": identity, "rows": len(rows), "facts": known, "sessions": told})
    return found


def _alike(sessions: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Sessions that differ in nothing but when they began and how many rows they gave, as one with the rows of all.

    Every sweep of a command is a session, and all of them share the ceilings that the command measured once.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for session in sessions:
        groups.setdefault(tuple(session[name] for name in ("commit", "reached", "packages")), []).append(session)
    found = []
    for group in groups.values():
        more = f" and {len(group) - 1} more until {group[-1]['began']}" if len(group) > 1 else ""
        rows = sum(int(session["rows"]) for session in group)
        found.append({**group[0], "began": group[0]["began"] + more, "rows": str(rows)})
    return found


def _session(facts: dict[str, Any], rows: int) -> dict[str, str]:
    """A session in words: when it began, rows of it, the checkout, what the card reached, and the packages."""
    ceilings = facts.get("ceilings")
    reached = ""
    if isinstance(ceilings, dict):
        rates = {f"{unit} products [TFLOP/s]": rate for unit, rate in (ceilings.get("matmul_tflops") or {}).items()}
        rates["read [GB/s]"] = ceilings.get("read_gbs")
        rates["copy from host memory [GB/s]"] = ceilings.get("host_copy_gbs")
        reached = ", ".join(f"{name} {rate:.4g}" for name, rate in rates.items() if rate)
    packages = {"python": facts.get("python"), **facts.get("packages", {})}
    return {
        "began": str(facts.get("captured_at") or "not recorded"),
        "rows": str(rows),
        "commit": str(facts.get("git_commit", ""))[:12] + (", changed since" if facts.get("git_dirty") is True else ""),
        "reached": reached or "not measured",
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
    }


def failures(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows without a number, equal ones counted: which backend, what happened, why, on how many cells."""
    failed = frame[~frame["status"].isin(("ok", "unsupported"))]
    if failed.empty:
        return []
    reason = failed["error"].fillna("").map(lambda text: shortened(text, _REASON))
    grouped = failed.assign(reason=reason).groupby(["device", "experiment", "backend", "status", "reason"], sort=True)
    return [
        {"device": d, "experiment": e, "backend": names.backend(str(b)), "status": s, "reason": r, "cells": len(rows),
         "cell": rows["cell_hash"].iloc[0]}
        for (d, e, b, s, r), rows in grouped
    ]  # fmt: skip


def shortened(text: str, most: int) -> str:
    """A text by its beginning, which ends with a sentence or else a word, and says so where more follows."""
    if len(text) <= most:
        return text
    start = text[: most - 2]
    ends = [found.end() for found in re.finditer(r"[.!?;](?=\s)", start) if found.end() > most // 3]
    cut = start[: ends[-1]] if ends else (start if text[most - 2].isspace() else start.rpartition(" ")[0] or start)
    return f"{cut.rstrip()} …"


def _elements(verdicts: Ledger) -> list[dict[str, Any]]:
    """Claims by element, superseded ones left to the CSV."""
    found: dict[str, dict[str, Any]] = {}
    for entry in verdicts.entries:
        if entry.verdict == "superseded":
            continue
        element = verdicts.paper.elements[entry.element]
        found.setdefault(entry.element, {"name": entry.element, "element": element, "entries": []})["entries"].append(
            entry
        )
    return list(found.values())


def coverage(results: Results, declared: Declared) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Titles of what can be measured; and by experiment and card how many cells have rows, and what measures the rest.

    A row may say why there is no number, and answers its cell as well. A cell is refused if all of its rows say that a
    backend does not take it: running it again gives no number. What a command measures is declared nowhere, so its
    number of cells is None, and it is left where it has no row at all.
    """
    frame = results.frame
    refused = frame["status"] == "unsupported"
    answered = set(frame.loc[~refused, "cell_hash"])
    only_refused = set(frame.loc[refused, "cell_hash"]) - answered
    cards = sorted(set(frame["device"]))
    lines: list[dict[str, Any]] = []
    for experiment in declared.experiments.values():
        for card in dict.fromkeys([*(c for c in experiment.gpus("paper") if c != "any"), *cards]):
            hashes = {planned.cell.hash() for planned in declared.grid(experiment.name, card, "paper")}
            if hashes:
                done, without = len(hashes & answered), len(hashes & only_refused)
                lines.append(
                    {
                        "experiment": experiment.name, "card": card, "cells": len(hashes), "done": done,
                        "refused": without, "left": done + without < len(hashes),
                        "command": measuring(experiment, "paper"),
                    }
                )  # fmt: skip
    for name, command in names.COMMANDS.items():
        rows = frame[(frame["experiment"] == name) & ~refused]
        for card in sorted(set(rows["device"])) or cards:
            done = int(rows.loc[rows["device"] == card, "cell_hash"].nunique())
            lines.append(
                {
                    "experiment": name, "card": card, "cells": None, "done": done, "refused": 0, "left": not done,
                    "command": command.line,
                }
            )  # fmt: skip
    titles = {name: command.title for name, command in names.COMMANDS.items()}
    return titles | {e.name: e.title for e in declared.experiments.values()}, sorted(
        lines, key=lambda line: str(line["experiment"])
    )
