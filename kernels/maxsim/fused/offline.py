"""Compile a kernel for a GPU that is not here, and read what it costs there: registers, spills, shared memory.

Room: `fused`. In: a Triton or Gluon function, its signature, an architecture. Out: `Resources`. May import: triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Resources:
    """What one program of a compiled kernel occupies.

    Attributes:
        registers: a thread.
        spills: bytes a thread keeps in local memory for lack of registers (stack frame included).
        shared: bytes a program, as launched.
    """

    registers: int
    spills: int
    shared: int


def compile_offline(
    fn: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    arch: int,
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    aligned: tuple[str, ...] = (),
    max_registers: int | None = None,
) -> Resources:
    """Compile `fn` for compute capability `arch` (80, 90, 100, ...) without a GPU.

    Args:
        fn: what `@triton.jit` or `@gluon.jit` made (not under the interpreter).
        signature: type of every argument that is not in `constants`, e.g. "*fp16", "i32", or a Gluon descriptor type.
        constants: compile-time arguments, and arguments that are None.
        aligned: names of pointers and integers that are multiples of 16, as the launcher finds them to be.
        max_registers: of a thread, as a launch limits them; None leaves it to the compiler.

    Raises:
        whatever the compiler raises; a kernel that does not compile has no resources.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    names = fn.arg_names
    types = {name: "constexpr" if name in constants else signature[name] for name in names}
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source_type = GluonASTSource if isinstance(fn, GluonJITFunction) else ASTSource
    source = source_type(fn=fn, signature=types, constexprs=constexprs, attrs=attrs)
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": max_registers}
    compiled = triton_compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    registers, spills = _usage(compiled.asm["cubin"])
    return Resources(registers=registers, spills=spills, shared=compiled.metadata.shared)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and local bytes a thread of a cubin's only function, by the cuobjdump that the triton wheel carries."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = _USAGE.search(text)
    if found is None:
        raise RuntimeError(f"cuobjdump -res-usage printed no resource usage:\n{text}")
    registers, stack, local = (int(found[i]) for i in (2, 3, 5))
    return registers, stack + local
