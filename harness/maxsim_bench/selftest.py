"""`maxsim-bench selftest`: how often a comparison sees a difference where there is none, or misses one that is there.

Orchestration beside `cli.py`. May import every room; torch only inside functions.

Every try times five builds of one cell in turn, at the default budget: the operator, the operator again, and the
operator slowed down by 2 %, 5 % and 10 %. `report.compare.audit` decides them as it decides for users, and counts.
Tries go round the cells, so that a self-test whose time is up has tried all of them about equally often.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from maxsim_bench.declare.cell import Cell
from maxsim_bench.headline import Inspect, headline_cells, input_sets, label, scores_inspector, timed_rounds
from maxsim_bench.machine import Machine
from maxsim_bench.measure.clock import Policy
from maxsim_bench.measure.delay import DelayError, delay_scale, slowed
from maxsim_bench.measure.timer import Call, TimingBudget
from maxsim_bench.report.compare.audit import AGAIN, BASE, FALSE_ALARMS_MOST, WANTED, SelfTest, Try, Way, audited

if TYPE_CHECKING:
    from maxsim_bench.report.compare import Rate, Thresholds

# Percents of a call are calibrated on this: 2 % of it must not drown in the error of its own measurement.
_CALIBRATION = TimingBudget(seconds=0.2, width_percent=0.2, max_samples=1000)


class SelfTestError(RuntimeError):
    """A self-test that cannot say anything."""


@dataclass(frozen=True)
class _Builds:
    """The builds of one cell, ready to be called, and the slow-downs that it could not be given, with the reason."""

    cell: Cell
    calls: dict[str, list[Call]]
    inspect: Inspect
    left_out: tuple[str, ...]


def selftest(
    tries: int,
    thresholds: Thresholds,
    *,
    machine: Machine,
    cells: Sequence[Cell] | None = None,
    percents: Sequence[float] = tuple(WANTED),
    budget: TimingBudget = TimingBudget(),  # noqa: B008  # frozen
    within_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[SelfTest, list[Try]]:
    """Compare the operator with itself and with slowed-down copies, `tries` times on each cell.

    Args:
        tries: at least 2, because two sessions are compared too.
        cells: by default the headline cells of the device.
        percents: slow-downs to inject.
        within_s: seconds after which no further try begins; when that is does not depend on what was found.
        say: told about the cells and the count.

    Returns:
        The record, and the raw times that it counts.

    Raises:
        SelfTestError: for fewer than two tries or no cell, or where the time allowed fewer.
        BuildError: where the operator fails or is wrong.
        DeviceBusyError: while another run measures.
    """
    from maxsim_bench.measure import clock, environment
    from maxsim_bench.run.lock import device_lock
    from maxsim_bench.run.session import device_key

    cells = headline_cells(machine) if cells is None else cells
    if tries < 2 or not cells:
        raise SelfTestError(f"{tries} tries on {len(cells)} cells: nothing to compare. Ask for --aa 2 at least.")
    began = clock.seconds()
    facts = environment.capture(machine.device)
    with device_lock(device_key(machine.device), machine.name), _settled_collector():
        builds = [_prepared(cell, percents, machine.device, budget, say) for cell in cells]
        deadline = None if within_s is None else began + within_s
        taken = list(_taken(builds, tries, machine.device, budget, deadline))
    if len(taken) < 2 * len(cells):
        raise SelfTestError(f"{within_s:g} seconds were enough for {len(taken)} tries only. Allow more with --within.")
    say(f"{len(taken)} tries in {clock.seconds() - began:.0f} s; deciding")
    done = SelfTest(
        key=machine.key, gpu=machine.name, measured_at=clock.utc_now(), revision=str(facts["git_commit"]),
        environment_id=environment.environment_id(facts), budget=asdict(budget),
        false_discovery_rate=thresholds.false_discovery_rate, cells=tuple(label(cell) for cell in cells),
        ways=audited(taken, thresholds), left_out=tuple(why for one in builds for why in one.left_out),
        gated=machine.device == "cuda", seconds=clock.seconds() - began,
    )  # fmt: skip
    return done, taken


@contextmanager
def _settled_collector() -> Iterator[None]:
    """Leave what is alive now out of the collections before every timing: torch's modules take 0.1 s each time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _prepared(
    cell: Cell, percents: Sequence[float], device: str, budget: TimingBudget, say: Callable[[str], None]
) -> _Builds:
    """The builds of a cell, checked once against the reference and calibrated once."""
    from maxsim_bench.backends.registry import get

    say(f"{label(cell)}: preparing")
    sets = input_sets(cell, device)
    inspect = scores_inspector(cell, sets)
    calls: dict[str, list[Call]] = {
        name: [get("fused").prepare(cell, inputs) for inputs in sets] for name in (BASE, AGAIN)
    }
    policy: Policy = cell.timing_policy or "cold_l2"
    timed_rounds(cell, calls, device, replace(budget, seconds=0.02), inspect)  # compiles, and fails early where wrong
    scale = delay_scale(calls[BASE], policy, device, _CALIBRATION)
    left_out = []
    for percent in percents:
        try:
            amount = scale.amount(scale.bare_ms * percent / 100)
        except DelayError as error:
            left_out.append(f"{percent:g} % on {label(cell)}: {error}")
        else:
            calls[f"{percent:g}"] = slowed(calls[BASE], amount, device)
    return _Builds(cell, calls, inspect, tuple(left_out))


def _taken(
    builds: Sequence[_Builds], tries: int, device: str, budget: TimingBudget, deadline: float | None
) -> Iterator[Try]:
    """Try after try, each round all cells, until there are enough or the time is up."""
    from maxsim_bench.measure import clock

    for number in range(tries):
        for one in builds:
            if deadline is not None and clock.seconds() >= deadline:
                return
            seeded = replace(budget, seed=budget.seed + number)
            rounds = timed_rounds(one.cell, one.calls, device, seeded, one.inspect)
            yield Try(rounds.label, number, rounds.times_ms)


def selftest_lines(done: SelfTest) -> list[str]:
    """A table for a reader, and what is not as it has to be."""
    lines = [f"{done.gpu}: {len(done.cells)} cells, {done.seconds:.0f} s"]
    for way in done.ways:
        lines += _way_lines(way, gated=way is done.ways[0])
    lines += [f"left out: {reason}" for reason in done.left_out]
    missed = done.missed()
    if not missed:
        return [*lines, "every goal is met"]
    told = "not as it has to be" if done.gated else "on a GPU this would fail"
    return [*lines, *(f"{told}: {reason}" for reason in missed)]


def _way_lines(way: Way, *, gated: bool) -> list[str]:
    goal = f"  upper end ≤ {FALSE_ALARMS_MOST:.0%}" if gated else ""
    lines = [
        f"{way.name}, a difference matters from {way.margin_percent:g} %",
        f"{'injected':>9} {'measured':>9} {'tries':>6} {'seen':>6} {'rate':>8}  95 % interval      goal",
        f"{'none':>9} {'':>9} {_rate_text(way.false_alarms)}{goal}",
    ]
    for one in way.power:
        wanted = "" if one.wanted is None else f"  ≥ {one.wanted:.0%}"
        lines.append(f"{f'{one.percent:g} %':>9} {f'{one.reached_percent:.2f} %':>9} {_rate_text(one.found)}{wanted}")
    return [line.rstrip() for line in lines]


def _rate_text(rate: Rate) -> str:
    interval = f"{rate.low:.2%} to {rate.high:.2%}"
    return f"{rate.tries:>6} {rate.hits:>6} {rate.rate:>8.2%}  {interval:<17}"
