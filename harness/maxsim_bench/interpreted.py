"""The fused kernel under the Triton interpreter against the reference: correctness where there is no GPU, never time.

Orchestration beside `cli.py`. May import: `maxsim`. The interpreter is chosen when triton is imported, so the check
runs in a process of its own: `interpreter_check()` starts it, `python -m maxsim_bench.interpreted` is it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

# Relative to the sum of the absolute row maxima; fp32 accumulation in another order differs in the last bits only.
TOLERANCE = 1e-5
TIME_LIMIT_S = 300.0

# (Nq, Lq, B, Ld, d, dtype, lengths): no powers of two, tile edges, one token, empty and masked documents.
# bf16 is not here: the interpreter's product of bf16 operands is wrong (seen on triton 3.6, 3.7 and 3.9).
SHAPES: tuple[tuple[int, int, int, int, int, str, str], ...] = (
    (1, 1, 1, 1, 1, "float32", "full"),
    (1, 1, 3, 129, 17, "float32", "full"),
    (1, 33, 3, 1, 3, "float32", "full"),
    (1, 32, 4, 128, 128, "float16", "full"),
    (1, 31, 3, 127, 128, "float16", "full"),
    (2, 17, 3, 65, 96, "float16", "full"),
    (3, 5, 7, 9, 24, "float16", "full"),
    (1, 32, 2, 300, 128, "float16", "full"),
    (1, 129, 2, 64, 64, "float16", "full"),
    (2, 64, 2, 64, 192, "float16", "full"),
    (1, 16, 2, 16, 320, "float32", "full"),
    (1, 16, 2, 33, 384, "float16", "full"),
    (1, 7, 2, 15, 768, "float16", "full"),
    (4, 8, 4, 31, 64, "float32", "full"),
    (1, 32, 4, 100, 128, "float16", "masked"),
    (2, 9, 5, 40, 48, "float32", "masked"),
    (1, 32, 4, 100, 128, "float16", "packed"),
    (2, 9, 5, 40, 48, "float32", "packed"),
    (1, 16, 3, 50, 64, "float16", "empty"),
    (2, 33, 3, 20, 2, "float32", "empty"),
)


class InterpreterError(RuntimeError):
    """The check did not run to its end; the message holds what the process said."""


@dataclass(frozen=True)
class Check:
    """One shape: what it was, largest relative error, and what went wrong (None if nothing)."""

    shape: str
    error: float | None
    problem: str | None


def interpreter_check(timeout_s: float = TIME_LIMIT_S) -> list[Check]:
    """Score every shape with the portable kernel under the interpreter and with the reference, in a fresh process."""
    command = [sys.executable, "-m", "maxsim_bench.interpreted"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InterpreterError(f"the interpreter check took longer than {timeout_s:.0f} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise InterpreterError(f"the interpreter check ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [Check(**entry) for entry in json.loads(lines[-1])]


def check_shape(Nq: int, Lq: int, B: int, Ld: int, d: int, dtype: str, lengths: str) -> dict[str, Any]:
    """Largest error of one shape relative to the scale of its scores, as the fields of a `Check`."""
    import torch

    from maxsim import maxsim

    described = f"Nq={Nq} Lq={Lq} B={B} Ld={Ld} d={d} {dtype} {lengths}"
    generator = torch.Generator().manual_seed(B * Ld + d)
    kind = getattr(torch, dtype)
    Q = torch.nn.functional.normalize(torch.randn(Nq, Lq, d, generator=generator), dim=-1).to(kind)
    D = torch.nn.functional.normalize(torch.randn(B, Ld, d, generator=generator), dim=-1).to(kind)
    options: dict[str, Any] = {}
    if lengths != "full":
        options["d_lengths"] = torch.randint(1, Ld + 1, (B,), generator=generator, dtype=torch.int32)
        if lengths == "empty":
            options["d_lengths"][-1] = 0
        for n, length in enumerate(options["d_lengths"].tolist()):
            D[n, length:] = float("nan")  # what lies behind a document must not matter
    if lengths == "packed":
        counts = options.pop("d_lengths").tolist()
        D = torch.cat([D[n, :length] for n, length in enumerate(counts)])
        options["d_cu_seqlens"] = torch.tensor([0, *counts]).cumsum(0)
    got = maxsim(Q, D, **options, path="portable").double()
    right = maxsim(Q, D, **options, path="reference").double()
    same = (got == right) | ((got - right).abs() <= TOLERANCE * Lq)
    finite = torch.isfinite(right) & torch.isfinite(got)
    error = float(((got - right).abs()[finite] / Lq).max()) if finite.any() else 0.0
    wrong = int((~same).sum())
    return {
        "shape": described,
        "error": error,
        "problem": f"{wrong} of {same.numel()} scores differ" if wrong else None,
    }


def main() -> None:
    """Check every shape; the last line of the output is the result as JSON."""
    print(json.dumps([check_shape(*shape) for shape in SHAPES]))


if __name__ == "__main__":
    main()
