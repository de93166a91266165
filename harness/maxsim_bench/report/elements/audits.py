"""How far the instrument can be trusted: its self-tests, and sweeps run over again.

Room: `report`. May import: record, declare.

What they follow from lies beside the rows of a card: `selftest.json`, and the CSVs of each run in `repeat/1`,
`repeat/2` and so on, in the order in which they were measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from maxsim_bench.report import names
from maxsim_bench.report.compare import compare_runs, read_run, read_thresholds
from maxsim_bench.report.compare.audit import FALSE_ALARMS_MOST, WANTED, Power, SelfTest, read_selftest
from maxsim_bench.report.compare.compare import AGREE_PERCENT, ORDER
from maxsim_bench.report.compare.sources import Run
from maxsim_bench.report.compare.thresholds import Thresholds
from maxsim_bench.report.load import REPEAT, SELFTEST, ReportError, Results
from maxsim_bench.report.tables import Column, Table

_METRICS = {"latency_ms": "time", "speedup": "ratio"}


def audit_tables(results: Results, thresholds: Path) -> Iterator[Table]:
    """A table of every self-test, and one of every sweep that was run over again; nothing where there is neither.

    Raises:
        ReportError: for a run in `repeat/` that has no number, and for runs that cannot be compared.
    """
    told = {name: read_selftest(path) for name, path in results.paths.items() if PurePosixPath(name).name == SELFTEST}
    if told:
        yield _selftests(told)
    repeated = _numbered(results)
    if any(len(runs) > 1 for runs in repeated.values()):
        yield _repetitions(repeated, read_thresholds(thresholds))


def _selftests(told: dict[str, SelfTest]) -> Table:
    lines = [line for one in told.values() for line in _selftest_lines(one)]
    columns = [
        Column("gpu", "measured on", right=False),
        Column("way", "compared", right=False),
        Column("margin", "matters from", "{:g} %".format),
        Column("alarms", "false alarms"),
        Column("undecided", "undecided"),
        Column("bound", "upper 95 % bound", lambda share: f"{100 * share:.2f} %"),
        *(Column(f"found_{percent:g}", f"{percent:g} % slower: found") for percent in WANTED),
    ]
    goals = ", ".join(f"{100 * share:.0f} % of those of {percent:g} %" for percent, share in WANTED.items())
    gated = {
        f"{one.gpu}: {'; '.join(one.missed()) or 'every goal of the self-test is met'}."
        for one in told.values()
        if one.gated
    }
    return Table(
        "summary/selftest", "How far a comparison can be trusted", columns, pd.DataFrame(lines), tuple(sorted(told)),
        "One build against itself, and against itself with a delay behind every call, decided one by one. Matters "
        "from: the smallest change that is called one; less is not to be found. Measured: by how much the delayed "
        "calls were slower in the median. Undecided: neither called the same nor different, of the build with itself. "
        "Exact (Clopper-Pearson) bound. Goals of what takes turns, on a GPU: a bound of at most "
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
            "alarms": f"{alarms.hits} of {alarms.tries}", "undecided": f"{way.undecided} of {alarms.tries}",
            "bound": alarms.high,
            **{f"found_{percent:g}": _found(found.get(percent)) for percent in WANTED},
        }  # fmt: skip


def _found(power: Power | None) -> str:
    if power is None:
        return "too small to inject"
    return f"{100 * power.found.rate:.1f} % of {power.found.tries} (measured {power.reached_percent:.1f} %)"


def _numbered(results: Results) -> dict[tuple[str, str], list[tuple[int, str, Path]]]:
    """Folder of a card and sweep → number, source and file of each of its runs, in their order."""
    found: dict[tuple[str, str], list[tuple[int, str, Path]]] = {}
    for name, path in results.paths.items():
        folder = PurePosixPath(name).parent
        if folder.parent.name != REPEAT:
            continue
        if not folder.name.isdecimal():
            raise ReportError(f"{path}: runs in {REPEAT}/ are numbered in their order: {REPEAT}/1, {REPEAT}/2, ...")
        runs = found.setdefault((folder.parents[1].as_posix(), path.stem), [])
        runs.append((int(folder.name), name, path))
    return {sweep: sorted(found[sweep]) for sweep in sorted(found)}


def _repetitions(repeated: dict[tuple[str, str], list[tuple[int, str, Path]]], thresholds: Thresholds) -> Table:
    lines: list[dict[str, Any]] = []
    for (_, experiment), runs in repeated.items():
        read = [(number, read_run(str(path))) for number, _, path in runs]
        for (first, base), (second, new) in pairwise(read):
            lines.append({"experiment": experiment, "runs": f"{first}, {second}", **_repetition(base, new, thresholds)})
    columns = [
        Column("gpu", "GPU", names.card, right=False),
        Column("experiment", "sweep", right=False),
        Column("runs", "runs", right=False),
        Column("began", "began (UTC)", right=False),
        Column("environment", "environment id", right=False),
        Column("sources", "backends' sources", right=False),
        *(
            column
            for metric, told in _METRICS.items()
            for column in (
                Column(f"{metric}_within", f"{told}: within {AGREE_PERCENT:g} %"),
                Column(f"{metric}_farthest", "farthest off", _percent),
                Column(f"{metric}_decided", " / ".join(ORDER)),
            )
        ),
    ]
    return Table(
        "summary/repeated", "The same sweep over again", columns,
        pd.DataFrame(lines, columns=[c.key for c in columns]),
        tuple(sorted(name for runs in repeated.values() if len(runs) > 1 for _, name, _ in runs)),
        "Every two successive runs of a sweep, the second's rows against the first's, as `maxsim-bench compare` "
        "decides. Ratio: the median over rounds of the baseline's time over the row's, within one run. Times under "
        "two environment ids are not compared. One id is one model of card, one driver, one set of libraries and one "
        "model and number of processors; whether it was one machine as well, and what else ran there, "
        "docs/tracking.md says.",
    )  # fmt: skip


def _percent(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.1f} %"


def _repetition(base: Run, new: Run, thresholds: Thresholds) -> dict[str, Any]:
    """One line, of the rows that both runs hold: a repetition may be of a part."""
    common = {subject: one for subject, one in base.measured.items() if subject in new.measured}
    found = compare_runs(Run(base.name, common), new, thresholds)
    some = next(iter(new.measured.values()))
    same = some.fingerprint == next(iter(base.measured.values())).fingerprint
    changed = {one.backend for subject, one in common.items() if one.version != new.measured[subject].version}
    line: dict[str, Any] = {
        "gpu": some.device, "began": f"{_began(base)}, {_began(new)}", "environment": "the same" if same else "another",
        "sources": f"{', '.join(sorted(map(names.backend, changed)))} changed" if changed else "the same",
    }  # fmt: skip
    agreements = {one.metric: one for one in found.agreements()}
    for metric in _METRICS:
        one = agreements.get(metric)
        decisions = [decided.decision for decided in found.decided if decided.metric == metric]
        line |= {
            f"{metric}_within": None if one is None else f"{one.within} of {one.compared}",
            f"{metric}_farthest": None if one is None else one.farthest_percent,
            f"{metric}_decided": " / ".join(str(decisions.count(d)) for d in ORDER) if decisions else None,
        }
    return line


def _began(run: Run) -> str:
    """Date and time of the row that was finished first, to the minute; nothing where no row has one."""
    times = [one.measured_at for one in run.measured.values() if one.measured_at]
    return min(times)[:16].replace("T", " ") if times else ""
