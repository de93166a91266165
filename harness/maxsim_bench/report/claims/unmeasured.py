"""Why no row answers a claim, and the command that would measure it.

Room: `report`. May import: declare. Reasons that no grid can tell are data (`[[unmeasured]]` in mapping.toml).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from maxsim_bench.declare.experiment import PROFILES, Planned, ProfileName
from maxsim_bench.declare.select import Filters, where_text
from maxsim_bench.report.claims.match import allowed, answering, cell_fits, wanted_axes
from maxsim_bench.report.claims.paper import Answering, Claim, Fill, Paper, Rule
from maxsim_bench.report.declared import Declared

CARD = "h200"  # whose grids are asked; every grid of the paper's elements is declared for it
_LARGER: tuple[ProfileName, ...] = tuple(p for p in PROFILES if p != "smoke")


@dataclass(frozen=True)
class Reason:
    """Why there is no number, and how to get one; no command where nobody outside can."""

    why: str
    command: str = ""


def reason(claim: Claim, paper: Paper, declared: Declared, gpus: int = 1) -> Reason:
    """What the mapping or the element says, else where a grid declares the cell, else that none does.

    Args:
        gpus: most that rows here were measured on together; a cell that takes more says so first.
    """
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
    # What is divided by a baseline is measured with it, in a profile that has both on a cell if there is one.
    for together in (True, False) if claim.baseline else (False,):
        for profile in _LARGER:
            for rule, who in rules:
                found = _declared(claim, paper, rule, who, declared, profile, gpus, together=together)
                if found is not None:
                    return found
    return Reason(f"no grid declares this cell; {', '.join(rules[0][0].rows)} would be its place (docs/adding.md)")


def covering(commands: Iterable[str]) -> str:
    """One command for each experiment and profile that covers all of these: with the options that they share.

    It may measure more than they do, never less. Empty without a command.
    """
    found: dict[tuple[str, ...], list[list[tuple[str, ...]]]] = {}
    for command in dict.fromkeys(filter(None, commands)):
        words = shlex.split(command)
        begin = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
        options: list[tuple[str, ...]] = []
        for word in words[begin:]:
            if word.startswith("--"):
                options.append((word,))
            else:
                options[-1] += (word,)
        profile = tuple(word for option in options if option[0] == "--profile" for word in option)
        rest = [option for option in options if option[0] != "--profile"]
        found.setdefault((*words[:begin], *profile), []).append(rest)
    told = []
    for head, several in found.items():
        shared = [option for option in several[0] if all(option in other for other in several)]
        told.append(shlex.join([*head, *(word for option in shared for word in option)]))
    return "; ".join(told)


def declared_together(claim: Claim, base: Claim, paper: Paper, declared: Declared) -> bool:
    """Whether the cell that a command for the baseline measures is one of the claim's own backend too."""
    for profile in _LARGER:
        for rule, who in answering(base, paper):
            for experiment in rule.rows:
                for planned in declared.grid(experiment, CARD, profile):
                    if cell_fits(planned.cell, base, rule, who, paper.fill(base)) and any(
                        b in planned.backends for b in allowed(who, base)
                    ):
                        return _has(planned, claim, paper)
    return False


def _has(planned: Planned, claim: Claim, paper: Paper) -> bool:
    """Whether a backend that answers the claim is declared for it on this cell."""
    return any(
        b in planned.backends and cell_fits(planned.cell, claim, rule, who, paper.fill(claim))
        for rule, who in answering(claim, paper)
        for b in allowed(who, claim)
    )


def _declared(
    claim: Claim, paper: Paper, rule: Rule, who: Answering, declared: Declared, profile: ProfileName, gpus: int,
    *, together: bool,
) -> Reason | None:  # fmt: skip
    fill = paper.fill(claim)
    for experiment in rule.rows:
        grid = declared.grid(experiment, CARD, profile)
        fits = [planned for planned in grid if cell_fits(planned.cell, claim, rule, who, fill)]
        if together:
            fits = [planned for planned in fits if _has(planned, paper.baseline(claim), paper)]
        for backend in allowed(who, claim):
            able = [planned.cell for planned in fits if backend in planned.backends]
            if able:
                takes = min(cell.ranks for cell in able)
                first = f"needs {takes} GPUs of one host: " if takes > gpus else ""
                beyond = "no row of it yet" if profile == "paper" else "beyond the profile paper"
                return Reason(
                    f"{first}{backend} is declared for it in {experiment}, {beyond}",
                    _command(claim, rule, who, fill, experiment, profile, backend),
                )
    return None


def _command(
    claim: Claim, rule: Rule, who: Answering, fill: Fill | None, experiment: str, profile: ProfileName, backend: str
) -> str:
    sizes = {axis: getattr(claim, axis) for axis in rule.axes if getattr(claim, axis) is not None}
    wanted = {**(fill.when if fill is not None else {}), **wanted_axes(claim, rule, who)}
    fixed = {a: v for a, v in wanted.items() if not isinstance(v, dict)}
    where = tuple(where_text(axis, value) for axis, value in {**sizes, **fixed}.items())
    measured = () if claim.baseline else (backend,)  # a ratio needs its baseline in the same run
    return Filters(where, measured).command([experiment], profile)
