"""Launching a gradient kernel with little host time.

Room: `training`. May import: triton, where a kernel is launched.

A training step at small batches lasts as long as its launches take on the host, and triton's own launcher analyses
every argument of every call. Here a variant is analysed once, on its first launch, and found again by what decides
its code.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 16  # bytes or elements: what triton specialises on
_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    name: str,
    programs: tuple[int, int],
    pointers: tuple[Tensor | None, ...],
    sized: tuple[int, ...],
    plain: tuple[int, ...],
    constants: tuple[Any, ...],
    warps: int,
    registers: int | None = None,
) -> None:
    """Run a kernel of `kernels.py` on the device of its first pointer, whichever is current.

    Args:
        programs: of both grid axes; nothing is launched where one is 0.
        pointers: in the kernel's order, None where the variant does not read one; the first is a tensor.
        sized: integers whose divisibility by 16 decides how wide the kernel loads.
        plain: integers that the kernel is not specialised on.
        constants: compile-time arguments.
        registers: most that a thread may have; None leaves it to the compiler.
    """
    if not (programs[0] and programs[1]):
        return
    device = pointers[0].device  # type: ignore[union-attr]  # the first is a tensor
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        _launch(name, programs, pointers, sized, plain, constants, warps, registers, device)
        return
    with torch.cuda.device(device):
        _launch(name, programs, pointers, sized, plain, constants, warps, registers, device)


def _launch(
    name: str, programs: tuple[int, int], pointers: tuple[Tensor | None, ...], sized: tuple[int, ...],
    plain: tuple[int, ...], constants: tuple[Any, ...], warps: int, registers: int | None, device: torch.device,
) -> None:  # fmt: skip
    key = (
        name, device.index, warps, registers, constants,
        tuple([None if p is None else p.dtype for p in pointers]), tuple([x % _ALIGNED == 0 for x in sized]),
    )  # fmt: skip
    addresses = [0 if p is None else p.data_ptr() for p in pointers]
    bits = 0
    for address in addresses:
        bits |= address
    usual = not bits % _ALIGNED and max(*sized, *plain) < 2**31 and 1 not in sized
    compiled = _COMPILED.get(key) if usual else None
    if compiled is None:
        from maxsim.training import kernels

        stand_in = [pointers[0] if p is None else p for p in pointers]
        options = {} if registers is None or kernels.INTERPRETED else {"maxnreg": registers}
        compiled = getattr(kernels, name)[programs](*stand_in, *sized, *plain, *constants, num_warps=warps, **options)
        if usual and device.type == "cuda":
            _COMPILED[key] = compiled
        return
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    compiled.run(
        *programs, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
        *addresses, *sized, *plain, *constants,
    )  # fmt: skip


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """Smallest power of two that is at least n (1 for n = 0)."""
    return 1 << max(0, n - 1).bit_length()


def runs_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, on the CPU."""
    if find_spec("triton") is None:
        return False
    from maxsim.training import kernels

    return kernels.INTERPRETED
