"""What the first call costs: a process that has compiled nothing, over an empty kernel cache or a populated one.

Room: `run`. May import: declare, record, measure, backends. `python -m maxsim_bench.run.first_call CELL BACKEND DEVICE`
is that process: it makes the inputs, then prints the seconds from preparing to the first result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of
from maxsim_bench.measure import clock

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
STATES = {"empty": 1, "populated": 2}  # → processes, of which the last is timed
_TIMEOUT_S = 600.0


class FirstCallError(RuntimeError):
    """The process that makes the first call failed, or none was named."""


def first_call_seconds(cell: Cell, backend: str, device: str) -> float:
    """Seconds of the first call of a fresh process, over the kernel cache that the cell's variant `cache` names.

    "empty": nobody has compiled anything; "populated": another process has made the same call before. Imports, the
    device's start and the inputs are not in them; compilation, tuning and preparing are.
    """
    state = axis_of(cell, VARIANT + "cache")
    if state not in STATES:
        raise FirstCallError(f"variant cache={state}: not one of {', '.join(STATES)}")
    with tempfile.TemporaryDirectory(prefix="maxsim-bench-cache-") as folder:
        there = os.environ | dict.fromkeys(CACHES, folder)
        command = [sys.executable, "-m", "maxsim_bench.run.first_call", cell.model_dump_json(), backend, device]
        return [_seconds(command, there) for _ in range(STATES[state])][-1]


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
