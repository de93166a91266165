"""How the report spells things for a reader: backends, cards, axes, metrics with their units, statuses, numbers.

Room: `report`. May import: declare. Rounding happens here and nowhere upstream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

BACKENDS = {
    "reference": "reference (FP64)",
    "eager": "eager",
    "eager_fp32": "eager, FP32 IEEE",
    "eager_tf32": "eager, FP32/TF32",
    "eager_tf32_cast": "eager, FP32/TF32, cast timed",
    "eager_pylate": "eager, PyLate's formula",
    "chunked": "chunked",
    "compiled": "compiled",
    "compiled_graphs": "compiled + graphs",
    "compiled_tf32": "compiled, FP32/TF32",
    "compiled_graphs_tf32": "compiled + graphs, FP32/TF32",
    "fused": "fused (ours)",
    "fused_portable": "fused, portable (ours)",
    "fused_int8": "INT8, scale per token (ours)",
    "fused_int8_doc": "INT8, scale per document (ours)",
    "fused_int8_mixed": "FP16×INT8 (ours)",
    "fused_fp8": "FP8, scale per token (ours)",
    "fused_fp8_doc": "FP8, scale per document (ours)",
    "dequantise_eager": "dequantise, then eager",
    "flash_maxsim": "flash-maxsim",
    "flash_maxsim_int8": "flash-maxsim INT8",
    "flash_maxsim_int8_mixed": "flash-maxsim FP16×INT8",
    "lik": "LIK",
    "lik_fp8": "LIK FP8",
    "maxsim_cpu": "maxsim-cpu",
    "search": "search (ours)",
    "search_int8": "search INT8 (ours)",
    "search_int8_rescored": "search INT8 + rescoring (ours)",
    "read_streaming": "reading only, a program a block",
    "read_persistent": "reading only, persistent",
    "empty_launch": "empty launch",
    "pipeline_fused": "pipeline, fused (ours)",
    "pipeline_chunked": "pipeline, chunked",
    "pipeline_flash": "pipeline, flash-maxsim",
    "train_fused": "fused (ours)",
    "train_lean": "lean (ours)",
    "train_eager": "eager autograd",
    "train_eager_tf32": "eager autograd, TF32",
    "train_checkpointed": "checkpointed, chunked",
    "train_eager_max_tf32": "eager autograd through max, TF32",
    "train_checkpointed_max": "checkpointed through max",
    "train_flash_maxsim": "flash-maxsim",
    "train_lik": "LIK",
    "train_lik_lowmem": "LIK low-memory",
    "train_csr": "inverse-grid CSR (ours)",
    "train_csr_sort": "CSR by sort (ours)",
    "train_atomic": "atomic (ours)",
    "train_recompute": "recompute (ours)",
    "train_stage": "one stage (ours)",
    "train_flash_csr": "flash-maxsim, CSR",
    "train_flash_atomic": "flash-maxsim, atomic",
    "ddp_conventional": "all-gather, eager",
    "ddp_tiled": "tiled (ours)",
    "ddp_sharded": "sharded (ours)",
    "ddp_flash_tiled": "tiled, flash-maxsim",
    "ddp_flash_sharded": "sharded, flash-maxsim",
    "full_step_fused": "whole step, fused (ours)",
    "full_step_eager": "whole step, eager",
    "full_step_flash": "whole step, flash-maxsim",
}
# Backends that score nothing (backends/floor): they are no rivals, and stand in no comparison of scorers.
READERS = ("read_streaming", "read_persistent")
EMPTY = "empty_launch"
NO_SCORERS = (*READERS, EMPTY)
CARDS = {
    "h200": "H200",
    "h100-80gb": "H100 80 GB",
    "a100-80gb": "A100 80 GB",
    "a100-40gb": "A100 40 GB",
    "cpu": "CPU",
    "l4": "L4",
    "rtx4090": "RTX 4090",
}
# Of a row that gave no number: what stands in a table's cell, and the marker in a figure.
STATUS_WORDS = {
    "oom": "OOM",
    "timeout": "timeout",
    "crash": "crash",
    "error": "error",
    "incorrect": "incorrect",
    "unsupported": "n/a",
    "skipped": "skipped",
}
POLICIES = {
    "cold_l2": "cold L2",
    "clean_l2": "cold, clean L2",
    "warm_l2": "warm L2",
    "graph": "graph replays",
    "host": "wall clock of one call",
}
AXIS_LABELS = {
    "B": "documents B",
    "Nq": "queries Nq",
    "Lq": "query tokens Lq",
    "Ld": "document tokens Ld",
    "d": "embedding width d",
    "chunk": "documents a chunk",
    "k": "results kept k",
}
# Axes in the order in which tables and titles name them.
AXES = (
    "Nq", "B", "Lq", "Ld", "d", "dtype", "precision", "layout", "pairing", "length_distribution", "inputs", "dataset",
    "split", "encoder", "chunk", "k", "quantiser", "memory_cap", "timing_policy", "variant",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """What measures an experiment that no file declares: its title, and the module of ours that is run."""

    title: str
    module: str

    @property
    def line(self) -> str:
        """As it is typed."""
        return f"python -m maxsim_bench.{self.module}"


# Experiments that a command measures instead of a declared grid, so that no file holds their title.
COMMANDS = {
    "gradient_audit_float64": Command(
        "Gradients of every deterministic backward path, elementwise against float64 at random lengths: goes further "
        "than gradient_audit",
        "gradient_audit",
    ),
    "training_capacity": Command(
        "Training capacity: the largest contrastive batch whose step fits, by scorer", "training_capacity"
    ),
    "training_curve": Command(
        "The paper's loss curves: Q and D themselves trained, fused and eager from the same start", "training_curve"
    ),
    "training_parity": Command("A contrastive run on real text, fused and eager side by side over seeds", "parity"),
}


@dataclass(frozen=True)
class Metric:
    """A column of the rows as a reader sees it: `factor` turns the column's unit into `unit`."""

    column: str
    label: str
    unit: str
    factor: float = 1.0
    higher_is_better: bool = False
    log: bool = False

    @property
    def axis_label(self) -> str:
        """Label with unit."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label


METRICS = {
    "latency": Metric("latency_ms", "latency", "ms", log=True),
    "memory": Metric("peak_extra_bytes", "peak extra memory", "GB", 1e-9, log=True),
    "speedup": Metric("speedup", "speed-up", "×", higher_is_better=True, log=True),
    "ceiling": Metric("percent_of_ceiling", "share of the binding ceiling", "%", higher_is_better=True),
}

_BYTES = (("GB", 1e-9), ("MB", 1e-6), ("kB", 1e-3))


def readable(metric: Metric, rows: pd.DataFrame) -> Metric:
    """Bytes in the unit of the largest value shown; other metrics as they are."""
    if metric.unit != "GB":
        return metric
    largest = rows[metric.column].max()
    unit, factor = next(((u, f) for u, f in _BYTES if largest * f >= 1), _BYTES[-1])
    return replace(metric, unit=unit, factor=factor)


def tabulated(metric: Metric, rows: pd.DataFrame) -> Metric:
    """Bytes in one unit for a whole table; other metrics as they are.

    The unit of the largest value, or a smaller one in which the smallest is not below 0.001, but none in which the
    largest has more than six digits: calls that keep a few kB stand beside those that fill the card, and an exponent
    between plain numbers is hard to read.
    """
    largest = readable(metric, rows)
    values = rows.loc[rows[metric.column] > 0, metric.column]
    if metric.unit != "GB" or values.empty:
        return largest
    smaller = [(u, f) for u, f in _BYTES if f > largest.factor and values.max() * f < 1e6]
    units = [(largest.unit, largest.factor), *smaller]
    unit, factor = next((one for one in units if values.min() * one[1] >= 1e-3), units[-1])
    return replace(metric, unit=unit, factor=factor)


def backend(name: str) -> str:
    """A backend for a reader."""
    return BACKENDS.get(name, name)


def card(key: str) -> str:
    """A card for a reader."""
    return CARDS.get(key, key)


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, without an exponent between 1e-4 and 1e6; empty for what was not measured."""
    if value is None or math.isnan(value):
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    if not -5 < size < 7:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - size)
    return f"{rounded:.{max(digits - 1 - size, 0)}f}"


def count(value: float) -> str:
    """1000 → "1K", 100000 → "100K", 1024 → "1024"."""
    whole = int(value)
    if whole >= 1000 and whole % 1000 == 0:
        return f"{whole // 1000}K" if whole < 1_000_000 else f"{whole / 1e6:g}M"
    return str(whole)


def axis_value(axis: str, value: Any) -> str:
    """The value of an axis for a table cell or a panel's title; what is not used is "–"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "none" if axis == "memory_cap" else "–"
    if axis == "memory_cap":
        return f"{value / 1e9:g} GB"
    return count(value) if isinstance(value, (int, float)) else str(value)


def settings(axes: dict[str, Any]) -> str:
    """What a panel differs from others by, for its title: "Lq = 32, lengths 20–512, no cap, stage = dd".

    `variant` is given by its parts.
    """
    return ", ".join(words for axis, value in axes.items() for words in _setting(axis, value))


def _setting(axis: str, value: Any) -> list[str]:
    if value is None:  # only a cap that is not there is a setting; other axes are then unused
        return ["no cap"] if axis == "memory_cap" else []
    if axis == "variant":
        return [_part(*part) for part in value.items()]
    if axis == "length_distribution":
        return [_lengths(str(value))]
    label = {"memory_cap": "cap", "timing_policy": "timing"}.get(axis, axis)
    return [f"{label.replace('_', ' ')} = {axis_value(axis, value)}"]


def _part(key: str, value: str | None) -> str:
    if key == "drawn":  # of a corpus: so many documents that differ, again and again
        return "all documents differ" if value is None else f"{count(float(value))} documents repeated"
    words = key.replace("_", " ")
    if value is None:
        return f"no {words}"
    return f"{words} = {count(int(value)) if value.isdigit() else value.replace('_', ' ')}"


def _lengths(distribution: str) -> str:
    """ "uniform:20:512" → "lengths 20–512", of logarithms with their median."""
    kind, *numbers = distribution.split(":")
    if kind == "uniform" and len(numbers) == 2:
        return f"lengths {numbers[0]}–{numbers[1]}"
    if kind == "lognormal" and len(numbers) == 4:
        return f"lengths {numbers[2]}–{numbers[3]}, median {math.exp(float(numbers[0])):.0f}"
    return f"lengths of {distribution}"


def described(axes: dict[str, Any]) -> str:
    """ "Lq = 32, Ld = 300" of a few axes."""
    return ", ".join(f"{axis} = {axis_value(axis, value)}" for axis, value in axes.items())
