"""What a cell will take: input bytes, the tensor an eager backend materialises, arithmetic, time, and the card.

Room: `declare`. Imports nothing else of ours. Estimates order a plan and warn before a run; no result is made of them.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.encoders import encoder_flops
from maxsim_bench.declare.experiment import DRAWN, Plan, Timing, axis_of

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
# Start-up, inputs, the correctness checks and the memory pass: about this much beside the samples.
OVERHEAD_S = 0.5
# A corpus in host memory, in GB/s: its copies to a card, and drawing, checking and quantising it for one backend; of
# the order of what sweeps of search_scaling and out_of_core took on the host of an H200.
HOST_COPY_GBS = 25.0
HOST_FILL_GBS = 1.0
# Of a data sheet's rate, what an encoder's steps reach: a third, by the published ColPali steps on an A100, and a
# little less by this project's BERT steps on an H200.
ENCODER_SHARE = 1 / 3
# Calls of a backend beside its samples: checks, the memory pass, warm-up. One with an encoder makes its optimiser's
# state by a step whenever it is prepared, once alone and for each set of inputs.
CALLS, ENCODER_CALLS = 5, 5 + 4


class Gpu(BaseModel):
    """A known card: data-sheet peaks (10¹² operations a second, dense) and memory (10⁹ bytes); None where unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    names: tuple[str, ...] = ()
    pattern: str | None = None
    min_gb: float = 0.0
    max_gb: float = float("inf")
    memory_gb: float | None = None
    fp16_tflops: float
    bf16_tflops: float
    tf32_tflops: float
    fp32_tflops: float
    int8_tops: float
    bandwidth_gbs: float
    most_fp16_tflops: float | None = None
    source: str


@cache
def known_gpus() -> dict[str, Gpu]:
    """Key → card, from the package's `gpus.toml`; entries that are a data sheet only are no keys."""
    text = resources.files("maxsim_bench").joinpath("gpus.toml").read_text(encoding="utf-8")
    entries = [Gpu(key=key, **fields) for key, fields in tomllib.loads(text).items()]
    return {gpu.key: gpu for gpu in entries if gpu.pattern or gpu.key == "cpu"}


def gpu_key(device_name: str, memory_bytes: int) -> str:
    """The key of a card, from the name the driver gives it and its memory; an unknown card's name in lower case."""
    gigabytes = memory_bytes / 1e9
    for gpu in known_gpus().values():
        fits = gpu.min_gb <= gigabytes < gpu.max_gb
        if gpu.pattern and fits and re.search(gpu.pattern, device_name, re.IGNORECASE):
            return gpu.key
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def capacity(cell: Cell) -> int | None:
    """Bytes of device memory the cell may use: its cap or the card's memory, whichever is less; None if unknown."""
    gpu = known_gpus().get(cell.gpu)
    room = [int(gpu.memory_gb * 1e9)] if gpu and gpu.memory_gb else []
    return min(room + ([cell.memory_cap] if cell.memory_cap else []), default=None)


def pairs(cell: Cell) -> int:
    """Query-document pairs that are scored; 0 for a cell without sizes (a fidelity cell's come from its data set)."""
    if cell.B is None:
        return 0
    return cell.B if cell.pairing == "pairs" else cell.B * (cell.Nq or 1)


def drawn_documents(cell: Cell) -> int:
    """Documents that are drawn for the corpus of a search: B, or as many as variant `drawn` says, again and again.

    Half a million pages of 1024 tokens are 131 GB, and the published corpora of such sizes are one block, repeated.
    """
    return int(axis_of(cell, DRAWN) or cell.B or 0)


def mean_length(cell: Cell) -> float:
    """Mean tokens a document: of "uniform:low:high" exactly, else the maximum, which bounds it."""
    longest = float(cell.Ld or 0)
    drawn = re.fullmatch(r"uniform:(\d+):(\d+)", cell.length_distribution or "")
    return min(longest, (int(drawn[1]) + int(drawn[2])) / 2) if drawn else longest


def input_bytes(cell: Cell) -> int:
    """Bytes of Q and D as the cell gives them (padding included, unless packed), repeated documents once."""
    size = DTYPE_BYTES[cell.dtype or "fp32"] * (cell.d or 0)
    documents = pairs(cell) if cell.pairing == "candidates" else drawn_documents(cell)
    rows = mean_length(cell) if cell.layout == "packed" else float(cell.Ld or 0)
    return int(size * ((cell.Nq or 0) * (cell.Lq or 0) + documents * rows))


def eager_bytes(cell: Cell) -> int:
    """Bytes of the similarity tensor [pairs, Lq, Ld] in the cell's dtype: what an eager backend materialises."""
    return DTYPE_BYTES[cell.dtype or "fp32"] * pairs(cell) * (cell.Lq or 0) * (cell.Ld or 0)


def flops(cell: Cell) -> float:
    """Multiplications and additions of the scores: 2 · pairs · Lq · mean Ld · d."""
    return 2.0 * pairs(cell) * (cell.Lq or 0) * mean_length(cell) * (cell.d or 0)


def call_seconds(cell: Cell) -> float:
    """Seconds of one eager call (product, write and read of the tensor, read of the inputs): an upper figure.

    A complete training step encodes as well. A search copies the inputs from host memory and materialises nothing.
    """
    gpu = known_gpus().get(cell.gpu) or known_gpus()["l4"]  # an unknown card: the slowest known one
    rate = {"fp16": gpu.fp16_tflops, "bf16": gpu.bf16_tflops, "fp32": gpu.fp32_tflops}[cell.dtype or "fp32"] * 1e12
    if cell.op == "search":
        copied = input_bytes(cell) * (cell.B or 0) / max(1, drawn_documents(cell))
        return max(flops(cell) / rate, copied / (HOST_COPY_GBS * 1e9)) + 1e-5
    work = 3.0 if cell.op == "training_step" else 1.0
    encoding = encoder_flops(cell) / (ENCODER_SHARE * gpu.bf16_tflops * 1e12)
    moved = (2 * eager_bytes(cell) + input_bytes(cell)) / (gpu.bandwidth_gbs * 1e9)
    return work * (flops(cell) / rate + moved) + encoding + 1e-5


def plan_seconds(plan: Plan, timing: Timing) -> float:
    """Seconds to measure a plan: for every backend of every cell its set-up, overhead and samples, or its timeout."""
    total = 0.0
    for planned in plan.planned:
        call = call_seconds(planned.cell)
        samples = max(timing.min_samples * call, min(timing.seconds, timing.max_samples * call))
        calls = ENCODER_CALLS if encoder_flops(planned.cell) else CALLS
        fill = input_bytes(planned.cell) / (HOST_FILL_GBS * 1e9) if planned.cell.op == "search" else 0.0
        for backend in planned.backends:
            needed = timing.setup_seconds.get(backend, 0.0) + OVERHEAD_S + fill + calls * call + samples
            total += min(needed, timing.timeout_s)
    return total
