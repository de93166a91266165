"""The rate of fp16 and bf16 products in the tile of our Hopper kernel, with nothing else: a ceiling of its rows.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maxsim_bench.backends.ceilings import Probe, processors


def _loop(dtype: str) -> Callable[[], Any]:
    import torch

    from maxsim.fused import probes

    return probes.matrix_loop(processors(), probes.operands(getattr(torch, dtype)))


def _operations() -> float:
    from maxsim.fused import probes

    return probes.operations(processors())


CEILINGS = [
    Probe("mma_loop_fp16", "fp16", functools.partial(_loop, "float16"), _operations),
    Probe("mma_loop_bf16", "bf16", functools.partial(_loop, "bfloat16"), _operations),
]
