"""What a number was measured on: card, driver, libraries, processor, revision. Nothing here can fail a run.

Room: `measure`. Imports nothing else of ours. Every fact that cannot be had is a string that says why, under the same
key. Names of hosts and users, and paths, are not recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from maxsim_bench.measure import clock, nvml

# What decides whether two measurements may be compared. Clocks, commits and versions of peers may change in between.
FINGERPRINT = ("device", "gpu", "driver", "cuda", "torch", "triton", "cpu", "cpu_threads")

_PACKAGES = ("maxsim-bench", "numpy", "scipy", "flash-maxsim", "late-interaction-kernels", "maxsim-cpu", "nvidia-ml-py")


def capture(device: str, checkout: Path | None = None) -> dict[str, Any]:
    """Facts about this machine and these libraries.

    Args:
        device: "cuda" or "cpu", where the measuring happens.
        checkout: folder whose git revision is recorded; default where this package lies.
    """
    facts: dict[str, Callable[[], Any]] = {
        "captured_at": clock.utc_now,
        "device": lambda: device,
        "gpu": _gpu_name,
        "gpu_memory_bytes": _gpu_memory,
        "gpu_l2_bytes": _gpu_l2,
        "driver": lambda: _driver(lambda lib, _: lib.nvmlSystemGetDriverVersion()),
        "gpu_power_limit_w": lambda: _driver(lambda lib, card: lib.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3),
        "gpu_max_sm_clock_mhz": lambda: _driver(
            lambda lib, card: lib.nvmlDeviceGetMaxClockInfo(card, lib.NVML_CLOCK_SM)
        ),
        "gpu_max_memory_clock_mhz": lambda: _driver(
            lambda lib, card: lib.nvmlDeviceGetMaxClockInfo(card, lib.NVML_CLOCK_MEM)
        ),
        "cuda": _cuda,
        "torch": lambda: _version("torch"),
        "triton": lambda: _version("triton"),
        "python": platform.python_version,
        "os": lambda: f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name,
        "cpu_count": _cpu_count,
        "cpu_threads": _threads,
        "git_commit": lambda: _git(checkout, "rev-parse", "HEAD"),
        "git_dirty": lambda: bool(_git(checkout, "status", "--porcelain", "--untracked-files=no")),
        "packages": lambda: {name: _version(name) for name in _PACKAGES},
    }
    found = {name: _attempt(ask) for name, ask in facts.items()}
    if str(found["git_commit"]).startswith("unknown: "):
        found["git_dirty"] = found["git_commit"]
    return found


def environment_id(environment: dict[str, Any]) -> str:
    """Twelve hex digits of SHA-256 over the facts of `FINGERPRINT`: equal ids may be compared."""
    part = {name: environment.get(name) for name in FINGERPRINT}
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def device_name(environment: dict[str, Any]) -> str:
    """What a row calls the device: the driver's name of the card, or the processor's."""
    return str(environment["gpu"] if environment["device"] == "cuda" else environment["cpu"])


class Unavailable(RuntimeError):  # noqa: N818  # it is a fact about a machine, not an error of the program
    """A fact that cannot be had, with the reason."""


def _attempt(ask: Callable[[], Any]) -> Any:
    """The fact, or "unknown: reason". Any exception counts: a broken tool must not stop a measurement."""
    try:
        return ask()
    except Exception as error:
        return f"unknown: {(str(error).splitlines() or [type(error).__name__])[0]}"


def _properties() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise Unavailable("no CUDA device")
    return torch.cuda.get_device_properties(torch.cuda.current_device())


def _gpu_name() -> str:
    return str(_properties().name)


def _gpu_memory() -> int:
    return int(_properties().total_memory)


def _gpu_l2() -> int:
    return int(_properties().L2_cache_size)


def _driver(question: Callable[[Any, Any], Any]) -> Any:
    silent = nvml.why_silent()
    if silent is not None:
        raise Unavailable(silent)
    answer = nvml.ask(question)
    if answer is None:
        raise Unavailable("the driver does not say")
    return answer.decode() if isinstance(answer, bytes) else answer


def _cuda() -> str:
    import torch

    if torch.version.cuda is None:
        raise Unavailable("torch is built without CUDA")
    return str(torch.version.cuda)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cpu_count() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _git(checkout: Path | None, *arguments: str) -> str:
    folder = checkout or Path(__file__).resolve().parent
    try:
        # `git status` writes what it learnt into the index: killed meanwhile it leaves a lock in the user's checkout
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        raise Unavailable("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unavailable("git does not answer") from None
    if done.returncode != 0:
        raise Unavailable("not a git checkout")
    return done.stdout.strip()
