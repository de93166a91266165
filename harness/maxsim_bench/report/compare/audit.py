"""How far comparisons can be trusted: raw times of a build, of itself again and of slowed-down copies → rates.

Room: `report`. May import: record, declare. Every try is decided by the code that decides for users, in each way that
there is: `decide_interleaved` on builds that took turns, which is what `compare --rev` does, and `compare_runs` on the
times of two sessions, and on their round-by-round ratios to a baseline, which is what `compare BASE NEW` does with two
stores. Each comparison is decided on its own: no other one of a run makes the test stricter, so a rate is that of the
worst case.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from maxsim_bench.record.files import replace_file
from maxsim_bench.record.samples import append_samples, read_samples, samples_path
from maxsim_bench.report.compare.compare import compare_runs, decide_interleaved
from maxsim_bench.report.compare.decide import Decided
from maxsim_bench.report.compare.sources import Measured, Run
from maxsim_bench.report.compare.statistics import Rate, rate
from maxsim_bench.report.compare.thresholds import Thresholds
from maxsim_bench.report.load import ReportError

FALSE_ALARMS_MOST = 0.02  # upper end of the 95 % interval; 0 of 300 has one of 1.2 %, 5 of 600 one of 1.9 %
FEWEST_COMPARISONS = 300
WANTED = {2.0: 0.50, 5.0: 0.95, 10.0: 0.99}  # injected slow-down in percent → share of tries that must find it
BASE, AGAIN = "base", "again"
_RECORD, _SAMPLES = "selftest.json", "selftest.csv"

WayName = Literal["interleaved", "times of two sessions", "ratios of two sessions"]
_METRICS: dict[WayName, str] = {"times of two sessions": "latency_ms", "ratios of two sessions": "speedup"}


@dataclass(frozen=True)
class Try:
    """One interleaved run on one cell: milliseconds of each build, entry i of every list from the same round.

    `times_ms` holds "base", "again" and, for every slow-down, its percent as a string.
    """

    cell: str
    number: int
    times_ms: Mapping[str, Sequence[float]]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Power(_Frozen):
    """How often a slow-down was found: SLOWER, of all tries.

    Attributes:
        percent: that was asked for.
        reached_percent: median over the tries of what was measured.
        wanted: share of tries that must find it, None where that is reported only.
    """

    percent: float
    reached_percent: float
    found: Rate
    wanted: float | None

    @property
    def enough(self) -> bool:
        """Whether so many tries found it as must."""
        return self.wanted is None or self.found.rate >= self.wanted


class Way(_Frozen):
    """One way of comparing, audited.

    Attributes:
        margin_percent: how far the ratio may lie from 1 before it matters.
        false_alarms: comparisons of the build with itself that came out FASTER or SLOWER.
        undecided: of those, the ones that came out UNDECIDED.
        power: one entry for each slow-down that was injected.
    """

    name: WayName
    margin_percent: float
    false_alarms: Rate
    undecided: int
    power: tuple[Power, ...]


class SelfTest(_Frozen):
    """The record of one self-test.

    Attributes:
        key, gpu: the device as grids and as rows name it.
        budget: of every timing, as the timer names its parts.
        cells: shapes that were measured.
        ways: "interleaved" first: the one that the goals speak of.
        left_out: slow-downs too small to be injected into a cell, with the reason.
        gated: whether missing the goals fails; on a processor they are reported only.
        seconds: the whole self-test took.
    """

    key: str
    gpu: str
    measured_at: str
    revision: str
    environment_id: str
    budget: dict[str, float]
    false_discovery_rate: float
    cells: tuple[str, ...]
    ways: tuple[Way, ...]
    left_out: tuple[str, ...]
    gated: bool
    seconds: float

    def missed(self) -> list[str]:
        """What is not as it has to be of builds that took turns, in words."""
        way = self.ways[0]
        found = []
        if way.false_alarms.tries < FEWEST_COMPARISONS:
            found.append(f"{way.false_alarms.tries} comparisons are fewer than {FEWEST_COMPARISONS}")
        if way.false_alarms.high > FALSE_ALARMS_MOST:
            found.append(
                f"false alarms may be as frequent as {way.false_alarms.high:.2%}, more than {FALSE_ALARMS_MOST:.0%}"
            )
        for percent in sorted(WANTED.keys() - {one.percent for one in way.power}):
            found.append(f"a slow-down of {percent:g} % could not be injected into any cell")
        found += [
            f"a slow-down of {one.percent:g} % was found in {one.found.rate:.1%} of tries, less than {one.wanted:.0%}"
            for one in way.power
            if one.wanted is not None and not one.enough
        ]
        return found

    @property
    def exit_code(self) -> int:
        """1 on a GPU where a goal is missed, else 0."""
        return 1 if self.gated and self.missed() else 0

    def told(self) -> dict[str, Any]:
        """For a program."""
        return {**self.model_dump(mode="json"), "missed": self.missed(), "exit_code": self.exit_code}

    def write(self, folder: Path, tries: Iterable[Try]) -> Path:
        """Keep the record as `selftest.json` in `folder`, whole or not at all, and the raw times beside it."""
        samples_path(folder / _SAMPLES).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        append_samples(folder / _SAMPLES, {f"{t.cell}/{t.number}": {"ms": dict(t.times_ms)} for t in tries})
        path = folder / _RECORD
        text = json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
        replace_file(path, text.encode())
        return path


def read_selftest(path: Path) -> SelfTest:
    """A record as `SelfTest.write` leaves it.

    Raises:
        ReportError: naming the file and what is wrong.
    """
    try:
        return SelfTest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        raise ReportError(f"{path}: no record of a self-test: {told}. Measure it again.") from None


def read_tries(folder: Path) -> list[Try]:
    """The raw times beside a record; none where they were not kept."""
    found = []
    for key, kept in read_samples(folder / _SAMPLES).items():
        cell, _, number = key.rpartition("/")
        found.append(Try(cell, int(number), kept["ms"]))
    return found


def audited(tries: Sequence[Try], thresholds: Thresholds) -> tuple[Way, ...]:
    """Every comparison that the tries hold, decided and counted, in every way.

    Two sessions are the tries 0 and 1 of a cell, 2 and 3, and so on, none in two comparisons: the build in the first
    against it, or against what was slowed down, in the second. Its ratio is to "base" of the same session.

    Raises:
        ValueError: for no try, or none with a neighbour.
    """
    turns = [
        (name, decide_interleaved([(one.cell, one.times_ms[BASE], times)], thresholds)[0])
        for one in tries
        for name, times in one.times_ms.items()
        if name != BASE
    ]
    ways = [_counted("interleaved", thresholds.interleaved_percent, turns, WANTED)]
    for way, metric in _METRICS.items():
        threshold = next(t for t in thresholds.of(_EXPERIMENT) if t.metric == metric)
        alone = thresholds.model_copy(update={"thresholds": (threshold,)})
        decided = [
            (name, _two_sessions(first, second, name, alone))
            for first, second in _neighbours(tries)
            for name in second.times_ms
            if name != BASE
        ]
        ways.append(_counted(way, 100 * threshold.margin, decided, {}))
    return tuple(ways)


_EXPERIMENT = "headline"


def _neighbours(tries: Iterable[Try]) -> Iterator[tuple[Try, Try]]:
    by_cell: dict[str, list[Try]] = defaultdict(list)
    for one in tries:
        by_cell[one.cell].append(one)
    for group in by_cell.values():
        yield from zip(group[::2], group[1::2], strict=False)


def _two_sessions(first: Try, second: Try, name: str, thresholds: Thresholds) -> Decided:
    """The build of the first session against one of the second, by what compares two stores."""
    base, new = _session(first, AGAIN), _session(second, name)
    (decided,) = compare_runs(base, new, thresholds).decided
    return decided


def _session(one: Try, name: str) -> Run:
    """One build of a try as the row that a sweep with "base" as its baseline would have kept."""
    baseline, times = np.asarray(one.times_ms[BASE]), np.asarray(one.times_ms[name])
    ratios = baseline / times
    measured = Measured(
        subject=one.cell, label=one.cell, experiment=_EXPERIMENT, backend="fused", device="", status="ok",
        fingerprint="one machine", samples=tuple(times.tolist()), ratios=tuple(ratios.tolist()),
        values={"latency_ms": float(np.median(times)), "speedup": float(np.median(ratios))},
    )  # fmt: skip
    return Run(f"session {one.number}", {one.cell: measured})


def _counted(
    name: WayName, margin: float, decided: Sequence[tuple[str, Decided]], wanted: Mapping[float, float]
) -> Way:
    by_build: dict[str, list[Decided]] = defaultdict(list)
    for build, one in decided:
        by_build[build].append(one)
    same = by_build.pop(AGAIN, [])
    alarms = sum(one.decision in ("FASTER", "SLOWER") for one in same)
    undecided = sum(one.decision == "UNDECIDED" for one in same)
    return Way(
        name=name, margin_percent=margin, false_alarms=rate(alarms, len(same)), undecided=undecided,
        power=tuple(_power(build, by_build[build], wanted) for build in sorted(by_build, key=float)),
    )  # fmt: skip


def _power(build: str, decided: Sequence[Decided], wanted: Mapping[float, float]) -> Power:
    """A ratio of times grows with a slow-down, a speed-up falls."""
    ratios = np.asarray([one.effect.ratio for one in decided if one.effect is not None])
    ratios = 1 / ratios if decided[0].metric == "speedup" else ratios
    hits = sum(one.decision == "SLOWER" for one in decided)
    percent = float(build)
    return Power(
        percent=percent, reached_percent=float(100 * (np.median(ratios) - 1)), found=rate(hits, len(decided)),
        wanted=wanted.get(percent),
    )  # fmt: skip
