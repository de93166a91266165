"""What lives in a worker process from its first cell to its last: the device and its baseline.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maxsim_bench.backends.base import Backend
from maxsim_bench.backends.ceilings import probes
from maxsim_bench.measure import environment, memory
from maxsim_bench.measure.ceilings import Offer, measure_ceilings
from maxsim_bench.measure.failures import describe, kind_of
from maxsim_bench.run.measure_cell import CellMeasurement
from maxsim_bench.run.protocol import CellRequest, CellResult, Hello, LostDeviceError, Step


def device_key(device: str) -> str:
    """One device of this machine, for its lock: the GPU's own identifier, or "cpu"."""
    if device != "cuda":
        return "cpu"
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return str(getattr(properties, "uuid", f"cuda:{torch.cuda.current_device()}"))


class CellSession:
    """A `Session` that measures for real."""

    def __init__(self, device: str | None, resolve: Callable[[str], Backend]) -> None:
        """Take a device: the one named, else the current GPU if there is one, else the processor.

        Raises:
            RuntimeError: for "cuda" where there is none, or a device that does not compute.
        """
        import torch

        here = torch.cuda.is_available()
        if device == "cuda" and not here:
            raise RuntimeError("device 'cuda' was asked for, but torch sees no NVIDIA GPU here")
        self.device = device or ("cuda" if here else "cpu")
        self._resolve = resolve
        memory.probe(self.device)
        self._baseline = memory.settle(self.device)
        memory.freeze()

    def hello(self) -> Hello:
        """Who is ready, and where."""
        facts = environment.capture(self.device)
        return Hello(
            self.device,
            environment.device_name(facts),
            device_key(self.device),
            facts,
            environment.environment_id(facts),
        )

    def ceilings(self) -> dict[str, Any]:
        """Ceilings of this device, as a record."""
        loops = probes() if self.device == "cuda" else []
        offers = [Offer(loop.name, loop.unit, loop.make, loop.operations()) for loop in loops]
        found = measure_ceilings(self.device, offers=offers).to_record()
        memory.settle(self.device)
        return found

    def measure(self, request: CellRequest, step: Step) -> CellResult:
        """Measure a cell, then say whether this process may be used again.

        Raises:
            LostDeviceError: if the device no longer computes.
        """
        try:
            result = CellMeasurement(request, self.hello_once(), self._resolve, step).run()
            result.unhealthy = memory.leak(self._baseline, self.device)
            memory.freeze()
            memory.probe(self.device)
        except Exception as error:
            if kind_of(error) == "fatal":  # reported wherever the next call happens to wait for the device
                raise LostDeviceError(describe(error)) from error
            raise
        return result

    def hello_once(self) -> Hello:
        """`hello`, captured once."""
        if not hasattr(self, "_hello"):
            self._hello = self.hello()
        return self._hello
