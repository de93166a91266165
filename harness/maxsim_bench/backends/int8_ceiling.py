"""The rate of INT8 and FP8 products in the tile of our Hopper kernel, with nothing else: a ceiling of its rows.

Room: `backends`. May import: declare, `maxsim`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maxsim_bench.backends.ceilings import Probe, processors


def _loop(fp8: bool) -> Callable[[], Any]:
    from maxsim.quantized.ceiling import matrix_loop

    return matrix_loop(processors(), fp8=fp8)


def _operations() -> float:
    from maxsim.quantized.ceiling import operations

    return operations(processors())


CEILINGS = [
    Probe("mma_loop_int8", "int8", functools.partial(_loop, False), _operations),
    Probe("mma_loop_fp8", "fp8", functools.partial(_loop, True), _operations),
]
