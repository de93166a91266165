"""What the makers' data sheets promise at most: a time that implies more was not the time of the work.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


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


# NVIDIA's data sheets, dense figures (without sparsity). Parts of the driver's name of a card, the first match counts.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    ("H200 NVL", Peak(half=836, tf32=418, int8=1671, gbs=4800)),
    ("H200", Peak(half=990, tf32=495, int8=1979, gbs=4800)),
    ("GH200", Peak(half=990, tf32=495, int8=1979, gbs=4900)),
    ("H100 PCIe", Peak(half=757, tf32=378, int8=1513, gbs=2000)),
    ("H100 NVL", Peak(half=836, tf32=418, int8=1671, gbs=3900)),
    ("H100", Peak(half=990, tf32=495, int8=1979, gbs=3350)),
    ("A100-SXM4-80GB", Peak(half=312, tf32=156, int8=624, gbs=2039)),
    ("A100 80GB PCIe", Peak(half=312, tf32=156, int8=624, gbs=1935)),
    ("A100", Peak(half=312, tf32=156, int8=624, gbs=1555)),
    ("B200", Peak(half=2250, tf32=1125, int8=4500, gbs=8000)),
    ("L40S", Peak(half=362, tf32=183, int8=733, gbs=864)),
    ("L4", Peak(half=121, tf32=60, int8=242, gbs=300)),
    ("RTX 4090", Peak(half=330, tf32=83, int8=661, gbs=1008)),
    ("RTX 3090", Peak(half=142, tf32=36, int8=284, gbs=936)),
)  # fmt: skip

_MARGIN = 1.05  # boost clocks may lie a little above the sheet's


def peak_of(device_name: str) -> Peak | None:
    """The data sheet of a card by the driver's name, None for one that is not in the table."""
    return next((peak for part, peak in _PEAKS if part in device_name), None)


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
