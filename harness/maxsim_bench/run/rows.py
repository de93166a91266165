"""Rows and sample records out of what a cell's measurement gave.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from maxsim_bench.declare.experiment import Status
from maxsim_bench.measure.ceilings import Ceilings, percent_of_ceiling
from maxsim_bench.measure.clock import utc_now
from maxsim_bench.measure.errors import Errors
from maxsim_bench.measure.memory import MemoryReading
from maxsim_bench.measure.nvml import Conditions
from maxsim_bench.measure.statistics import Interval, paired_ratio
from maxsim_bench.measure.timer import Timing
from maxsim_bench.record.row import Row
from maxsim_bench.run.protocol import CellRequest, Hello
from maxsim_bench.run.work import Work


@dataclass
class Outcome:
    """What is known of one backend of a cell while it is measured.

    Attributes:
        status: "ok" until something speaks against it; then `error` says what.
        errors: against the reference, the larger of those before and after timing.
        memory, prepare_bytes: None on a processor.
        timing, interleaved_with: None and empty until timed.
        baseline_timing: of the experiment's baseline in the same interleaving, None if it was not there.
        kernel_config: what the backend says of its launch, if it says anything.
        figures: further ones: agreement with the reference, what a study found. Those that are columns go there.
    """

    status: Status = "ok"
    error: str | None = None
    errors: Errors | None = None
    memory: MemoryReading | None = None
    prepare_bytes: int | None = None
    timing: Timing | None = None
    baseline_timing: Timing | None = None
    interleaved_with: tuple[str, ...] = ()
    kernel_config: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def fail(self, status: Status, error: str) -> None:
        """Give up on this backend; whatever was measured of it is not reported."""
        self.status, self.error, self.timing, self.memory, self.prepare_bytes = status, error, None, None, None


@dataclass(frozen=True)
class Frame:
    """What all rows of a cell share, the work of the cell as each backend does it (by name) included.

    Attributes:
        longest_document: tokens, None where all have Ld.
    """

    request: CellRequest
    hello: Hello
    work: dict[str, Work]
    input_bytes: int | None
    longest_document: int | None
    sets: int
    conditions: Conditions

    @property
    def ceilings(self) -> Ceilings | None:
        record = self.request.ceilings
        return None if record is None else Ceilings.from_record(record)


def failed_row(request: CellRequest, backend: str, gpu: str, environment_id: str, status: Status, error: str) -> Row:
    """A row of a backend that gave nothing."""
    return Row(
        cell=request.cell,
        backend=backend,
        backend_version=request.versions[backend],
        gpu=gpu,
        status=status,
        error=error[:1000],
        environment_id=environment_id,
        measured_at=utc_now(),
    )


def build_row(frame: Frame, backend: str, outcome: Outcome) -> Row:
    """The row of one backend: `outcome` is what was measured of it, `frame` what it shares with the others."""
    request, hello = frame.request, frame.hello
    errors = outcome.errors
    told: dict[str, Any] = {
        "input_bytes": frame.input_bytes,
        "kernel_config": outcome.kernel_config,
        "throttled": frame.conditions.throttled,
    }
    if errors is not None and outcome.status in ("ok", "incorrect"):
        told |= {"max_abs_err": errors.max_abs, "mean_abs_err": errors.mean_abs, "max_rel_err": errors.max_rel}
    row = failed_row(request, backend, hello.device_name, hello.environment_id, "error", outcome.error or "unfinished")
    base = row.model_dump(exclude={"cell", "status", "error"}) | told
    if outcome.status != "ok":
        return Row(cell=request.cell, status=outcome.status, error=(outcome.error or "")[:1000], **base)
    assert outcome.timing is not None, "an outcome without a timing is not ok"
    return Row(cell=request.cell, status="ok", **base | _measured(frame, backend, outcome, outcome.timing))


def _measured(frame: Frame, backend: str, outcome: Outcome, timing: Timing) -> dict[str, Any]:
    """The fields that only an `ok` row holds."""
    ms = timing.median_ms
    columns = {name: figure for name, figure in outcome.figures.items() if name in Row.model_fields}
    found: dict[str, Any] = columns | {
        "latency_ms": ms,
        "latency_p20_ms": timing.p20_ms,
        "latency_p80_ms": timing.p80_ms,
        "samples": len(timing.samples_ms),
        "ci_width_percent": timing.ci_width_percent,
        "order": timing.positions[0],
        "prepare_bytes": outcome.prepare_bytes,
        "extra": json.dumps(
            {
                "capped": timing.capped,
                "input_sets": frame.sets,
                "timing_policy": timing.policy,
                **({} if frame.longest_document is None else {"longest_document": frame.longest_document}),
                **_share_of_starved(timing),
                **_share_of_library(frame.work.get(backend), frame.ceilings, ms),
                **_share_of_copy(frame.work.get(backend), frame.ceilings, ms),
                **{name: figure for name, figure in outcome.figures.items() if name not in columns},
            }
        ),
    }
    if outcome.memory is not None:
        found["peak_extra_bytes"] = outcome.memory.peak_extra_bytes
        found["peak_reserved_bytes"] = outcome.memory.peak_reserved_bytes
    work = frame.work.get(backend)
    if work is not None:
        found |= _rates(work, frame.ceilings, ms)
        if timing.check is not None and timing.check.joules is not None:
            found["joules_per_mpair"] = timing.check.joules / work.pairs * 1e6
    ratio = None if outcome.baseline_timing is None else speedup(outcome.baseline_timing, timing)
    if ratio is not None:
        found |= {"speedup": ratio.value, "speedup_baseline": frame.request.baseline}
        if not math.isnan(ratio.low):
            found |= {"speedup_low": ratio.low, "speedup_high": ratio.high}
    return found


def _rates(work: Work, ceilings: Ceilings | None, ms: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "flops": work.flops,
        "bytes_min": work.bytes_min,
        "tflops": work.flops / ms / 1e9,
        "achieved_gbs": work.bytes_min / ms / 1e6,
    }
    near = (
        None
        if ceilings is None
        else percent_of_ceiling(ms, work.flops, work.bytes_min, work.unit, ceilings, work.host_bytes)
    )
    if near is not None:
        found["percent_of_ceiling"], found["ceiling"] = near
    return found


def _share_of_starved(timing: Timing) -> dict[str, float]:
    """`starved_samples_percent`, which the host's clock does not know."""
    return {} if timing.policy == "host" else {"starved_samples_percent": round(timing.starved_percent, 1)}


def _share_of_library(work: Work | None, ceilings: Ceilings | None, ms: float) -> dict[str, float]:
    """`percent_of_matmul`: the rate beside the library's own product in the run, which a ceiling may exceed."""
    rate = None if work is None or ceilings is None else ceilings.all_measured.get(f"matmul_{work.unit}")
    return {"percent_of_matmul": round(100.0 * work.flops / ms / 1e9 / rate, 2)} if work is not None and rate else {}


def _share_of_copy(work: Work | None, ceilings: Ceilings | None, ms: float) -> dict[str, float]:
    """`percent_of_copy`: of the rate of copies from pinned host memory, for a call that needs them, whatever binds it.

    Without it a row tells that the session did not measure that rate, or that nothing had to be copied.
    """
    if work is None or ceilings is None or not work.host_bytes or not ceilings.host_copy_gbs:
        return {}
    return {"percent_of_copy": round(100.0 * work.host_bytes / ms / 1e6 / ceilings.host_copy_gbs, 2)}


def speedup(baseline: Timing, other: Timing) -> Interval | None:
    """Median of baseline time / this time over the rounds in which both were timed; None for fewer than two."""
    mine = dict(zip(other.rounds, other.samples_ms, strict=True))
    pairs = [(b, mine[r]) for r, b in zip(baseline.rounds, baseline.samples_ms, strict=True) if r in mine]
    return paired_ratio([b for b, _ in pairs], [m for _, m in pairs])


def sample_record(outcome: Outcome, conditions: Conditions) -> dict[str, Any]:
    """Raw samples of one backend, in order, with what is needed to pair them and to judge them later."""
    timing = outcome.timing
    assert timing is not None, "only what was timed has samples"
    return {
        "ms": timing.samples_ms,
        "round": timing.rounds,
        "position": timing.positions,
        "policy": timing.policy,
        "warmup_calls": timing.warmup_calls,
        "interleaved_with": list(outcome.interleaved_with),
        "check_wall_ms": None if timing.check is None else timing.check.wall_ms,
        "check_enqueue_ms": None if timing.check is None else timing.check.enqueue_ms,
        "conditions": conditions.summary(),
    }
