"""Rows made up for the report's tests: a model of a card, so that curves look like real ones. Nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.environments import add_environments
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.record.store import Store
from maxsim_bench.report.load import Results, results_of

# Backend → share of the ceiling, launch cost in ms, whether it materialises the similarity tensor.
MODEL: dict[str, tuple[float, float, bool]] = {
    "eager": (0.15, 0.05, True),
    "eager_tf32": (0.10, 0.06, True),
    "chunked": (0.13, 0.20, False),
    "compiled": (0.30, 0.09, True),
    "compiled_tf32": (0.20, 0.09, True),
    "fused": (0.90, 0.03, False),
    "flash_maxsim": (0.55, 0.10, False),
    "lik": (0.50, 0.11, False),
}
CARDS = {"h200": ("NVIDIA H200", 700.0, 4200.0, 140e9), "a100-80gb": ("NVIDIA A100-SXM4-80GB", 250.0, 1700.0, 80e9)}


def cell(experiment: str = "forward", gpu: str = "h200", **axes: Any) -> Cell:
    """A dense fp16 cell, with whatever `axes` change."""
    fields: dict[str, Any] = {
        "op": "forward", "Nq": 1, "B": 1000, "Lq": 32, "Ld": 300, "d": 128, "dtype": "fp16", "layout": "dense",
        "pairing": "all", "inputs": "random", "timing_policy": "cold_l2",
    }  # fmt: skip
    return Cell(experiment=experiment, gpu=gpu, **{**fields, **axes})


def modelled(at: Cell, backend: str) -> Row:
    """The row that a card of the model would give: time from the binding ceiling, memory from what is materialised."""
    name, tflops, gbs, memory = CARDS[at.gpu]
    share, launch, materialises = MODEL[backend]
    Nq, B, Lq, Ld, d = (getattr(at, axis) or 1 for axis in ("Nq", "B", "Lq", "Ld", "d"))
    flops, inputs = 2.0 * Nq * B * Lq * Ld * d, 2 * d * (Nq * Lq + B * Ld)
    pairs = Nq * B
    extra = 4 * pairs
    if materialises:
        extra += 2 * pairs * Lq * Ld
    if backend == "chunked":
        extra += 2 * min(at.chunk or 1024, B) * Lq * Ld
    common: dict[str, Any] = {
        "cell": at, "backend": backend, "backend_version": "1.0", "gpu": name, "environment_id": f"env-{at.gpu}",
        "input_bytes": inputs, "measured_at": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    if extra + inputs > min(memory, at.memory_cap or memory):
        return Row(**common, status="oom", error="CUDA out of memory")
    compute, read = flops / tflops / 1e9, inputs / gbs / 1e6
    ms = launch + max(compute, read) / share * (1 + (40.0 / (at.chunk or 1024) if backend == "chunked" else 0))
    return Row(
        **common, status="ok", latency_ms=ms, latency_p20_ms=0.99 * ms, latency_p80_ms=1.02 * ms, samples=40,
        ci_width_percent=0.8, flops=flops, bytes_min=inputs, tflops=flops / ms / 1e9, achieved_gbs=inputs / ms / 1e6,
        percent_of_ceiling=100 * max(compute, read) / ms, ceiling="compute" if compute > read else "memory",
        peak_extra_bytes=extra, peak_reserved_bytes=extra + (1 << 20), prepare_bytes=0, max_abs_err=1e-6,
        max_rel_err=4e-7 if backend in ("fused", "flash_maxsim", "lik") else 6e-4,
    )  # fmt: skip


def with_speedups(rows: Iterable[Row], baseline: str = "eager") -> list[Row]:
    """Rows with the speed-up over the baseline of their cell, where that was measured."""
    given = list(rows)
    base = {row.cell.hash(): row.latency_ms for row in given if row.backend == baseline}
    found = []
    for row in given:
        reference = base.get(row.cell.hash())
        if row.latency_ms is not None and reference is not None:
            ratio = reference / row.latency_ms
            update = {"speedup": ratio, "speedup_low": 0.99 * ratio, "speedup_high": 1.01 * ratio}
            row = row.model_copy(update={**update, "speedup_baseline": baseline})
        found.append(row)
    return found


def sweep(cells: Iterable[Cell], backends: Iterable[str] = tuple(MODEL)) -> list[Row]:
    """Every cell by every backend of the model."""
    names = list(backends)
    return with_speedups(modelled(at, name) for at in cells for name in names)


def samples_of(row: Row, *, seed: int = 0, count: int = 40, noise: float = 0.005) -> dict[str, Any]:
    """Samples of which the row's latency is the median, as a worker keeps them."""
    random = np.random.default_rng([seed, int(row.cell.hash(), 16) % 2**31, sum(row.backend.encode())])
    ms = random.lognormal(0.0, noise, count)
    ms *= (row.latency_ms or 0.0) / np.median(ms)
    return {"ms": ms.tolist(), "round": list(range(count)), "conditions": {"sm_clock_mhz": 1900.0}}


def as_sampled(rows: Iterable[Row], samples: Mapping[str, Any]) -> list[Row]:
    """The rows with the spread and the speed-up that their samples have, as a worker would have made them."""
    given = list(rows)
    times = {row.key: np.asarray(samples[row.key]["ms"]) for row in given if row.key in samples}
    base_of = {(row.cell.hash(), row.backend): times[row.key] for row in given if row.key in times}
    found = []
    for row in given:
        mine, base = times.get(row.key), base_of.get((row.cell.hash(), row.speedup_baseline or ""))
        update: dict[str, Any] = {}
        if mine is not None and row.latency_p20_ms is not None:
            low, high = np.quantile(mine, [0.2, 0.8])
            update |= {"latency_p20_ms": float(low), "latency_p80_ms": float(high)}
        if mine is not None and base is not None and row.speedup is not None:
            update |= {"speedup": float(np.median(base / mine))}
        found.append(row.model_copy(update=update))
    return found


def written(folder: Path, rows: Iterable[Row], **sampling: Any) -> Path:
    """A results folder: results/<gpu>/<experiment>.csv with samples, of which its rows follow, and environments."""
    groups: dict[Path, list[Row]] = {}
    for row in rows:
        groups.setdefault(folder / row.cell.gpu / f"{row.cell.experiment}.csv", []).append(row)
    for path, group in groups.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = {row.key: samples_of(row, **sampling) for row in group if row.status == "ok"}
        append_samples(path, samples)
        add_environments(path.parent, {f"env-{path.parent.name}": {"gpu": group[0].gpu, "torch": "2.11.0"}})
        Store(path).append(as_sampled(group, samples))
    return folder


class Made:
    """The builders above, for tests."""

    cell = staticmethod(cell)
    modelled = staticmethod(modelled)
    sweep = staticmethod(sweep)
    samples_of = staticmethod(samples_of)
    written = staticmethod(written)

    @staticmethod
    def results(rows: Iterable[Row]) -> Results:
        """Rows as the report loads them."""
        return results_of([(row, f"{row.cell.gpu}/{row.cell.experiment}.csv") for row in rows], {})


@pytest.fixture(scope="session")
def made() -> Made:
    """Builders of made-up rows."""
    return Made()


@pytest.fixture(scope="session")
def forward_rows() -> list[Row]:
    """Two cards, two shapes, four corpus sizes; what materialises runs out of memory at the largest."""
    return sweep(
        cell(gpu=gpu, B=B, Lq=Lq, Ld=Ld)
        for gpu in CARDS
        for Lq, Ld in ((32, 300), (1024, 1024))
        for B in (100, 1000, 10_000, 100_000)
    )


Builder = Callable[..., Any]
