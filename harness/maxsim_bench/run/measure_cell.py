"""The procedure for one cell, inside a worker: correctness and memory alone, interleaved timing, correctness again.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from maxsim_bench.backends.base import Backend, Inputs
from maxsim_bench.measure import memory
from maxsim_bench.measure.clock import l2_bytes
from maxsim_bench.measure.datasheet import Peak, impossible, peak_of
from maxsim_bench.measure.errors import Errors
from maxsim_bench.measure.failures import describe, kind_of
from maxsim_bench.measure.graphs import CaptureError
from maxsim_bench.measure.nvml import Conditions, Sampler
from maxsim_bench.measure.timer import Call, Timing, TimingFailure, time_callables
from maxsim_bench.run.cell_inputs import documents_cross, draw_again, draw_inputs, resident_bytes
from maxsim_bench.run.check import (
    DO_NOT_FIT,
    NoRoomError,
    ResultError,
    Truth,
    beside_inputs,
    checksum,
    judge_as_returned,
    poison_free_memory,
    poison_outputs,
    stale,
)
from maxsim_bench.run.protocol import CellRequest, CellResult, Hello, LostDeviceError, Step
from maxsim_bench.run.rows import Frame, Outcome, build_row, sample_record
from maxsim_bench.run.studies import studied
from maxsim_bench.run.truth import truths_of
from maxsim_bench.run.work import Work, work_served

_REFERENCE_OP = {"search": "forward"}  # a search is checked against the scores of every document
_MOST_SETS = 8
_CPU_CACHE_BYTES = 32 << 20
_BEYOND_CACHES = 4 << 30  # a corpus in host memory several times as large as any processor's last cache
_MEMORY_SHARE = 0.6  # of what is free, for inputs and what backends prepare from them
_MARGIN = 1.1  # fragmentation when several backends' blocks lie side by side
_CPU_PEAK_FACTOR = 3.0  # a processor has no data sheet here; measured rates of a busy one may be this much too low


class CellMeasurement:
    """One request being measured. `run` may be called once."""

    def __init__(self, request: CellRequest, hello: Hello, resolve: Callable[[str], Backend], step: Step) -> None:
        self.request, self.cell, self.hello, self.step = request, request.cell, hello, step
        self.device = hello.device
        self.backends = {name: resolve(name) for name in request.backends}
        self.reference = resolve("reference")
        self.outcomes = {name: Outcome() for name in request.backends}
        self.conditions = Conditions()
        self.work: dict[str, Work] = {}
        self.input_bytes: int | None = None
        self.longest_document: int | None = None
        self.resident = self.elsewhere = 0  # bytes of a set on the device, and in host memory for a GPU
        self.sets = 0

    def run(self) -> CellResult:
        """Measure, and give everything back to the allocator."""
        with memory.cap(self.cell.memory_cap, self.device):
            try:
                self._measure()
            except Exception as error:
                self._no_room(error, self._ok())
        memory.forget_compiled()
        memory.settle(self.device)
        frame = Frame(
            self.request, self.hello, self.work, self.input_bytes, self.longest_document, self.sets, self.conditions
        )
        rows = [build_row(frame, name, outcome) for name, outcome in self.outcomes.items()]
        samples = {
            row.key: sample_record(self.outcomes[row.backend], self.conditions) for row in rows if row.status == "ok"
        }
        return CellResult(rows, samples)

    def _measure(self) -> None:
        self.step("making the inputs and the reference's results")
        reason = self.reference.supports(
            self.cell.model_copy(update={"quantiser": None, "op": _REFERENCE_OP.get(self.cell.op, self.cell.op)}),
            self.device,
        )
        if reason is not None:
            self._fail(self.backends, f"nothing to compare with: the reference {reason}")
            return
        try:
            inputs = draw_inputs(self.cell, self.device, 0)
            self.input_bytes = sum(t.nbytes for t in inputs.tensors())
            self.resident = resident_bytes(inputs, self.device)
            self.elsewhere = self.input_bytes - self.resident
            lengths = None if inputs.d_lengths is None else inputs.d_lengths.flatten().tolist()
            self.longest_document = max(lengths, default=0) if lengths is not None else None
            from_host = documents_cross(inputs, self.device)
            self.work = {
                name: work_served(self.cell, b, lengths, from_host=from_host) for name, b in self.backends.items()
            }
            truths = truths_of(self.cell, inputs, self.reference, self.backends)
        except Exception as error:
            if self._kind(error) == "oom":
                raise
            self._fail(self.backends, f"making the inputs: {describe(error)}")
            return
        for name in self.backends:
            self.step(f"{name} alone, preparing")
            if not self._alone(name, inputs, truths[name]):
                del inputs  # before they are made again: there may not be room for both
                inputs = draw_inputs(self.cell, self.device, 0)
        del truths
        self._time(inputs)

    def _fail(self, names: Iterable[str], error: str) -> None:
        for name in names:
            self.outcomes[name].fail("error", error)

    def _no_room(self, error: Exception, names: Iterable[str]) -> None:
        """Rows for the harness's own work running out of memory; any other exception of it is raised again."""
        if self._kind(error) != "oom":
            raise error
        told = str(error) if isinstance(error, NoRoomError) else DO_NOT_FIT + describe(error)
        for name in names:
            self.outcomes[name].fail("oom", told)

    def _kind(self, error: Exception) -> str:
        """ "oom" or "error"; a lost device ends the worker instead."""
        kind = kind_of(error)
        if kind == "fatal":
            raise LostDeviceError(describe(error)) from error
        return kind

    # Alone: correctness and memory.

    def _alone(self, name: str, inputs: Inputs, truth: Truth) -> bool:
        """Check one backend with nothing of another alive; whether the inputs are known to be what they were."""
        try:
            return self._alone_with_room(name, inputs, truth)
        except Exception as error:
            self._no_room(error, [name])
            return False

    def _alone_with_room(self, name: str, inputs: Inputs, truth: Truth) -> bool:
        """`_alone`; raises what the harness's own work beside the inputs raises."""
        outcome = self.outcomes[name]
        baseline = memory.settle(self.device)
        bits = checksum(inputs)
        try:
            self._check_alone(name, inputs, truth, baseline)
        except ResultError as error:
            outcome.fail("incorrect", str(error))
        except NoRoomError as error:
            self._no_room(error, [name])
        except Exception as error:
            outcome.fail("oom" if self._kind(error) == "oom" else "error", describe(error))
        lost = memory.leak(baseline, self.device)
        if lost is not None and outcome.status == "ok":
            outcome.fail("error", lost)
        if checksum(inputs) == bits:
            return True
        outcome.fail("incorrect", "overwrites its inputs: they are not the same after its calls")
        return False

    def _check_alone(self, name: str, inputs: Inputs, truth: Truth, baseline: int | None) -> None:
        backend, outcome = self.backends[name], self.outcomes[name]
        pools = memory.graph_pool_bytes() if self.device == "cuda" else 0
        call = backend.prepare(self.cell, inputs)
        prepared = memory.allocated(self.device)
        if prepared is not None and baseline is not None:
            outcome.prepare_bytes = max(prepared - baseline, 0)
        outcome.kernel_config = self._kernel_config(backend, inputs)
        with beside_inputs():
            room = memory.available_bytes(self.device, self.cell.memory_cap)
            poison_free_memory(truth.like, int(_MEMORY_SHARE * room))
        tolerance = backend.tolerance(self.cell)
        self.step(f"{name} alone, first call (compiles and tunes)")
        output = call()
        self.step(f"{name} alone, checks")
        verdict = judge_as_returned(truth, output, tolerance)
        outcome.errors = verdict.errors
        if verdict.wrong is None:
            with beside_inputs():
                outcome.figures |= truth.agreement(output)
            poison_outputs(output)
        del output  # the next call is not to need room for two results
        wrong = verdict.wrong or stale(call, truth, tolerance)
        if wrong is not None:
            outcome.fail("incorrect", wrong)
            return
        outcome.memory = memory.measure_peak(call, self.device, pools)
        outcome.figures |= studied(self.cell, backend, call, self.device)

    def _kernel_config(self, backend: Backend, inputs: Inputs) -> str | None:
        """What a backend with a method `kernel_config` says of its launch."""
        explain = getattr(backend, "kernel_config", None)
        return None if explain is None else explain(self.cell, inputs)

    # Together: interleaved timing on inputs that nobody has seen.

    def _ok(self) -> list[str]:
        return [name for name, outcome in self.outcomes.items() if outcome.status == "ok"]

    def _time(self, used: Inputs) -> None:
        if not self._ok():
            return
        self.step("making fresh inputs")
        self.sets = self._count_sets()
        try:
            sets = [self._fresh(used), *(draw_inputs(self.cell, self.device, i + 2) for i in range(self.sets - 1))]
        except Exception as error:
            if self._kind(error) == "oom":
                raise
            self._fail(self._ok(), describe(error))
            return
        del used
        for group in self._groups():
            self._time_group(group, sets)

    def _fresh(self, used: Inputs) -> Inputs:
        """New contents at the old addresses where they fit: a backend that caches by address then answers wrongly."""
        redrawn = draw_again(used, self.cell, self.device, 1)
        if redrawn is not None:
            return redrawn
        if not self._room(2 * self.resident, 2 * self.elsewhere):
            return used
        drawn = draw_inputs(self.cell, self.device, 1)
        for old, new in zip(used.tensors(), drawn.tensors(), strict=True):
            if old.shape != new.shape:
                return drawn
        for old, new in zip(used.tensors(), drawn.tensors(), strict=True):
            old.copy_(new)
        return replace(used, exact=drawn.exact)

    def _count_sets(self) -> int:
        """Input sets to rotate over: together larger than the last cache, at least two, if memory holds them.

        One, of a corpus in host memory that no cache holds: a second would keep nothing more out of caches, takes as
        much host memory again, and longer to make than it is timed.
        """
        assert self.input_bytes is not None
        if self.elsewhere >= _BEYOND_CACHES:
            return 1
        cache = (l2_bytes() or 0) if self.device == "cuda" else _CPU_CACHE_BYTES
        wanted = min(_MOST_SETS, max(2, math.ceil(2 * cache / max(self.input_bytes, 1))))
        readings = [self.outcomes[name] for name in self._ok()]
        prepared = sum(r.prepare_bytes or 0 for r in readings)
        # A second set must not take the room that the largest call needs: that call would run out of memory for it.
        peak = max((r.memory.peak_extra_bytes for r in readings if r.memory is not None), default=0)
        left = memory.available_bytes(self.device, self.cell.memory_cap) - int(_MARGIN * peak)
        more = self.resident + prepared  # bytes of a set beyond the first, which is there
        fitting = [
            n for n in range(wanted, 0, -1)
            if self._room(n * more, n * self.elsewhere) and (n == 1 or (n - 1) * more <= left)
        ]  # fmt: skip
        return fitting[0] if fitting else 1

    def _room(self, here: int, in_host_memory: int) -> bool:
        """Whether so many bytes on the device and in host memory leave enough of both."""
        free = _MEMORY_SHARE * memory.available_bytes(self.device, self.cell.memory_cap)
        return here <= free and (in_host_memory == 0 or in_host_memory <= _MEMORY_SHARE * memory.available_bytes("cpu"))

    def _groups(self) -> list[list[str]]:
        """Backends that fit into memory together, the baseline first in every group; one group where all fit."""
        names = self._ok()
        base = self.request.baseline if self.request.baseline in names else None
        rest = [name for name in names if name != base]
        first = [base] if base is not None else []
        groups: list[list[str]] = [list(first)]
        for name in rest:
            if len(groups[-1]) > len(first) and not self._fits([*groups[-1], name]):
                groups.append(list(first) if self._fits([*first, name]) else [])
            groups[-1].append(name)
        return [group for group in groups if group]

    def _fits(self, group: Sequence[str]) -> bool:
        readings = [self.outcomes[name] for name in group]
        if any(r.memory is None for r in readings):
            return True  # a processor has no meter; its memory is the system's business
        kept = sum(self.sets * (r.prepare_bytes or 0) for r in readings)
        peak = max(r.memory.peak_extra_bytes for r in readings if r.memory is not None)
        flush = 2 * (l2_bytes() or 0)
        return _MARGIN * (kept + peak + flush) <= memory.available_bytes(self.device, self.cell.memory_cap)

    def _time_group(self, group: list[str], sets: list[Inputs]) -> None:
        """Time backends against each other, then check what came out; one that runs out of memory is tried alone."""
        try:
            self._time_together(group, sets)
        except Exception as error:  # whatever this group's times are, what came out is not known to be right
            self._no_room(error, [name for name in self._ok() if name in group and self._of_group(name, group)])

    def _of_group(self, name: str, group: list[str]) -> bool:
        """Whether a backend's times, if it has any, are those of this group: the baseline keeps its first group's."""
        outcome = self.outcomes[name]
        return outcome.timing is None or outcome.interleaved_with == tuple(group)

    def _time_together(self, group: list[str], sets: list[Inputs]) -> None:
        """`_time_group`; raises what the harness's own work beside the inputs raises."""
        self.step("the reference's results on fresh inputs")
        bits = [checksum(inputs) for inputs in sets]
        backends = {name: self.backends[name] for name in group}
        truths = [truths_of(self.cell, inputs, self.reference, backends) for inputs in sets]
        calls: dict[str, list[Call]] = {}
        crowded: list[str] = []
        for name in group:
            self.step(f"{name}, preparing for timing")
            try:
                calls[name] = [self.backends[name].prepare(self.cell, inputs) for inputs in sets]
            except Exception as error:
                self._timing_failed(name, error, group, crowded)
        timed: dict[str, Timing | TimingFailure] = {}
        if calls:
            with Sampler() as conditions:
                timed = time_callables(
                    calls, self.cell.timing_policy or "cold_l2", self.request.budget, self.device,
                    heartbeat=lambda: self.step(f"timing {', '.join(calls)}"),
                    inspect=lambda name, index, output: self._judge(name, output, truths[index][name]),
                )  # fmt: skip
            self.conditions.reasons |= conditions.reasons
            self.conditions.power_w += conditions.power_w
            self.conditions.sm_clock_mhz += conditions.sm_clock_mhz
            self.conditions.temperature_c += conditions.temperature_c
        calls.clear()
        for name, result in timed.items():
            if isinstance(result, TimingFailure):
                self._timing_failed(name, result.error, group, crowded)
            elif self.outcomes[name].timing is None:  # the baseline keeps the times of its first group
                self._timed(name, result, timed.get(self.request.baseline or ""), group)
        touched = any(checksum(inputs) != before for inputs, before in zip(sets, bits, strict=True))
        if touched:
            self._time_apart(group, sets)
        memory.settle(self.device)
        for name in crowded:
            self._time_group([name], sets)

    def _timed(self, name: str, result: Timing, base: Timing | TimingFailure | None, group: list[str]) -> None:
        outcome = self.outcomes[name]
        outcome.timing, outcome.interleaved_with = result, tuple(group)
        outcome.baseline_timing = base if isinstance(base, Timing) else None
        impossible_because = self._implausible(name, result)
        if impossible_because is not None:
            outcome.fail("incorrect", impossible_because)

    def _timing_failed(self, name: str, error: Exception, group: list[str], crowded: list[str]) -> None:
        outcome = self.outcomes[name]
        if isinstance(error, ResultError):
            outcome.fail("incorrect", str(error))
        elif isinstance(error, CaptureError):
            outcome.fail("unsupported", str(error))
        elif self._kind(error) == "oom" and len(group) > 1:
            crowded.append(name)
        elif outcome.timing is None:
            told = str(error) if isinstance(error, NoRoomError) else describe(error)
            outcome.fail("oom" if self._kind(error) == "oom" else "error", f"while timed: {told}")

    def _time_apart(self, group: list[str], sets: list[Inputs]) -> None:
        """Somebody wrote to the inputs that all shared: nobody's times count, each is timed again by itself."""
        if len(group) == 1:
            self.outcomes[group[0]].fail("incorrect", "overwrites its inputs while it is timed")
        for i in range(len(sets)):
            sets[i] = draw_again(sets[i], self.cell, self.device, i + 1) or draw_inputs(self.cell, self.device, i + 1)
        if len(group) > 1:
            for name in group:
                self.outcomes[name] = replace(self.outcomes[name], status="ok", error=None, timing=None)
                self._time_group([name], sets)

    def _judge(self, name: str, output: object, truth: Truth) -> None:
        """A result of a timed callable against the reference; raises ResultError if it is wrong."""
        with beside_inputs():
            verdict = truth.judge(output, self.backends[name].tolerance(self.cell))
        outcome = self.outcomes[name]
        if outcome.errors is not None:
            outcome.errors = _worse(outcome.errors, verdict.errors)
        if verdict.wrong is not None:
            raise ResultError(f"in timing, on fresh inputs: {verdict.wrong}")

    def _implausible(self, name: str, timing: Timing) -> str | None:
        work = self.work[name]
        cold = timing.policy in ("cold_l2", "clean_l2")
        return timing.suspicion or impossible(
            timing.median_ms, work.flops, work.bytes_min, work.unit, self._peak(), cold=cold
        )

    def _peak(self) -> Peak | None:
        if self.device == "cuda":
            return peak_of(self.hello.device_name)
        rates = (self.request.ceilings or {}).get("matmul_tflops") or {}
        if not rates:
            return None
        bound = _CPU_PEAK_FACTOR * max(rates.values())
        return Peak(half=bound, tf32=bound, int8=math.inf, gbs=math.inf)


def _worse(a: Errors, b: Errors) -> Errors:
    return Errors(max(a.max_abs, b.max_abs), max(a.mean_abs, b.mean_abs), max(a.max_rel, b.max_rel))
