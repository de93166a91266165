"""What the makers' data sheets promise at most: a time that implies more was not the time of the work.

Room: `measure`. Imports nothing else of ours. The figures are data, in the package's `gpus.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Peak:
    """Upper bounds of a card: dense matrix rates in TFLOP/s (TOP/s for int8), bandwidth in GB/s (10⁹)."""

    half: float
    tf32: float
    int8: float
    gbs: float

    def tflops(self, unit: str) -> float:
        """Bound for operands of `unit`. fp32 may be served by split TF32 products, so it has the bound of TF32."""
        return {"fp16": self.half, "bf16": self.half, "int8": self.int8, "fp8": self.int8}.get(unit, self.tf32)


_MARGIN = 1.05  # boost clocks may lie a little above the sheet's


@cache
def _sheets() -> tuple[tuple[tuple[str, ...], Peak], ...]:
    """Parts of a driver's name → bounds, in the order of the package's `gpus.toml`."""
    entries = tomllib.loads(resources.files("maxsim_bench").joinpath("gpus.toml").read_text(encoding="utf-8"))
    return tuple(
        (
            tuple(card["names"]),
            Peak(
                half=card.get("most_fp16_tflops", card["fp16_tflops"]), tf32=card["tf32_tflops"],
                int8=card["int8_tops"], gbs=card["bandwidth_gbs"],
            ),
        )
        for card in entries.values()
        if "names" in card
    )  # fmt: skip


def peak_of(device_name: str) -> Peak | None:
    """The data sheet of a card by the driver's name, None for one that is not in the table."""
    return next((peak for names, peak in _sheets() if any(name in device_name for name in names)), None)


def impossible(
    latency_ms: float, flops: float, bytes_min: float, unit: str, peak: Peak | None, *, cold: bool
) -> str | None:
    """Why this time cannot be the time of the work, None if it can or the card is unknown.

    Args:
        latency_ms: median.
        flops, bytes_min: of one call.
        unit: matrix unit that serves the operands ("fp16", "bf16", "tf32", "fp32", "int8").
        peak: of the card.
        cold: whether nothing of the input can be in a cache, so that the bandwidth bounds the time as well.
    """
    if peak is None:
        return None
    rate = flops / latency_ms / 1e9
    if rate > _MARGIN * peak.tflops(unit):
        return (
            f"not synchronised: {latency_ms:.4g} ms for {flops:.3g} operations means {rate:.4g} TFLOP/s, "
            f"but the data sheet allows {peak.tflops(unit):g}"
        )
    gbs = bytes_min / latency_ms / 1e6
    if cold and gbs > _MARGIN * peak.gbs:
        return (
            f"not synchronised: {latency_ms:.4g} ms for {bytes_min:.3g} bytes means {gbs:.4g} GB/s, "
            f"but the data sheet allows {peak.gbs:g}"
        )
    return None
