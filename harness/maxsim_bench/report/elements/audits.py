"""How far the instrument can be trusted: its self-tests, and sweeps that were run twice. May import: record, declare.

What they follow from lies beside the rows of a card: `selftest.json`, and the second run's CSVs in `repeat/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from maxsim_bench.report import names
from maxsim_bench.report.compare import compare_runs, read_run, read_thresholds
from maxsim_bench.report.compare.audit import FALSE_ALARMS_MOST, WANTED, Power, SelfTest, read_selftest
from maxsim_bench.report.compare.compare import AGREE_PERCENT, ORDER
from maxsim_bench.report.compare.sources import Run
from maxsim_bench.report.load import REPEAT, SELFTEST, Results
from maxsim_bench.report.tables import Column, Table

_METRICS = {"latency_ms": "time", "speedup": "paired ratio to the baseline"}


def audit_tables(results: Results, thresholds: Path) -> Iterator[Table]:
    """A table of every self-test, and one of every sweep that was repeated; nothing where there is neither."""
    told = {name: read_selftest(path) for name, path in results.paths.items() if PurePosixPath(name).name == SELFTEST}
    if told:
        yield _selftests(told)
    repeated = {name: path for name, path in results.paths.items() if PurePosixPath(name).parent.name == REPEAT}
    if repeated:
        yield _repetitions(repeated, results, thresholds)


def _selftests(told: dict[str, SelfTest]) -> Table:
    lines = [line for one in told.values() for line in _selftest_lines(one)]
    columns = [
        Column("gpu", "measured on", right=False),
        Column("way", "compared", right=False),
        Column("margin", "matters from", "{:g} %".format),
        Column("alarms", "false alarms"),
        Column("bound", "upper 95 % bound", lambda share: f"{100 * share:.2f} %"),
        *(Column(f"found_{percent:g}", f"{percent:g} % slower: found") for percent in WANTED),
    ]
    goals = ", ".join(f"{100 * share:.0f} % of those of {percent:g} %" for percent, share in WANTED.items())
    gated = {f"{one.gpu}: {'; '.join(one.missed()) or 'every goal is met'}." for one in told.values() if one.gated}
    return Table(
        "summary/selftest", "How far a comparison can be trusted", columns, pd.DataFrame(lines), tuple(sorted(told)),
        "One build against itself, and against itself with a delay behind every call, decided one by one. Exact "
        "(Clopper-Pearson) bound. Goals of what takes turns, on a GPU: a bound of at most "
        f"{100 * FALSE_ALARMS_MOST:.0f} %, and of slow-downs found at least {goals}; a processor's rates are reported "
        "only. Measured again by `maxsim-bench selftest`.",
        notes=tuple(sorted(gated)),
    )  # fmt: skip


def _selftest_lines(one: SelfTest) -> Iterator[dict[str, Any]]:
    for way in one.ways:
        alarms = way.false_alarms
        found = {power.percent: power for power in way.power}
        yield {
            "gpu": names.card(one.key), "way": way.name, "margin": way.margin_percent,
            "alarms": f"{alarms.hits} of {alarms.tries}", "bound": alarms.high,
            **{f"found_{percent:g}": _found(found.get(percent)) for percent in WANTED},
        }  # fmt: skip


def _found(power: Power | None) -> str:
    if power is None:
        return "too small to inject"
    return f"{100 * power.found.rate:.1f} % of {power.found.tries} (measured {power.reached_percent:.1f} %)"


def _repetitions(repeated: dict[str, Path], results: Results, thresholds: Path) -> Table:
    lines: list[dict[str, Any]] = []
    sources: set[str] = set()
    for name, path in repeated.items():
        first = (PurePosixPath(name).parents[1] / path.name).as_posix()
        if first not in results.paths:
            continue
        sources |= {name, first}
        lines += _repetition(results.paths[first], path, thresholds)
    columns = [
        Column("gpu", "GPU", names.card, right=False),
        Column("experiment", "sweep", right=False),
        Column("what", "second / first", right=False),
        Column("within", f"within {AGREE_PERCENT:g} %"),
        Column("farthest", "farthest off", "{:.1f} %".format),
        Column("slower", "SLOWER"),
        Column("faster", "FASTER"),
        Column("undecided", "UNDECIDED"),
        Column("same", "SAME"),
    ]
    return Table(
        "summary/repeated", "The same sweep twice", columns, pd.DataFrame(lines, columns=[c.key for c in columns]),
        tuple(sorted(sources)),
        "Every row of the second run against the first's, as `maxsim-bench compare` decides. A paired ratio is the "
        "median over rounds of the baseline's time over the row's, within one run.",
    )  # fmt: skip


def _repetition(first: Path, second: Path, thresholds: Path) -> Iterator[dict[str, Any]]:
    """One line a metric, of the rows that both runs hold: a repetition may be of a part."""
    base, new = read_run(str(first)), read_run(str(second))
    common = {subject: one for subject, one in base.measured.items() if subject in new.measured}
    found = compare_runs(Run(base.name, common), new, read_thresholds(thresholds))
    device = next(iter(new.measured.values())).device
    for one in found.agreements():
        decisions = [decided.decision for decided in found.decided if decided.metric == one.metric]
        yield {
            "gpu": device, "experiment": second.stem, "what": _METRICS.get(one.metric, one.metric),
            "within": f"{one.within} of {one.compared}", "farthest": one.farthest_percent,
            **{decision.lower(): decisions.count(decision) for decision in ORDER},
        }  # fmt: skip
