"""Which kernel runs, with which tile, and why: a printable value, looked up in a table and never tuned at run time.

Room: `fused`. In: what two batches look like. Out: `LaunchPlan`. May import: `maxsim.tokens`.

A plan is a function of shapes, dtype and device only. What could move a bit of a pair's score (the arithmetic, BLOCK_K)
depends on the dtype, d and the device alone; the rest (rows, document tile, warps, stages, documents a program) moves
time, not bits.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import torch

from maxsim.tokens import Pairing, TokenBatch, documents_per_query

SLICE = 128  # rows of a query that one program holds at most: partial sums are ceil(Lq / 128) times the scores
BITS = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}


@dataclass(frozen=True)
class LaunchPlan:
    """One launch, as a value that can be printed, compared and passed back to `fused.forward(plan=...)`.

    Attributes:
        kernel: "portable" | "hopper" | "torch" | "reference".
        block_m: query rows a program holds.
        block_n: document tokens it multiplies them with at a time.
        block_k: embedding dimensions loaded at a time.
        group: rows reserved for one query (or 128-row slice of one); block_m / group queries share a tile.
        slices: slices of a query, each with its own partial sum.
        docs_per_program: documents that one program scores one after the other.
        num_warps, num_stages: of a program; depth of its load pipeline.
        precision: arithmetic of the products: "ieee" | "tf32" | "tf32x3" (fp16 and bf16 operands are always exact).
        ceiling: what binds this launch by data-sheet rates: "compute" | "memory" | "launch"; "unknown" off the GPU.
        why: where kernel and tile come from, in words.
    """

    kernel: str
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    group: int = 0
    slices: int = 1
    docs_per_program: int = 1
    num_warps: int = 0
    num_stages: int = 0
    precision: str = "ieee"
    ceiling: str = "unknown"
    why: str = ""

    def __str__(self) -> str:
        if self.block_m == 0:
            return f"{self.kernel} ({self.why})"
        queries = self.block_m // self.group
        rows = f"{queries} queries" if queries > 1 else f"{self.slices} slice(s)"
        return (
            f"{self.kernel}: tile {self.block_m} x {self.block_n} x {self.block_k} ({rows} of {self.group} rows), "
            f"{self.docs_per_program} document(s) a program, {self.num_warps} warps, {self.num_stages} stages, "
            f"{self.precision}, bound by {self.ceiling} ({self.why})"
        )


def plan(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = "all",
    precision: str = "ieee",
    argmax: bool = False,
    path: str | None = None,
) -> LaunchPlan:
    """The launch for two batches: reads shapes, dtypes and the device's capability, never the content of a tensor.

    Raises:
        ValueError: for a `path` that cannot run on this device or dtype.
    """
    if path in ("reference", "torch"):
        return LaunchPlan(path, precision=precision, why=f'path="{path}"')
    if path is None and q.dtype == torch.float64:
        return LaunchPlan("reference", why="float64 operands go to the reference")
    if path is None and q.device.type != "cuda":
        return LaunchPlan("torch", precision=precision, why=f"no fused kernel for {q.device.type}")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f'path: "{path}" takes float16, bfloat16 and float32, not {q.dtype}; use path="reference"')
    arch = _capability(q.device, path)
    if path is None and arch < min(_table()["device"]):
        return LaunchPlan("torch", precision=precision, why=f"compute capability {arch / 10} is older than 8.0")
    K = documents_per_query(q, d, pairing)
    chosen = choose(arch, q.dtype, q.d, q.count, q.max_length, d.max_length, K, pairing, precision, argmax)
    if path == "portable" or arch // 10 != 9:
        if path == "hopper":
            raise ValueError(f'path: "hopper" needs compute capability 9.0, this is {arch / 10}; use "portable"')
        return chosen
    from maxsim.fused import hopper

    reason = hopper.supports(q, d, pairing=pairing, argmax=argmax, precision=precision)
    if reason is None:
        return hopper.plan(q, d, pairing=pairing, argmax=argmax, ceiling=chosen.ceiling)
    if path == "hopper":
        raise ValueError(f'path: "hopper" cannot run this: {reason}; use path=None or "portable"')
    return chosen


@lru_cache(maxsize=4096)
def choose(
    arch: int,
    dtype: torch.dtype,
    d: int,
    Nq: int,
    Lq: int,
    Ld: int,
    K: int,
    pairing: Pairing = "all",
    precision: str = "ieee",
    argmax: bool = False,
) -> LaunchPlan:
    """The portable kernel's launch from the table.

    Args:
        arch: compute capability times ten (80, 86, 89, 90, 100, 120); the newest entry not newer than it is used.
        d: embedding dimension.
        Nq, Lq, Ld: queries; most tokens of a query and of a document.
        K: documents that one query is scored with.
    """
    bits = BITS[dtype]
    slices = max(1, -(-Lq // SLICE))
    group = SLICE if slices > 1 else _power_of_two(Lq)
    rows = min(SLICE, group * _power_of_two(Nq)) if pairing == "all" else group
    table = _table()
    device = table["device"][_newest(arch)]
    arithmetic = "ieee" if bits == 16 else products(arch, precision)
    entry = _tile(arch, bits, max(16, rows), d, arithmetic)
    block_m = max(16, rows)
    programs = -(-Nq * slices * group // block_m) * K
    docs = max(1, min(entry["tokens"] // max(1, Ld), programs // device["programs"]))
    return LaunchPlan(
        kernel="portable",
        block_m=block_m,
        block_n=entry["block_n"],
        block_k=chunk(d, entry["block_k"]),
        group=block_m if pairing != "all" else group,
        slices=slices,
        docs_per_program=docs,
        num_warps=entry["warps"],
        num_stages=entry["stages"],
        precision=arithmetic,
        ceiling=_ceiling(arch, bits, d, Nq, Lq, Ld, K, pairing),
        why=f"sm_{entry['arch']} table, {bits}-bit, up to {entry['rows']} rows, d up to {entry['d']}: {entry['why']}",
    )


@cache
def _table() -> dict[str, Any]:
    """launch_table.toml, device entries keyed by integer capability."""
    table = tomllib.loads(files("maxsim.fused").joinpath("launch_table.toml").read_text("utf-8"))
    table["device"] = {entry["arch"]: entry for entry in table["device"]}
    return table


def products(arch: int, precision: str) -> str:
    """Arithmetic of fp32 products on `arch`: what the caller's `precision` becomes."""
    exact: str = _table()["device"][_newest(arch)]["fp32"]
    return "tf32" if precision == "tf32" else exact


def tiles() -> list[dict[str, Any]]:
    """Every tile of the table, as written there."""
    return list(_table()["tile"])


def _newest(arch: int) -> int:
    """The newest architecture of the table that is not newer than `arch`."""
    return max(known for known in _table()["device"] if known <= arch)


def _tile(arch: int, bits: int, rows: int, d: int, precision: str) -> dict[str, Any]:
    """The table's tile: newest fitting architecture first, then the smallest row and d limits that hold the case."""
    fits = [
        tile
        for tile in tiles()
        if tile["arch"] <= arch
        and tile["bits"] == bits
        and rows <= tile["rows"]
        and d <= tile["d"]
        and tile.get("precision", precision) == precision
    ]
    return min(fits, key=lambda tile: (-tile["arch"], tile["rows"], tile["d"]))


def chunk(d: int, limit: int) -> int:
    """Dimensions loaded at a time: all of d where `limit` holds it, else the power of two that pads least."""
    if d <= limit:
        return max(16, _power_of_two(d))
    chunks = [c for c in (limit, limit // 2, limit // 4) if c >= 16]
    return min(chunks, key=lambda c: (-(-d // c) * c, -c))


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least max(1, n)."""
    return 1 << max(0, n - 1).bit_length()


def _ceiling(arch: int, bits: int, d: int, Nq: int, Lq: int, Ld: int, K: int, pairing: Pairing) -> str:
    """What binds by data-sheet rates: arithmetic, compulsory document and query bytes, or the launch itself."""
    rates = _table()["device"][_newest(arch)]
    documents = K if pairing == "all" else Nq * K
    compute_us = 2e-6 * Nq * K * Lq * Ld * d / rates[f"tflops_{bits}"]
    memory_us = 1e-3 * (documents * Ld + Nq * Lq) * d * (bits // 8) / rates["read_gbs"]
    if max(compute_us, memory_us) < rates["launch_us"]:
        return "launch"
    return "compute" if compute_us >= memory_us else "memory"


@cache
def _device_capability(index: int) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return major * 10 + minor


def _capability(device: torch.device, path: str | None) -> int:
    """Compute capability times ten; of the interpreter, the oldest in the table."""
    if device.type == "cuda":
        return _device_capability(device.index if device.index is not None else torch.cuda.current_device())
    from maxsim.fused.portable import INTERPRETED

    if path == "portable" and INTERPRETED:
        return min(_table()["device"])
    raise ValueError(
        f'path: "{path}" needs an NVIDIA GPU, the tensors are on {device.type}; '
        'move them, use path=None, or set TRITON_INTERPRET=1 before importing maxsim to simulate path="portable"'
    )
