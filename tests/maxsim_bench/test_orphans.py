"""No process outlives who started it, however that one ends: nobody would take its answer, and it occupies a device.

Five kinds of process are started in as many ways, and all but ranks end in one (`record/children.py`, which backends
may not import). Those that draw figures are in `report/test_build.py`. Each hangs here, so that it would not notice
that the other end of its channel is gone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

HARNESS = Path(__file__).parents[2] / "harness" / "maxsim_bench"
SESSIONS = Path(__file__).parent / "run" / "fixtures"

CHILD = """
import os, time
from maxsim_bench.record.children import Child

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


TOLD_OF_NO_END = """
import ctypes, os, subprocess, sys, time
from maxsim_bench.record.children import end_with

if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, str(os.getpid())])
else:
    {because}
    end_with(int(sys.argv[1]))
    print(os.getpid(), flush=True)
time.sleep(3600)
"""
REFUSES = "ctypes.CDLL = lambda name: type('Library', (), {'prctl': staticmethod(lambda *asked: -1)})"
STARTED_TOO_LATE = """
import os
from maxsim_bench.record.children import end_with

end_with(os.getpid())
print("lives")
"""


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended may wait for an ancestor to ask how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(CHILD, id="child"),
        pytest.param(AUDIT, id="audit"),
        pytest.param(WORKER, id="worker"),
        pytest.param(TOLD_OF_NO_END.format(because="sys.platform = 'darwin'"), id="where Linux is not"),
        pytest.param(TOLD_OF_NO_END.format(because=REFUSES), id="where Linux refuses"),
        pytest.param(
            RANK, id="rank",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a hanging rank is not told"),
        ),
    ],
)  # fmt: skip
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
        deadline = time.monotonic() + 120
        while alive(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(child)
    finally:
        parent.kill()
        parent.wait()
        if child is not None and alive(child):
            psutil.Process(child).kill()


def test_a_process_whose_parent_ended_before_it_asked_ends_too() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED_TOO_LATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_how_a_process_ends_with_its_parent_is_written_once() -> None:
    """And once more in `backends`, which may import nothing but `declare`."""
    asks = re.compile(r"\b(prctl|parent_process|getppid)\(")
    found = {path.relative_to(HARNESS).as_posix() for path in HARNESS.rglob("*.py") if asks.search(path.read_text())}
    assert found == {"record/children.py", "backends/ddp_ranks.py"}
