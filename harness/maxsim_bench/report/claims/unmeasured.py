"""Why no row answers a claim, and the command that would measure it.

Room: `report`. May import: declare. Reasons that no grid can tell are data (`[[unmeasured]]` in mapping.toml).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from maxsim_bench.declare.experiment import PROFILES, ProfileName
from maxsim_bench.report.claims.match import allowed, answering, cell_fits, wanted_axes
from maxsim_bench.report.claims.paper import Answering, Claim, Paper, Rule
from maxsim_bench.report.declared import Declared

CARD = "h200"  # whose grids are asked; every grid of the paper's elements is declared for it
_LARGER: tuple[ProfileName, ...] = tuple(p for p in PROFILES if p != "smoke")


@dataclass(frozen=True)
class Reason:
    """Why there is no number, and how to get one; no command where nobody outside can."""

    why: str
    command: str = ""


def reason(claim: Claim, paper: Paper, declared: Declared) -> Reason:
    """What the mapping or the element says, else where a grid declares the cell, else that none does."""
    known = paper.unmeasured(claim)
    if known is not None:
        return Reason(known.why, known.command)
    element = paper.elements[claim.paper_element]
    if element.missing:
        return Reason(element.missing, element.command)
    rules = answering(claim, paper)
    if not rules and claim.backend in paper.mapping.not_measurements:
        return Reason(paper.mapping.not_measurements[claim.backend])
    if not rules:
        stands = f"no backend of this project stands for {claim.backend!r}"
        if any(claim.backend in paper.mapping.backends[rule.backends] for rule in paper.rules(claim)):
            stands += f" in {claim.dtype}"
        return Reason(stands if paper.rules(claim) else f"no experiment here answers {claim.experiment!r}")
    for profile in _LARGER:
        for rule, who in rules:
            found = _declared(claim, paper, rule, who, declared, profile)
            if found is not None:
                return found
    return Reason(f"no grid declares this cell; {', '.join(rules[0][0].rows)} would be its place (docs/adding.md)")


def declared_together(claim: Claim, base: Claim, paper: Paper, declared: Declared) -> bool:
    """Whether the cell that a command for the baseline measures is one of the claim's own backend too."""
    for profile in _LARGER:
        for rule, who in answering(base, paper):
            for experiment in rule.rows:
                for planned in declared.grid(experiment, CARD, profile):
                    if cell_fits(planned.cell, base, rule, who, paper.fill(base)) and any(
                        b in planned.backends for b in allowed(who, base)
                    ):
                        return any(
                            b in planned.backends and cell_fits(planned.cell, claim, r, w, paper.fill(claim))
                            for r, w in answering(claim, paper)
                            for b in allowed(w, claim)
                        )
    return False


def _declared(
    claim: Claim, paper: Paper, rule: Rule, who: Answering, declared: Declared, profile: ProfileName
) -> Reason | None:
    fill = paper.fill(claim)
    for experiment in rule.rows:
        grid = declared.grid(experiment, CARD, profile)
        fits = [planned for planned in grid if cell_fits(planned.cell, claim, rule, who, fill)]
        for backend in allowed(who, claim):
            if any(backend in planned.backends for planned in fits):
                beyond = "no row of it yet" if profile == "paper" else "beyond the profile paper"
                return Reason(
                    f"{backend} is declared for it in {experiment}, {beyond}",
                    _command(claim, rule, who, experiment, profile, backend),
                )
    return None


def _command(claim: Claim, rule: Rule, who: Answering, experiment: str, profile: ProfileName, backend: str) -> str:
    sizes = {axis: getattr(claim, axis) for axis in rule.axes if getattr(claim, axis) is not None}
    fixed = {a: v for a, v in wanted_axes(claim, rule, who).items() if not isinstance(v, dict)}
    words = ["maxsim-bench", "run", experiment, "--profile", profile]
    if not claim.baseline:  # a ratio needs its baseline in the same run
        words += ["--backend", backend]
    for axis, value in {**sizes, **fixed}.items():
        text = ",".join(str(v) for v in value) if isinstance(value, (list, tuple)) else str(value)
        words += ["--where", f"{axis}{text.replace(' ', '')}" if text[:1] in "<>" else f"{axis}={text}"]
    return shlex.join(words)
