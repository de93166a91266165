"""`maxsim-bench selftest`: how often a comparison sees a difference where there is none, or misses one that is there.

Orchestration beside `cli.py`. May import every room; torch only inside functions.

Every try times five builds of one cell in turn, at the default budget: the operator, the operator again, and the
operator slowed down by 2 %, 5 % and 10 %. The second against the first is a comparison of a build with itself, and any
FASTER or SLOWER is a false alarm; a slowed one is found if it comes out SLOWER. Every pair is decided on its own: no
other comparison of the run makes the test stricter, so the rate is that of the worst case.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.headline import Rounds, headline_cells, input_sets, label, scores_inspector, timed_rounds
from maxsim_bench.machine import Machine
from maxsim_bench.measure.clock import Policy
from maxsim_bench.measure.delay import DelayError, delay_of, slowed
from maxsim_bench.measure.statistics import median
from maxsim_bench.measure.timer import Call, TimingBudget

if TYPE_CHECKING:
    from maxsim_bench.report.compare import Rate, Thresholds

FALSE_ALARMS_MOST = 0.02  # upper end of the 95 % interval; 0 of 300 has one of 1.2 %
WANTED = {2.0: 0.50, 5.0: 0.95, 10.0: 0.99}  # injected slow-down in percent → share of tries that must find it
_PROBE = TimingBudget(seconds=0.1, max_samples=200)  # enough to know a time from which percents are taken
_BASE, _AGAIN = "base", "again"


class SelfTestError(RuntimeError):
    """A self-test that cannot say anything."""


@dataclass(frozen=True)
class Power:
    """How often a slow-down was found.

    Attributes:
        percent: that was asked for.
        reached_percent: median over the tries of what was measured.
        found: tries that came out SLOWER.
        wanted: share of tries that must find it.
    """

    percent: float
    reached_percent: float
    found: Rate
    wanted: float

    @property
    def enough(self) -> bool:
        """Whether so many tries found it."""
        return self.found.rate >= self.wanted


@dataclass(frozen=True)
class SelfTest:
    """The record of one self-test.

    Attributes:
        key, gpu: the device as grids and as rows name it.
        cells: shapes that were measured.
        false_alarms: comparisons of the build with itself that came out FASTER or SLOWER.
        power: one entry for each slow-down that could be injected.
        left_out: slow-downs too small to be injected into a cell, with the reason.
        gated: whether missing the goals fails; on a processor they are reported only.
    """

    key: str
    gpu: str
    measured_at: str
    revision: str
    environment_id: str
    budget: TimingBudget
    interleaved_percent: float
    false_discovery_rate: float
    cells: tuple[str, ...]
    false_alarms: Rate
    power: tuple[Power, ...]
    left_out: tuple[str, ...]
    gated: bool

    def missed(self) -> list[str]:
        """What is not as it has to be, in words."""
        found = []
        if self.false_alarms.high > FALSE_ALARMS_MOST:
            found.append(
                f"false alarms may be as frequent as {self.false_alarms.high:.2%}, more than {FALSE_ALARMS_MOST:.0%}"
            )
        for percent in WANTED.keys() - {one.percent for one in self.power}:
            found.append(f"a slow-down of {percent:g} % could not be injected into any cell")
        found += [
            f"a slow-down of {one.percent:g} % was found in {one.found.rate:.1%} of tries, less than {one.wanted:.0%}"
            for one in self.power
            if not one.enough
        ]
        return found

    @property
    def exit_code(self) -> int:
        """1 on a GPU where a goal is missed, else 0."""
        return 1 if self.gated and self.missed() else 0

    def told(self) -> dict[str, Any]:
        """For a program."""
        return {**asdict(self), "missed": self.missed(), "exit_code": self.exit_code}

    def write(self, folder: Path) -> Path:
        """Keep the record as `selftest.json` in `folder`, whole or not at all."""
        from maxsim_bench.record.files import replace_file

        path = folder / "selftest.json"
        replace_file(path, (json.dumps(self.told(), indent=1, ensure_ascii=False) + "\n").encode())
        return path


@dataclass
class _Tally:
    """Ratios and decisions of every try so far."""

    alarms: list[bool] = field(default_factory=list)
    found: dict[float, list[bool]] = field(default_factory=lambda: defaultdict(list))
    ratios: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))

    def take(self, rounds: Rounds, thresholds: Thresholds) -> None:
        from maxsim_bench.report.compare import decide_interleaved

        base = rounds.times_ms[_BASE]
        for name, times in rounds.times_ms.items():
            if name == _BASE:
                continue
            (decided,) = decide_interleaved([(rounds.label, base, times)], thresholds)
            assert decided.effect is not None
            if name == _AGAIN:
                self.alarms.append(decided.decision in ("FASTER", "SLOWER"))
            else:
                self.found[float(name)].append(decided.decision == "SLOWER")
                self.ratios[float(name)].append(decided.effect.ratio)

    def power(self, percent: float) -> Power:
        from maxsim_bench.report.compare import rate

        hits = self.found[percent]
        reached = 100 * (median(self.ratios[percent]) - 1)
        return Power(percent, reached, rate(sum(hits), len(hits)), WANTED.get(percent, 0.99))


def selftest(
    tries: int,
    thresholds: Thresholds,
    *,
    machine: Machine,
    cells: Sequence[Cell] | None = None,
    percents: Sequence[float] = tuple(WANTED),
    budget: TimingBudget = TimingBudget(),  # noqa: B008  # frozen
    say: Callable[[str], None] = lambda line: None,
) -> SelfTest:
    """Compare the operator with itself and with slowed-down copies, `tries` times on each cell.

    Args:
        tries: at least 1.
        cells: by default the headline cells of the device.
        percents: slow-downs to inject.
        say: told about every cell.

    Raises:
        SelfTestError: for fewer than one try or no cell.
        BuildError: where the operator fails or is wrong.
        DeviceBusyError: while another run measures.
    """
    from maxsim_bench.measure import clock, environment
    from maxsim_bench.report.compare import rate
    from maxsim_bench.run.lock import device_lock
    from maxsim_bench.run.session import device_key

    cells = headline_cells(machine) if cells is None else cells
    if tries < 1 or not cells:
        raise SelfTestError(f"{tries} tries on {len(cells)} cells: nothing to count. Ask for --aa 1 at least.")
    facts = environment.capture(machine.device)
    tally, left_out = _Tally(), []
    with device_lock(device_key(machine.device), machine.name):
        for cell in cells:
            say(f"{label(cell)}, {tries} ×")
            left_out += _on_cell(cell, tries, percents, thresholds, machine.device, budget, tally)
    return SelfTest(
        key=machine.key, gpu=machine.name, measured_at=clock.utc_now(), revision=str(facts["git_commit"]),
        environment_id=environment.environment_id(facts), budget=budget,
        interleaved_percent=thresholds.interleaved_percent, false_discovery_rate=thresholds.false_discovery_rate,
        cells=tuple(label(cell) for cell in cells), false_alarms=rate(sum(tally.alarms), len(tally.alarms)),
        power=tuple(tally.power(p) for p in percents if tally.found[p]), left_out=tuple(left_out),
        gated=machine.device == "cuda",
    )  # fmt: skip


def _on_cell(
    cell: Cell,
    tries: int,
    percents: Sequence[float],
    thresholds: Thresholds,
    device: str,
    budget: TimingBudget,
    tally: _Tally,
) -> list[str]:
    """All tries on one cell; the slow-downs that it could not be given, with the reason."""
    from maxsim_bench.backends.registry import get

    sets = input_sets(cell, device)
    inspect = scores_inspector(cell, sets)
    calls: dict[str, list[Call]] = {
        name: [get("fused").prepare(cell, inputs) for inputs in sets] for name in (_BASE, _AGAIN)
    }
    probe = timed_rounds(cell, {_BASE: calls[_BASE]}, device, _PROBE, inspect)
    base_ms = median(probe.times_ms[_BASE])
    policy: Policy = cell.timing_policy or "cold_l2"
    left_out = []
    for percent in percents:
        try:
            amount = delay_of(calls[_BASE], base_ms * percent / 100, policy, device, _PROBE)
        except DelayError as error:
            left_out.append(f"{percent:g} % on {label(cell)}: {error}")
        else:
            calls[f"{percent:g}"] = slowed(calls[_BASE], amount, device)
    for number in range(tries):
        seeded = TimingBudget(**{**asdict(budget), "seed": budget.seed + number})
        tally.take(timed_rounds(cell, calls, device, seeded, inspect), thresholds)
    return left_out


def selftest_lines(done: SelfTest) -> list[str]:
    """A table for a reader, and what is not as it has to be."""
    alarms = done.false_alarms
    lines = [
        f"{done.gpu}: {len(done.cells)} cells, difference that matters {done.interleaved_percent:g} %",
        f"{'injected':>9} {'measured':>9} {'tries':>6} {'seen':>6} {'rate':>8}  95 % interval      goal",
        f"{'none':>9} {'':>9} {_counted(alarms)}  upper end ≤ {FALSE_ALARMS_MOST:.0%}",
    ]
    for one in done.power:
        lines.append(
            f"{f'{one.percent:g} %':>9} {f'{one.reached_percent:.2f} %':>9} {_counted(one.found)}  ≥ {one.wanted:.0%}"
        )
    lines += [f"left out: {reason}" for reason in done.left_out]
    missed = done.missed()
    if not missed:
        return [*lines, "every goal is met"]
    told = "not as it has to be" if done.gated else "on a GPU this would fail"
    return [*lines, *(f"{told}: {reason}" for reason in missed)]


def _counted(rate: Rate) -> str:
    interval = f"{rate.low:.2%} to {rate.high:.2%}"
    return f"{rate.tries:>6} {rate.hits:>6} {rate.rate:>8.2%}  {interval:<17}"
