"""The peer maxsim-cpu: fp32 scoring of one query on a processor.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.identity import installed_version, missing
from maxsim_bench.backends.tolerances import FP32_OPERANDS
from maxsim_bench.declare.cell import Cell


@dataclass(frozen=True)
class MaxSimCpu:
    """maxsim-cpu 0.1.0: `maxsim_scores` on numpy arrays, dense documents, one query."""

    name: str = "maxsim_cpu"
    exact: bool = True
    install: str | None = "pip install 'maxsim-bench[peers]'"

    def version(self) -> str:
        return installed_version("maxsim-cpu")

    def supports(self, cell: Cell, device: str) -> str | None:
        if cell.op != "forward":
            return "offers the forward operator only"
        if device != "cpu":
            return "runs on a processor"
        if (
            cell.dtype != "fp32"
            or cell.Nq != 1
            or cell.layout not in (None, "dense")
            or cell.pairing not in (None, "all")
        ):
            return "takes one fp32 query against dense fp32 documents"
        return missing("maxsim_cpu", f"{self.install}")

    def tolerance(self, cell: Cell) -> float:
        return FP32_OPERANDS

    def prepare(self, cell: Cell, inputs: Inputs) -> Callable[[], object]:
        import maxsim_cpu
        import torch

        q, D = inputs.Q[0].numpy(), inputs.D.numpy()
        return lambda: torch.from_numpy(maxsim_cpu.maxsim_scores(q, D))[None]


BACKENDS = [MaxSimCpu()]
