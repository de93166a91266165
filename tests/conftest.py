"""Rules for every test.

A missing GPU or data set skips aloud, uninitialised memory is NaN, JAX keeps off the card, Ctrl-C reaches a process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version

DATA_ENV = "MAXSIM_BENCH_DATA"

# Tests of first stages import bm25s when they are collected; see `maxsim_bench.retrieve.rerank` for what that does.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A shell starts a job in the background with SIGINT ignored, which every process below inherits, those that a test
# sends Ctrl-C to as well.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests with the reason where no NVIDIA GPU is visible, and `data` tests where no data set is."""
    no_gpu = pytest.mark.skip(reason="no NVIDIA GPU is visible; run `make test-gpu` on a machine that has one")
    no_data = pytest.mark.skip(reason=f"no retrieval data sets: point ${DATA_ENV} at a folder of BEIR archives")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("data") and _data_dir() is None:
            item.add_marker(no_data)


def _data_dir() -> Path | None:
    """Folder with BEIR archives: the environment variable's, or `shared/data` beside the checkout."""
    named = os.environ.get(DATA_ENV)
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture
def data_dir() -> Path:
    """Folder with the archives scifact.tar.gz, cranfield.tar.gz and so on; use with the marker `data`."""
    folder = _data_dir()
    if folder is None:
        pytest.skip(f"no retrieval data sets: point ${DATA_ENV} at a folder of BEIR archives")
    return folder


@pytest.fixture(scope="session")
def can_interpret() -> None:
    """Skip where triton's interpreter cannot run a kernel, whichever it is."""
    if Version(version("triton")) < Version("3.7") and Version(version("numpy")) >= Version("2.4"):
        pytest.skip("the interpreter of triton 3.6 fails with numpy 2.4 and newer")


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` returns NaN (or the largest integer), so an output that nobody wrote cannot look right."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.utils.deterministic.fill_uninitialized_memory = fill
