"""`maxsim-bench compare BASE NEW`: every subject of both runs, decided, the false-discovery rate controlled over all.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maxsim_bench.report import names
from maxsim_bench.report.compare.decide import (
    SAME_MEASUREMENT,
    Decided,
    Decision,
    cycles_ratio,
    decide_exact,
    decide_sampled,
    described,
    effect_of,
    host_moved,
    needed_for,
    same_measurement,
)
from maxsim_bench.report.compare.sources import CompareError, Measured, Run, Selection, read_run
from maxsim_bench.report.compare.statistics import Effect, adjusted, paired_effect
from maxsim_bench.report.compare.thresholds import Threshold, Thresholds, read_thresholds
from maxsim_bench.report.tables import templates

ORDER: tuple[Decision, ...] = ("SLOWER", "UNDECIDED", "FASTER", "SAME")
AGREE_PERCENT = 2.0  # two runs of one build are expected to agree as closely on nearly every row

_NAMED = 5  # values that vanished and are named; more are counted


@dataclass(frozen=True)
class Agreement:
    """How near the ratios of one metric lie to 1: of a run and its repetition, how well it repeats.

    Attributes:
        within, compared: ratios within `percent` of 1, of so many.
        farthest_percent: how far the worst of them lies from 1.
    """

    metric: str
    percent: float
    within: int
    compared: int
    farthest_percent: float


@dataclass(frozen=True)
class Comparison:
    """Two runs, decided.

    Attributes:
        base, new: names of the runs.
        decided: SLOWER first, then UNDECIDED, FASTER, SAME.
        notes: what was not compared and why, in words.
        false_discovery_rate: that was controlled.
        left_out: rows of either run that their own raw samples contradict, one sentence each. Whether they are slower
            nobody can say, so a comparison with any never ends with exit code 0.
    """

    base: str
    new: str
    decided: tuple[Decided, ...]
    notes: tuple[str, ...]
    false_discovery_rate: float
    left_out: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """Decision → how many."""
        return {d: sum(one.decision == d for one in self.decided) for d in ORDER}

    @property
    def exit_code(self) -> int:
        """1 if anything is SLOWER, else 2 if a row was left out, else 0; UNDECIDED fails nothing, and is told."""
        return self.fails_on({"SLOWER"})

    def fails_on(self, decisions: Collection[Decision]) -> int:
        """1 if anything came out as one of these, else 2 if a row was left out and could have, else 0."""
        if any(one.decision in decisions for one in self.decided):
            return 1
        return 2 if self.left_out else 0

    @property
    def same_measurements(self) -> int:
        """How many of SAME are of rows that nobody measured again."""
        return sum(one.reason == SAME_MEASUREMENT for one in self.decided)

    def agreements(self, percent: float = AGREE_PERCENT) -> list[Agreement]:
        """One for each metric that was compared by samples."""
        ratios: dict[str, list[float]] = {}
        for one in self.decided:
            if one.effect is not None:
                ratios.setdefault(one.metric, []).append(100 * abs(one.effect.ratio - 1))
        return [
            Agreement(metric, percent, sum(p <= percent for p in far), len(far), max(far))
            for metric, far in sorted(ratios.items())
        ]

    def json(self) -> str:
        """For a program; NaN is null."""
        told = {
            **asdict(self), "counts": self.counts(), "exit_code": self.exit_code,
            "same_measurements": self.same_measurements, "agreements": [asdict(one) for one in self.agreements()],
        }  # fmt: skip
        return json.dumps(_without_nan(told), indent=1, ensure_ascii=False) + "\n"

    def markdown(self) -> str:
        """For a pull request: what moved in full, what did not as a number."""
        return templates().get_template("compare.md.j2").render(**self._told())

    def html(self) -> str:
        """One page that loads nothing."""
        return templates().get_template("compare.html.j2").render(**self._told())

    def _told(self) -> dict[str, Any]:
        return {
            "base": self.base, "new": self.new, "counts": self.counts(), "notes": self.notes,
            "rate": self.false_discovery_rate, "number": names.number, "backend": names.backend,
            "left_out": self.left_out,
            "same_measurements": self.same_measurements, "agreements": self.agreements(),
            "moved": [one for one in self.decided if one.decision != "SAME"],
            "same": [one for one in self.decided if one.decision == "SAME"],
        }  # fmt: skip


def compare_results(
    base: str,
    new: str,
    *,
    thresholds: Path = Path("experiments/compare/thresholds.toml"),
    repository: Path = Path("."),
    only: Selection = Selection(),  # noqa: B008  # frozen
) -> Comparison:
    """Compare two runs given as files, folders or git revisions; of stores, the rows that fit `only`.

    A row that its own raw samples contradict in one of the runs is left out of both, and named.

    Raises:
        CompareError: for runs without a common row or one that was not left out, a vanished row, a baseline or a sample
            that is zero, negative or not finite, a mixture of fingerprints, a truncated input, or nothing comparable.
        ReportError, StoreError: for inputs that cannot be read.
    """
    before, after = (read_run(source, repository=repository, only=only, leave_out=True) for source in (base, new))
    return compare_runs(before, after, read_thresholds(thresholds))


@dataclass(frozen=True)
class _Pair:
    before: Measured
    after: Measured
    threshold: Threshold
    effect: Effect | None
    same_measurement: bool


def compare_runs(base: Run, new: Run, thresholds: Thresholds) -> Comparison:
    """Compare two runs; see `compare_results`."""
    _require_rows(base, new)
    left_out = (*base.contradicted.values(), *new.contradicted.values())
    contradicted = base.contradicted.keys() | new.contradicted.keys()
    base, new = base.without(contradicted), new.without(contradicted)
    if not base.measured:
        raise CompareError(f"every row that could be compared is at odds with its own samples:\n{_some(left_out)}")
    _require_one_fingerprint(base, new)
    notes: list[str] = []
    decided: list[Decided] = []
    pairs: list[_Pair] = []
    unlike, gone = 0, []
    for subject, before in base.measured.items():
        after = new.measured[subject]
        if before.status != "ok" or after.status != "ok":
            decided += _by_status(before, after)
            continue
        _require_samples(before, base)
        _require_samples(after, new)
        if before.samples is not None and after.samples is None:
            raise CompareError(
                f"{new.name}: has no raw samples of {after.backend} on {after.label}, which {base.name} has: a loss "
                "would stay undecided. Restore them, or measure it again with --force."
            )
        for threshold in thresholds.of(before.experiment):
            if threshold.metric not in after.values:
                gone += [f"{threshold.metric} of {after.backend} on {after.label}"] * (
                    threshold.metric in before.values
                )
                continue
            if threshold.metric not in before.values:
                continue
            if not threshold.portable and before.fingerprint != after.fingerprint:
                unlike += 1
                continue
            _require_number(before, threshold.metric, base)
            _require_number(after, threshold.metric, new)
            same = same_measurement(before, after, threshold)  # it has no effect, and makes no other test stricter
            effect = None if same else effect_of(before, after, threshold, thresholds.confidence)
            pairs.append(_Pair(before, after, threshold, effect, same))
    q_values = adjusted([math.nan if pair.effect is None else pair.effect.p_value for pair in pairs])
    decided += [_decide(pair, q, thresholds) for pair, q in zip(pairs, q_values, strict=True)]
    if not decided and not unlike:
        raise CompareError(
            f"{base.name} and {new.name} have no metric in common that the thresholds name."
            + (f" Left out, at odds with their own samples:\n{_some(left_out)}" if left_out else "")
        )
    if not decided:
        raise CompareError(
            f"{base.name} and {new.name} were measured under different fingerprints, and no ratio to a baseline was "
            "kept: absolute times of different machines say nothing. Measure with a baseline, or on one machine."
        )
    if unlike:
        notes.append(f"{unlike} absolute times were not compared: the fingerprints of the runs differ.")
    if gone:
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        notes.append(f"{len(gone)} values are in {base.name} alone: {'; '.join(gone[:_NAMED])}{more}.")
    fresh = len(new.measured.keys() - base.measured.keys())
    if fresh:
        notes.append(f"{fresh} rows are new and have nothing to be compared with.")
    ordered = sorted(decided, key=lambda one: (ORDER.index(one.decision), one.metric, -_size(one)))
    return Comparison(base.name, new.name, tuple(ordered), tuple(notes), thresholds.false_discovery_rate, left_out)


def _some(left_out: Sequence[str]) -> str:
    """Rows that were left out, a line each up to ten, and what to do."""
    shown = [*left_out[:10], *([f"and {len(left_out) - 10} more"] if len(left_out) > 10 else [])]
    lines = "".join(f"  {told}\n" for told in shown)
    return f"{lines}Restore the files, or measure the rows again with --force."


def _require_one_fingerprint(base: Run, new: Run) -> None:
    """Refuse a sweep of which some cells kept their fingerprint and others did not: it is two sweeps.

    Rows of several fingerprints may lie in one store, a sweep that has another one everywhere has its ratios compared.
    """
    kinds: dict[tuple[str, str], set[bool]] = {}
    for subject, before in base.measured.items():
        same = before.fingerprint == new.measured[subject].fingerprint
        kinds.setdefault((before.experiment, before.device), set()).add(same)
    for sweep in (sweep for sweep, seen in kinds.items() if len(seen) > 1):
        for run in (base, new):
            found = {m.fingerprint for m in run.measured.values() if (m.experiment, m.device) == sweep}
            if len(found) > 1:
                raise CompareError(
                    f"{run.name}: {sweep[0]} on {sweep[1]} was measured under {len(found)} fingerprints "
                    f"({', '.join(sorted(map(str, found)))}), and the other run not under the same ones: driver, "
                    "libraries or host changed in between. Measure it again under one, with --force."
                )


def _size(one: Decided) -> float:
    return abs(math.log(one.effect.ratio)) if one.effect is not None else 0.0


def _require_rows(base: Run, new: Run) -> None:
    if not base.subjects & new.subjects:
        raise CompareError(
            f"{base.name} and {new.name} have no row in common: no cell was measured by the same backend in both."
        )
    vanished = sorted(base.subjects - new.subjects)
    if vanished:
        told = {s: f"{one.backend}: {one.label}" for s, one in base.measured.items()}
        told |= base.contradicted
        shown = "\n".join(f"  {told[s]}" for s in vanished[:10])
        more = f"\n  and {len(vanished) - 10} more" if len(vanished) > 10 else ""
        raise CompareError(
            f"{len(vanished)} rows of {base.name} are not in {new.name}:\n{shown}{more}\n"
            "A row that vanished may hide a loss. If the run was killed, its command goes on where it stopped; else "
            "measure them, or choose the rows to compare with --experiment, --backend and --where."
        )


def _require_number(one: Measured, metric: str, run: Run) -> None:
    value = one.values[metric]
    zero_is_fine = metric in ("delta", "peak_extra_bytes", "max_rel_err", "ndcg_at_10")
    if not math.isfinite(value) or (value == 0 and not zero_is_fine) or (value < 0 and metric != "delta"):
        raise CompareError(
            f"{run.name}: {metric} of {one.backend} on {one.label} is {value:g}, so nothing can be compared with it. "
            "Measure it again with --force."
        )


def _require_samples(one: Measured, run: Run) -> None:
    """Refuse raw times, ratios and a baseline's time that are not positive and finite: no statistic is one of them."""
    host = () if one.host_baseline_ms is None else (one.host_baseline_ms,)
    for what, values in (("a sample", one.samples), ("a ratio to the baseline", one.ratios), ("the baseline", host)):
        for value in values or ():
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise CompareError(
                    f"{run.name}: {what} of {one.backend} on {one.label} is {value}, so nothing can be compared with "
                    "it. Measure it again with --force."
                )


def _by_status(before: Measured, after: Measured) -> list[Decided]:
    """A backend that stopped working is a loss, one that began to a gain; two failures say nothing."""
    if "ok" not in (before.status, after.status):
        return []
    worked = before.status == "ok"
    told = f"was ok, is {after.status} now: {after.error}" if worked else f"was {before.status}, is ok now"
    decision: Decision = "SLOWER" if worked else "FASTER"
    return [Decided(before.subject, before.label, before.backend, "status", decision, told, None, None, "")]


def _decide(pair: _Pair, q_value: float, thresholds: Thresholds) -> Decided:
    threshold, before, after, effect = pair.threshold, pair.before, pair.after, pair.effect
    base, new = before.values[threshold.metric], after.values[threshold.metric]
    decision: Decision
    moved = host_moved(before, after, threshold, thresholds.host_moved_percent)
    if pair.same_measurement:
        decision, reason = "SAME", SAME_MEASUREMENT
    elif moved is not None:
        decision, reason = "UNDECIDED", moved
    elif effect is not None:
        cycles = cycles_ratio(effect, before, after, threshold)
        decision, reason = decide_sampled(effect, q_value, threshold, thresholds.false_discovery_rate, cycles)
    elif threshold.test == "exact":
        decision, reason = decide_exact(base, new, threshold)
    else:
        decision, reason = "UNDECIDED", "no raw samples were kept"
    return Decided(
        before.subject, before.label, before.backend, threshold.metric, decision, reason, base, new,
        described(threshold), effect, q_value,
        needed_for(decision, effect, threshold) if moved is None else None,  # no number of samples stills a host
    )  # fmt: skip


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decide_interleaved(
    pairs: Sequence[tuple[str, Sequence[float], Sequence[float]]], thresholds: Thresholds
) -> list[Decided]:
    """Decisions on times that were taken in one interleaved run: two builds of the kernels, or one against itself.

    Args:
        pairs: label, times of the base and of the new one in ms; entry i of both from the same round.
        thresholds: `interleaved_percent` is what matters here: nothing drifts between two builds that take turns.

    Raises:
        CompareError: naming the pair, for unequal counts, fewer than two rounds, or times that are not positive.
    """
    threshold = Threshold(
        metric="latency_ms", better="lower", test="samples", portable=False, percent=thresholds.interleaved_percent
    )
    effects = [_paired(*pair, thresholds.confidence) for pair in pairs]
    q_values = adjusted([effect.p_value for effect in effects])
    found = []
    for (label, base, new), effect, q_value in zip(pairs, effects, q_values, strict=True):
        decision, reason = decide_sampled(effect, q_value, threshold, thresholds.false_discovery_rate, None)
        found.append(
            Decided(
                label, label, "", threshold.metric, decision, reason, statistics.median(base), statistics.median(new),
                described(threshold), effect, q_value, needed_for(decision, effect, threshold),
            )
        )  # fmt: skip
    return found


def _paired(label: str, base: Sequence[float], new: Sequence[float], confidence: float) -> Effect:
    try:
        return paired_effect(base, new, confidence=confidence)
    except ValueError as error:
        raise CompareError(f"{label}: {error}. Measure it again.") from None


def decisions(comparison: Comparison, metric: str | None = None) -> Sequence[Decision]:
    """The bare decisions, of one metric or all: what an audit counts."""
    return [one.decision for one in comparison.decided if metric in (None, one.metric)]
