"""What the driver tells about the card: clocks, power, energy, heat, throttle reasons. Silent where there is none.

Room: `measure`. Imports nothing else of ours. nvidia-ml-py imports without a driver; only `nvmlInit` then raises.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

# Names of the bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, clock event reasons).
_REASONS = {
    0x0000000000000004: "power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000020: "thermal",
    0x0000000000000040: "hw_thermal",
    0x0000000000000080: "hw_power_brake",
}
SLOWDOWN = frozenset({"hw_slowdown", "thermal", "hw_thermal", "hw_power_brake"})  # these mark a row; the cap is normal


@functools.cache
def _library() -> tuple[Any, str | None]:
    """The initialised pynvml module, or None and why."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver does not answer: {error}"
    return pynvml, None


def why_silent() -> str | None:
    """Why NVML says nothing here, None where it answers."""
    return _library()[1]


@functools.cache
def _handle() -> Any:
    """NVML's handle of torch's current device, by UUID because CUDA_VISIBLE_DEVICES renumbers; else device 0."""
    library, _ = _library()
    if library is None:
        return None
    import torch

    try:
        if torch.cuda.is_available():
            uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
            if uuid is not None:
                return library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        return library.nvmlDeviceGetHandleByIndex(0)
    except library.NVMLError:
        return None


def ask(question: Callable[[Any, Any], T]) -> T | None:
    """`question(pynvml, handle)`, None where the card or driver does not support it."""
    library, _ = _library()
    handle = _handle() if library is not None else None
    if handle is None:
        return None
    try:
        return question(library, handle)
    except library.NVMLError:
        return None


def energy_mj() -> int | None:
    """Millijoules since the driver was loaded; None where the card does not count."""
    return ask(lambda nvml, card: int(nvml.nvmlDeviceGetTotalEnergyConsumption(card)))


def reasons_now() -> frozenset[str] | None:
    """Throttle reasons of this moment by name, None where the driver does not say."""
    mask = ask(lambda nvml, card: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card)))
    return None if mask is None else frozenset(name for bit, name in _REASONS.items() if mask & bit)


@dataclass
class Conditions:
    """What was read while something was measured. Lists hold one entry a reading, empty where the card does not say."""

    sm_clock_mhz: list[int] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    temperature_c: list[int] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    @property
    def throttled(self) -> str | None:
        """Names of the reasons seen, joined by ";", slowdowns of the hardware first; None for none."""
        return ";".join(sorted(self.reasons, key=lambda name: (name not in SLOWDOWN, name))) or None

    def summary(self) -> dict[str, float | str]:
        """Mean clock and power, highest temperature, reasons: what is known, by name."""
        found: dict[str, float | str] = {}
        if self.sm_clock_mhz:
            found["sm_clock_mhz"] = round(sum(self.sm_clock_mhz) / len(self.sm_clock_mhz), 1)
        if self.power_w:
            found["power_w"] = round(sum(self.power_w) / len(self.power_w), 1)
        if self.temperature_c:
            found["temperature_c"] = max(self.temperature_c)
        if self.throttled:
            found["throttled"] = self.throttled
        return found


class Sampler:
    """Context manager: reads the card's conditions in the background while its block runs.

    Args:
        interval_s: between readings; a reading holds the interpreter for some tens of microseconds.
    """

    def __init__(self, interval_s: float = 0.05) -> None:
        self.conditions = Conditions()
        self._interval = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Conditions:
        if _library()[0] is not None and _handle() is not None:
            self._thread = threading.Thread(target=self._loop, name="nvml-sampler", daemon=True)
            self._thread.start()
        return self.conditions

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            self._read()
            if self._stop.wait(self._interval):
                return

    def _read(self) -> None:
        seen = self.conditions
        clock = ask(lambda nvml, card: int(nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)))
        power = ask(lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1e3)
        heat = ask(lambda nvml, card: int(nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)))
        if clock is not None:
            seen.sm_clock_mhz.append(clock)
        if power is not None:
            seen.power_w.append(power)
        if heat is not None:
            seen.temperature_c.append(heat)
        seen.reasons |= reasons_now() or set()
