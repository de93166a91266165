"""Hardware counters of one call: Nsight Compute around a process of its own that makes nothing but this call.

Room: `run`. May import: declare, record, measure, backends. `python -m maxsim_bench.run.counters CELL BACKEND TUNED` is
that process: CELL is the cell as JSON, TUNED a file of what the tuners of the asking process chose, so that what is
counted is the launch that was timed: under Nsight Compute a tuner may choose another.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from maxsim_bench.declare.cell import Cell
from maxsim_bench.run import tuned

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_TIMEOUT_S = 120.0
_TOOLKIT = "/usr/local/cuda/bin"
_DENIED = "ERR_NVGPUCTRPERM"  # the driver lets nobody but an administrator read counters
_denials: list[str] = []  # what the driver said in this process: asking again costs a start of torch and a compilation
_WARMUP_CALLS = 3  # compilation happens before the counters run


def dram_bytes(cell: Cell, backend: str, device: str) -> tuple[float, float] | str:
    """(bytes read from, bytes written to) device memory by one call with cold caches, or why they are not known.

    Caches are emptied before every kernel of the call, so what one kernel leaves for the next in L2 is counted again:
    60 MB at most on an H200. Clocks are left alone.
    """
    if device != "cuda":
        return "a processor has no such counters"
    ncu = _ncu()
    if ncu is None:
        return f"ncu is neither on the path nor in {_TOOLKIT}"
    if _denials:
        return _denials[0]
    with tempfile.TemporaryDirectory(prefix="maxsim-bench-") as folder:
        choices = Path(folder) / "tuned.json"
        choices.write_text(json.dumps(tuned.choices()))
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
            "--profile-from-start", "off", "--metrics", ",".join(METRICS),
            sys.executable, "-m", "maxsim_bench.run.counters", cell.model_dump_json(), backend, str(choices),
        ]  # fmt: skip
        told = _output(command)
    if told is None:
        return f"ncu took more than {_TIMEOUT_S:.0f} s"
    printed, complained = told
    found = parse(printed)
    if found is None:
        lines = (printed + complained).strip().splitlines()
        denied = next((line for line in lines if _DENIED in line), None)
        why = f"ncu counted nothing: {denied or (lines[-1] if lines else 'no output')}"[:300]
        if denied is not None:
            _denials.append(why)
        return why
    return found


def _output(command: list[str]) -> tuple[str, str] | None:
    """What the command wrote to its two streams; None if it took too long: then what it started ends with it.

    All of it stays in this process's group, for whoever ends a worker ends its group.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            return running.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(running.pid).children(recursive=True), running]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return None


def _ncu() -> str | None:
    """Nsight Compute's command: on the path, or where CUDA's toolkit puts it, which is on few paths."""
    return shutil.which("ncu") or shutil.which("ncu", path=_TOOLKIT)


def parse(text: str) -> tuple[float, float] | None:
    """Sums over the kernels in ncu's raw page as CSV in base units; None if it lists no kernel or not all figures."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return None
    kernels = [row for row in csv.DictReader(lines[start:]) if (row["ID"] or "").isdigit()]  # the first row holds units
    if not kernels:
        return None
    try:
        read, written = (sum(float(row[name].replace(",", "")) for row in kernels) for name in METRICS)
    except (KeyError, ValueError):  # a counter that this card or driver has not: no column, or "n/a"
        return None
    return read, written


def main() -> None:
    """Make the call that is counted."""
    import torch

    from maxsim_bench.backends.registry import get
    from maxsim_bench.run.cell_inputs import draw_inputs

    cell = Cell.model_validate_json(sys.argv[1])
    told = [
        tuned.Choice(module, name, tuple(key), config)
        for module, name, key, config in json.loads(Path(sys.argv[3]).read_text())
    ]
    tuned.choose(told)
    call = get(sys.argv[2]).prepare(cell, draw_inputs(cell, "cuda", 0))
    for _ in range(_WARMUP_CALLS):
        call()
    anew = {choice.name for choice in tuned.choices() if choice not in told}
    if anew:
        sys.exit(f"{', '.join(sorted(anew))}: tuned anew, so not the launch that was timed")
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
