"""Measure the candidate tiles of the portable kernel on this GPU and write its part of the launch table.

    python -m maxsim_bench.tune            # prints entries for launch_table.toml, writes tune_<gpu>.csv
    python -m maxsim_bench.tune --write    # replaces this architecture's entries in launch_table.toml

Orchestration beside `cli.py`. In: a GPU. Out: entries of `maxsim/fused/launch_table.toml`, each with what it reached
and how far the runner-up was. May import every room and `maxsim`. A tool for whoever brings a new GPU.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from maxsim_bench.modules import command_parser

if TYPE_CHECKING:
    import torch

    from maxsim.fused.launch import LaunchPlan
    from maxsim.tokens import TokenBatch

ANY_D = 1 << 20


@dataclass(frozen=True)
class Kind:
    """One entry of the table and the shapes that decide it.

    Attributes:
        bits, rows, d: the entry's key; `precision` of fp32 products, None for 16-bit operands.
        shapes: (Nq, Lq, B, Ld, d) measured; the tile with the least geometric mean of times wins.
        tiles: candidates (block_n, block_k, warps, stages, tokens).
    """

    bits: int
    rows: int
    d: int
    shapes: tuple[tuple[int, int, int, int, int], ...]
    tiles: tuple[tuple[int, int, int, int, int], ...]
    precision: str | None = None


_NARROW = ((64, 128, 2, 2, 0), (64, 128, 2, 3, 0), (64, 128, 4, 3, 0), (128, 128, 4, 3, 0), (64, 128, 2, 2, 300))
_WIDE = ((64, 128, 4, 2, 0), (64, 128, 4, 3, 0), (64, 128, 8, 3, 0), (128, 128, 4, 2, 0), (128, 128, 8, 3, 0))
_CHUNKED = ((64, 64, 4, 3, 0), (64, 64, 8, 3, 0), (128, 64, 4, 3, 0), (128, 64, 8, 3, 0), (64, 64, 2, 4, 0))
_EXACT = ((64, 32, 2, 2, 0), (64, 32, 4, 2, 0), (64, 64, 4, 2, 0), (64, 32, 8, 2, 0), (128, 32, 8, 2, 0))
_FAST = ((32, 128, 4, 2, 0), (64, 64, 4, 2, 0), (64, 32, 4, 2, 0), (128, 32, 8, 2, 0))
_WHOLE_256 = ((64, 256, 2, 2, 0), (64, 256, 4, 2, 0), (64, 256, 8, 2, 0), (128, 256, 8, 2, 0))
KINDS = (
    Kind(16, 16, 128, ((1, 16, 10_000, 128, 128),), _NARROW),
    Kind(16, 32, 128, ((1, 32, 10_000, 300, 128), (1, 32, 20_000, 60, 128), (1, 32, 1000, 300, 128)), _NARROW),
    Kind(16, 64, 128, ((1, 64, 10_000, 300, 128),), (*_NARROW[2:4], *_WIDE[:2], (64, 128, 4, 3, 600))),
    Kind(16, 128, 128, ((1, 1024, 1000, 1024, 128), (64, 32, 1000, 300, 128)), _WIDE),
    Kind(16, 32, 256, ((1, 32, 5000, 300, 256),), _WHOLE_256[:2]),
    Kind(16, 64, 256, ((1, 64, 5000, 300, 256),), _WHOLE_256),
    Kind(16, 128, 256, ((1, 1024, 300, 1024, 256),), _WHOLE_256[1:]),
    Kind(16, 32, ANY_D, ((1, 32, 2000, 300, 768),), _CHUNKED),
    Kind(16, 128, ANY_D, ((16, 32, 1000, 300, 768), (1, 128, 500, 300, 2048)), _CHUNKED),
    Kind(32, 32, ANY_D, ((1, 32, 5000, 300, 128),), _EXACT, "exact"),
    Kind(32, 128, ANY_D, ((16, 32, 300, 512, 128),), _EXACT, "exact"),
    Kind(32, 32, 128, ((1, 32, 5000, 300, 128),), _FAST, "tf32"),
    Kind(32, 128, ANY_D, ((16, 32, 300, 512, 128),), _FAST[1:], "tf32"),
)


def measure(kind: Kind, arch: int) -> Iterator[dict[str, Any]]:
    """One row for every candidate and shape that runs: tile, time in ms, TFLOP/s, GB/s, relative error.

    The candidates of a shape are timed against each other, interleaved, by the one timer.
    """
    import torch

    from maxsim import reference
    from maxsim.fused import launch
    from maxsim_bench.measure.timer import Timing, TimingBudget, time_callables

    dtype = torch.float16 if kind.bits == 16 else torch.float32
    for Nq, Lq, B, Ld, d in kind.shapes:
        q, documents = _unit(Nq, Lq, d, dtype=dtype), _unit(B, Ld, d, dtype=dtype)
        expected, _ = reference.float64(q, documents.select(torch.arange(2, device=q.device)))
        chosen = launch.choose(arch, dtype, d, Nq, Lq, Ld, B, precision="tf32" if kind.precision == "tf32" else "ieee")
        errors = {tile: _error(q, documents, _with_tile(chosen, tile, d, Ld), expected) for tile in kind.tiles}
        calls = {
            str(tile): [_call(q, documents, _with_tile(chosen, tile, d, Ld))]
            for tile, error in errors.items()
            if error is not None
        }
        timed = time_callables(calls, "cold_l2", TimingBudget(seconds=0.02), "cuda")
        for tile, error in errors.items():
            timing = timed.get(str(tile))
            if timing is None:
                continue
            if not isinstance(timing, Timing):
                raise timing.error
            ms = timing.median_ms
            yield {
                "bits": kind.bits, "rows": kind.rows, "d_limit": kind.d, "precision": kind.precision or "",
                "Nq": Nq, "Lq": Lq, "B": B, "Ld": Ld, "d": d,
                **dict(zip(("block_n", "block_k", "warps", "stages", "tokens"), tile, strict=True)),
                "ms": ms, "tflops": 2e-9 * Nq * Lq * B * Ld * d / ms, "gbs": 1e-6 * B * Ld * d * kind.bits / 8 / ms,
                "relative_error": error,
            }  # fmt: skip


def _call(q: TokenBatch, documents: TokenBatch, plan: LaunchPlan) -> Callable[[], Any]:
    from maxsim.fused import portable

    return partial(portable.forward, q, documents, pairing="all", argmax_dtype=None, plan=plan)


def _error(q: TokenBatch, documents: TokenBatch, plan: LaunchPlan, expected: torch.Tensor) -> float | None:
    """Relative error of the first two documents' scores; None where this GPU lacks the tile's shared memory."""
    from triton.runtime.errors import OutOfResources

    try:
        scores, _ = _call(q, documents, plan)()
    except OutOfResources as error:
        print(f"not a candidate here: {error}", file=sys.stderr)
        return None
    return ((scores[:, :2].double() - expected) / expected).abs().max().item()


def _with_tile(plan: LaunchPlan, tile: tuple[int, int, int, int, int], d: int, Ld: int) -> LaunchPlan:
    from maxsim.fused import launch

    block_n, block_k, warps, stages, rows = tile
    return replace(
        plan, block_n=block_n, block_k=launch.chunk(d, block_k), num_warps=warps, num_stages=stages,
        docs_per_program=max(1, rows // Ld),
    )  # fmt: skip


def _unit(count: int, length: int, d: int, *, dtype: torch.dtype) -> TokenBatch:
    """Random unit vectors [count, length, d] as a batch."""
    import torch

    from maxsim.tokens import tokens

    generator = torch.Generator("cuda").manual_seed(count + length)
    x = torch.randn(count, length, d, device="cuda", generator=generator)
    return tokens(torch.nn.functional.normalize(x, dim=-1).to(dtype))


def best(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The tile with the least geometric mean of times over all shapes of a kind, and the reason as a sentence."""
    names = ("block_n", "block_k", "warps", "stages", "tokens")
    times: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        times.setdefault(tuple(row[name] for name in names), []).append(row["ms"])
    shapes = max(map(len, times.values()))
    means = {tile: geometric_mean(ms) for tile, ms in times.items() if len(ms) == shapes}
    order = sorted(means, key=lambda tile: means[tile])
    first = next(row for row in rows if tuple(row[name] for name in names) == order[0])
    why = f"{first['tflops']:.0f} TFLOP/s, {first['gbs']:.0f} GB/s at Nq={first['Nq']}, Lq={first['Lq']}"
    why += f", B={first['B']}, Ld={first['Ld']}, d={first['d']}"
    if len(order) > 1:
        why += f"; the next best tile takes {means[order[1]] / means[order[0]]:.2f} times as long"
    return dict(zip(names, order[0], strict=True)), why


def entry(kind: Kind, arch: int, products: str | None, rows: list[dict[str, Any]], gpu: str) -> str:
    """The TOML text of one table entry."""
    tile, why = best(rows)
    lines = ["[[tile]]", f"arch = {arch}", f"bits = {kind.bits}"]
    lines += [f'precision = "{products}"'] if products else []
    lines += [f"rows = {kind.rows}", f"d = {kind.d}"]
    lines += [f"{name} = {tile[name]}" for name in ("block_n", "block_k", "warps", "stages", "tokens")]
    return "\n".join([*lines, f'why = "{gpu}: {why}"']) + "\n"


def replaced(table: str, arch: int, entries: list[str]) -> str:
    """The text of the table with all tiles of `arch` replaced."""
    head, *tiles = table.split("[[tile]]\n")
    kept = [
        "[[tile]]\n" + tile.rstrip() + "\n" for tile in tiles if not re.search(rf"^arch = {arch}$", tile, re.MULTILINE)
    ]
    return head + "\n".join([*kept, *entries])


def main() -> None:
    """Measure every kind, print the entries, write the samples."""
    import torch

    from maxsim.fused import launch

    parser = command_parser("tune", __doc__ or "")
    parser.add_argument("--write", action="store_true", help="replace this architecture's entries in launch_table.toml")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for tune_<gpu>.csv")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs an NVIDIA GPU: the table is measured, not computed")
    arch = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    gpu = torch.cuda.get_device_name()
    samples, entries = [], []
    for kind in KINDS:
        rows = list(measure(kind, arch))
        samples += rows
        products = launch.products(arch, "ieee") if kind.precision == "exact" else kind.precision
        entries.append(entry(kind, arch, products, rows, gpu))
        print(entries[-1], flush=True)
    path = options.out / f"tune_{gpu.lower().replace(' ', '_')}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, samples[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(samples)
    if options.write:
        table = Path(str(files("maxsim.fused").joinpath("launch_table.toml")))
        table.write_text(replaced(table.read_text("utf-8"), arch, entries), "utf-8")


if __name__ == "__main__":
    main()
