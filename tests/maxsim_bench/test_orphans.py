"""No process outlives who started it, however that one ends: nobody would take its answer, and it occupies a device.

Five kinds of process are started in as many ways; those that draw figures are in `report/test_build.py`. Each hangs
here, so that it would not notice that the other end of its channel is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SESSIONS = Path(__file__).parent / "run" / "fixtures"

CHILD = """
import os, time
from maxsim_bench.children import Child

def work(channel):
    print(os.getpid(), flush=True)
    time.sleep(3600)

if __name__ == "__main__":
    child = Child(work)
    time.sleep(3600)
"""
AUDIT = """
import os, time
from maxsim_bench.retrieve.isolate import in_own_process

def work():
    print(os.getpid(), flush=True)
    time.sleep(3600)

if __name__ == "__main__":
    in_own_process(work, (), 3600)
"""
WORKER = """
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.process import WorkerProcess
from maxsim_bench.run.protocol import CellRequest, WorkerSetup

def tell(text):
    if text.endswith(": hang"):
        print(worker._process.pid, flush=True)

worker = WorkerProcess(WorkerSetup(session="fake_session:FakeSession", resolver="fake_session:get"), 60, tell, 0.2)
worker.measure(CellRequest(Cell(experiment="t", gpu="cpu", op="forward"), ("hang",), {"hang": "1"}, timeout_s=3600))
"""
RANK = """
import os, time, torch
from maxsim_bench.backends.ddp import STEPS
from maxsim_bench.backends.ddp_ranks import ranks_for

def step(q, d, place):
    if place.rank:
        print(os.getpid(), flush=True)
    time.sleep(3600)

STEPS["ddp_tiled"] = step
if __name__ == "__main__":
    ranks_for(2, "cpu").prepare("ddp_tiled", 0.02, torch.ones(2, 3, 4), torch.ones(4, 5, 4))()
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended may wait for an ancestor to ask how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a hanging worker or rank is not told of its parent's end"
)
@pytest.mark.parametrize("program", [CHILD, AUDIT, WORKER, RANK], ids=["child", "audit", "worker", "rank"])
def test_a_process_that_hangs_ends_with_the_one_that_started_it(program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    searched = os.pathsep.join([str(SESSIONS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": searched, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    parent = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment)
    child = None
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert child != parent.pid
        assert alive(child)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while alive(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(child)
    finally:
        parent.kill()
        parent.wait()
        if child is not None and alive(child):
            psutil.Process(child).kill()
