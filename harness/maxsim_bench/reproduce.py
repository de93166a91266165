"""`maxsim-bench reproduce`: what it will do, how long, how much disk; then the steps in order, resuming what is done.

Orchestration beside `cli.py`. May import every room; each step imports what it needs.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field

from maxsim_bench import training_curve
from maxsim_bench.catalogue import experiments
from maxsim_bench.declare.experiment import DeclarationError, Experiment, ProfileName
from maxsim_bench.declare.load import suggest
from maxsim_bench.machine import Machine
from maxsim_bench.planning import duration, outline, size
from maxsim_bench.record.files import HeldError
from maxsim_bench.reporting import Places
from maxsim_bench.run.lock import DeviceBusyError
from maxsim_bench.sweeps import Request, sweep, sweep_lines

# Seconds and bytes on two cores without a GPU, for the announcement: the interpreter's check, encoding and ranking of
# 1 000 docstrings (of each collection), and the report; token embeddings are 384 fp32 numbers each, rows and figures a
# few megabytes.
CHECK_SECONDS, FIDELITY_SECONDS, REPORT_SECONDS = 30.0, 120.0, 60.0
FIDELITY_BYTES, REPORT_BYTES = 300e6, 50e6
CURVE_BYTES = 1e6  # every loss of a training run, as text

Say = Callable[[str], None]


@dataclass
class Step:
    """One thing that reproduce does: what it is, seconds and bytes it is thought to take, and the doing.

    `run` prints by the function it is given and returns whether everything was as declared.
    """

    title: str
    seconds: float
    disk_bytes: float
    run: Callable[[Say], bool] = field(repr=False)


def steps(machine: Machine, places: Places, element: str | None = None) -> list[Step]:
    """What to do on this machine, in order: grids, the interpreter's check where there is no GPU, rankings, report.

    With a GPU the full grids run, without one the smoke grid. `element` keeps what answers one element of the paper (or
    one experiment, by name): what names it, else what its claims are judged by, as those of an abstract are by the rows
    of other elements. Raises `DeclarationError` for an element that nothing answers.
    """
    declared = experiments(places.experiments)
    curves = True
    if element is not None:
        judges = _judges(element, declared, places)
        declared = [e for e in declared if e.name in judges]
        curves = training_curve.EXPERIMENT in judges
    profile: ProfileName = "full" if machine.device == "cuda" else "smoke"
    found: list[Step] = []
    for experiment in declared:
        make = _rankings if experiment.op == "fidelity" else _grid
        step = make(experiment, machine, profile, places)
        if step is None and element is not None:
            step = _nothing(experiment, machine, profile)  # asked for: to leave it out in silence looks like success
        found += [step] if step is not None else []
    found += [_curves(machine, places)] if curves else []
    if machine.device == "cpu" and element is None:
        found.append(Step("fused kernel under the Triton interpreter (correctness only)", CHECK_SECONDS, 0, _interpret))
    found.append(Step("tables, figures, verdicts and the page", REPORT_SECONDS, REPORT_BYTES, _report(places)))
    return found


def _judges(element: str, declared: list[Experiment], places: Places) -> set[str]:
    """Names of the experiments that answer an element; `DeclarationError` where none does, with the reason."""
    named = {e.name for e in declared if element in (e.name, *e.elements)}
    if element in (training_curve.EXPERIMENT, training_curve.ELEMENT):
        named.add(training_curve.EXPERIMENT)
    if named:
        return named
    elements = tomllib.loads((places.experiments / "paper" / "elements.toml").read_text("utf-8"))
    if element not in elements:
        known = {e for d in declared for e in (d.name, *d.elements)} | elements.keys() | {training_curve.EXPERIMENT}
        raise DeclarationError([f"--element {element}: nothing answers it. {suggest(element, sorted(known))}"])
    about = elements[element]
    if "missing" in about:
        command = f" What comes nearest: `{about['command']}`." if "command" in about else ""
        raise DeclarationError([f"--element {element}: not measured, because {about['missing']}.{command}"])
    return _judging(element, places)


def _judging(element: str, places: Places) -> set[str]:
    """Names of the experiments whose rows the claims of an element are judged by."""
    from maxsim_bench.report.claims import read_paper
    from maxsim_bench.report.claims.match import answering

    paper = read_paper(places.experiments / "paper")
    claims = [c for c in paper.claims if c.paper_element == element and not c.superseded]
    measured = [c for c in claims if paper.tolerances[c.metric].name != "arithmetic"]
    found = {name for c in measured for rule, _ in answering(c, paper) for name in rule.rows}
    if not found:
        why = "its numbers follow from sizes alone" if claims else "its authors replaced every number of it"
        command = shlex.join(["maxsim-bench", "claims", "--element", element])
        raise DeclarationError([f"--element {element}: nothing is measured for it: {why}. See `{command}`."])
    return found


def _grid(experiment: Experiment, machine: Machine, profile: ProfileName, places: Places) -> Step | None:
    plan = outline(experiment, machine.key, profile)
    if not plan.planned:
        return None

    def run(say: Say) -> bool:
        request = Request(places.local, places.experiments, (experiment.name,), profile)
        done = sweep(request)
        for line in sweep_lines(done):
            say(line)
        return not done.failed

    title = f"{experiment.name} ({profile}): {len(plan.planned)} cells, {plan.measurements} measurements"
    return Step(title, plan.seconds, 2e3 * plan.measurements, run)


def _nothing(experiment: Experiment, machine: Machine, profile: ProfileName) -> Step:
    cards = ", ".join(card for card in experiment.gpus("paper") if card not in (machine.key, "any"))
    title = f"{experiment.name} ({profile}): nothing to measure, no cell is declared for {machine.key}"
    return Step(f"{title}; there are cells for {cards}" if cards else title, 0, 0, lambda say: True)


def _interpret(say: Say) -> bool:
    from maxsim_bench.interpreted import interpreter_check

    checks = interpreter_check()
    wrong = [check for check in checks if check.problem]
    for check in wrong:
        say(f"{check.shape}: {check.problem}")
    errors = [check.error for check in checks if check.error is not None]
    say(f"{len(checks) - len(wrong)} of {len(checks)} shapes equal the reference, largest error {max(errors):.1e}")
    return not wrong


def _rankings(experiment: Experiment, machine: Machine, profile: ProfileName, places: Places) -> Step | None:
    plan = outline(experiment, machine.key, profile)
    if not plan.planned:
        return None

    def run(say: Say) -> bool:
        from maxsim_bench.fidelity import Request as Audit
        from maxsim_bench.fidelity import audited_lines, fidelity

        done = fidelity(Audit(places.local, places.experiments, profile, tolerant=True), say)
        for line in audited_lines(done):
            say(line)
        return not done.failed

    named = dict.fromkeys(f"{p.cell.dataset}" for p in plan.planned)
    collections = len({(p.cell.dataset, p.cell.split, p.cell.encoder) for p in plan.planned})  # each is encoded
    title = f"nDCG@10 on real text ({', '.join(named)}): {plan.measurements} rankings"
    return Step(title, collections * FIDELITY_SECONDS, collections * FIDELITY_BYTES, run)


def _curves(machine: Machine, places: Places) -> Step:
    """Loss curves of whole runs, which no grid declares: the published ones with a GPU, small ones without."""
    profile = "paper" if machine.device == "cuda" else "smoke"

    def run(say: Say) -> bool:
        try:
            rows = training_curve.run(training_curve.PROFILES[profile], machine, places.local, say)
        except training_curve.CurveError as error:
            say(str(error))
            return False
        say(f"{len(rows)} rows in {places.local / training_curve.EXPERIMENT}.csv")
        return True

    title = f"{training_curve.EXPERIMENT} ({profile}): {len(training_curve.SCORERS)} training runs"
    seconds = training_curve.SECONDS if profile == "paper" else training_curve.SMOKE_SECONDS
    return Step(title, seconds, CURVE_BYTES, run)


def _report(places: Places) -> Callable[[Say], bool]:
    def run(say: Say) -> bool:
        from maxsim_bench.reporting import report_lines, write

        for line in report_lines(write(places, local=True, say=say)):
            say(line)
        return True

    return run


def announcement(machine: Machine, planned: list[Step]) -> list[str]:
    """What will be done, how long it takes here and how much disk it needs."""
    lines = [f"on {machine.name} ({machine.key}, {machine.processors} processors):"]
    for i, step in enumerate(planned, start=1):
        lines.append(f"  {i}. {step.title}" + (f", about {duration(step.seconds)}" if step.seconds else ""))
    seconds, disk = sum(s.seconds for s in planned), sum(s.disk_bytes for s in planned)
    lines.append(f"together about {duration(seconds)} and {size(disk)} of disk; what is finished is not done again")
    return lines


def reproduce(planned: list[Step], say: Say) -> list[str]:
    """Do every step in order; one sentence for each that was not done, or in which something was not as declared.

    A step whose rows, or whose device, another process holds is not done, and the ones after it are: they are of other
    files, and the report is of the rows that there are.
    """
    told = []
    for number, step in enumerate(planned, start=1):
        say(f"{number}/{len(planned)} {step.title}")
        try:
            if not step.run(lambda line: say(f"  {line}")):
                told.append(f"not as declared: {step.title}")
        except (HeldError, DeviceBusyError) as held:
            say(f"  not done: {held}")
            told.append(f"not done: {step.title}. {held} Then run the same command again.")
    return told
