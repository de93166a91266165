"""What the first call costs: a process that has compiled nothing, with an empty and then with a filled kernel cache.

Room: `run`. May import: declare, record, measure, backends. `python -m maxsim_bench.run.first_call CELL BACKEND DEVICE`
is that process: it makes the inputs, then prints the seconds from preparing to the first result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from maxsim_bench.declare.cell import Cell
from maxsim_bench.measure import clock

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_TIMEOUT_S = 600.0


class FirstCallError(RuntimeError):
    """The process that makes the first call failed."""


def first_calls(cell: Cell, backend: str, device: str) -> dict[str, float]:
    """`first_call_s_empty_cache` and `first_call_s_filled_cache`: seconds of the first call of two fresh processes.

    Imports, the device's start and the inputs are not in them; compilation, tuning and preparing are.
    """
    with tempfile.TemporaryDirectory(prefix="maxsim-bench-cache-") as folder:
        there = os.environ | dict.fromkeys(CACHES, folder)
        command = [sys.executable, "-m", "maxsim_bench.run.first_call", cell.model_dump_json(), backend, device]
        return {f"first_call_s_{state}_cache": _seconds(command, there) for state in ("empty", "filled")}


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=environment)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        told = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise FirstCallError(f"the process that makes the first call ended with {done.returncode}: {told}"[:500])
    return float(lines[-1])


def main() -> None:
    """Make the call and print its seconds."""
    from maxsim_bench.backends.registry import get
    from maxsim_bench.run.cell_inputs import draw_inputs

    cell, backend, device = Cell.model_validate_json(sys.argv[1]), get(sys.argv[2]), sys.argv[3]
    inputs = draw_inputs(cell, device, 0)
    meter = clock.HostMeter(device)
    meter.synchronize()
    sample = meter.block([lambda: backend.prepare(cell, inputs)()])[0]
    if sample.error is not None:
        raise sample.error
    print(sample.ms / 1e3)


if __name__ == "__main__":
    main()
