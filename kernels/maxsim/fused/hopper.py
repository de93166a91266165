"""The Hopper forward, host side: what it can run and how it is launched. `hopper_plan` cuts the work up.

Room: `fused`. May import: `maxsim.tokens`, `fused.launch`; triton only inside the functions that launch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maxsim.fused import hopper_tf32
from maxsim.fused.hopper_launch import Boxes, Kernel, kernel
from maxsim.fused.hopper_plan import H200_PROCESSORS, UNIT, HopperPlan, plan_shape
from maxsim.fused.launch import LaunchPlan
from maxsim.tokens import Pairing, TokenBatch, documents_per_query

MAX_ROWS = 2**31 - 2**16  # tensor-map coordinates are 32-bit rows; a tile may begin one tile past the last row
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CONSUMER_REGISTERS = {1: 240, 2: 240, 4: 112}  # a thread of each; setmaxnreg gives them
LOADER_REGISTERS = 24
SHARING_REGISTERS = 128  # a thread, where two programs share a multiprocessor


def supports(
    q: TokenBatch, d: TokenBatch, *, pairing: Pairing = "all", precision: str = "ieee", argmax: bool = False
) -> str | None:
    """Why this kernel cannot score these batches, or None where it can. Looks at no tensor's content."""
    del pairing, argmax  # every combination runs
    if precision == "tf32" and q.dtype == torch.float32:
        return 'fp32 operands are multiplied exactly here, precision="tf32" asks for less'
    if q.device.type != "cuda":
        return f"the Hopper kernel needs a CUDA device, the embeddings are on {q.device}"
    if _capability(q.device.index) != 9:
        return f"the Hopper kernel needs compute capability 9.x, {q.device} has {_capability(q.device.index)}.x"
    for name, x in (("Q", q), ("D", d)):
        reason = _unaddressable(x)
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _unaddressable(x: TokenBatch) -> str | None:
    """Why TMA cannot address the rows of a batch, or None."""
    values = x.values
    if values.dtype not in DTYPES:
        return f"dtype {values.dtype} is not float16, bfloat16 or float32"
    rows, d = values.shape
    if rows == 0 or x.count == 0 or x.max_length == 0:
        return "holds no tokens"
    if rows > MAX_ROWS:
        return f"{rows} rows, more than a 32-bit tensor-map coordinate can name"
    if x.count > MAX_ROWS:
        return f"{x.count} sequences, more than the kernel counts in 32 bits"
    step = 16 // values.element_size()
    if d % step:
        return f"d = {d} is not a multiple of {step} (16 bytes)"
    if rows > 1 and (values.stride(0) % step or values.stride(0) < d):
        return f"row stride {values.stride(0)} is not a multiple of {step} elements (16 bytes)"
    if values.data_ptr() % 16:
        return "the first row does not begin on a 16-byte boundary"
    return None


@lru_cache(maxsize=64)
def _capability(index: int | None) -> int:
    return torch.cuda.get_device_capability(index)[0]


@lru_cache(maxsize=64)
def _processors(index: int | None) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def plan(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = "all",
    argmax: bool = False,
    processors: int | None = None,
    ceiling: str = "unknown",
) -> HopperPlan:
    """The launch for two batches; a function of their shapes and of the device's number of multiprocessors.

    Args:
        processors: None asks the device of `q`; a CPU stands in for an H200.
        ceiling: what binds the work, handed through to the plan.
    """
    if processors is None:
        processors = _processors(q.device.index) if q.device.type == "cuda" else H200_PROCESSORS
    cut = hopper_tf32.plan_shape if q.dtype == torch.float32 else plan_shape
    return cut(
        Nq=q.count,
        K=documents_per_query(q, d, pairing),
        Lq=max(1, q.max_length),
        Ld=max(1, d.max_length),
        d=d.d,
        shared=pairing == "all",
        sorted_rows=d.total_rows if d.starts is not None and pairing == "all" else None,
        contiguous=_contiguous(d),
        argmax=argmax,
        processors=processors,
        ceiling=ceiling,
    )


def _contiguous(d: TokenBatch) -> bool:
    """Whether every document begins where the one before it ends, as far as the host knows."""
    if d.starts is not None:
        return d.total_rows is not None
    return d.lengths is None and d.pitch == d.max_length


_plan = plan  # `forward` takes an argument of this name


def argmax_dtype(Ld: int) -> torch.dtype:
    """int16 where every row index of a document of at most Ld tokens fits, else int32."""
    return torch.int16 if Ld <= 32767 else torch.int32


def forward(
    q: TokenBatch,
    d: TokenBatch,
    *,
    pairing: Pairing = "all",
    argmax: bool = False,
    plan: LaunchPlan | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Score two batches that `supports` accepts. Launches one kernel, two where a query has several partial sums.

    Args:
        q, d: Nq queries; B documents ("all"), Nq ("pairs") or Nq * K ("candidates").
        argmax: also return the winning row of the document for every query token.
        plan: a plan made by `plan`; None makes it (from a cache).
        out: where to write the scores, fp32, contiguous, of the right shape.

    Returns:
        scores fp32 [Nq, B] | [Nq] | [Nq, K]; with `argmax` also int16 or int32 [..., Lq]: the first row of the document
        that attains the maximum, -1 for a masked query token or an empty document.

    Raises:
        ValueError: for a plan of another kernel.
    """
    if plan is None:
        plan = _plan(q, d, pairing=pairing, argmax=argmax)
    elif not isinstance(plan, HopperPlan):
        raise ValueError(f"plan: is for the kernel {plan.kernel!r}; make one with fused.hopper.plan")
    device = q.values.device
    prepared = prepare(q, d, pairing, plan, argmax_dtype(d.max_length) if argmax else None)
    shape, sums = prepared.shape, prepared.sums
    make = torch.zeros if plan.added else torch.empty
    scores = (make if sums[1] == 1 else torch.empty)(shape, dtype=torch.float32, device=device) if out is None else out
    if out is not None and plan.added and sums[1] == 1:
        out.zero_()
    winners = None
    if prepared.winners is not None:
        winners = torch.empty((*shape, q.max_length), dtype=prepared.winners, device=device)
    part = scores if sums[1] == 1 else make(sums, dtype=torch.float32, device=device)
    prepared.score(
        prepared.grid,
        (Boxes(q.values, plan.G, plan.BK), Boxes(d.values, plan.BR, plan.BK)),
        (part, winners, q.starts, q.lengths, d.starts, d.lengths),
        prepared.integers,
    )
    if sums[1] > 1:
        prepared.add(prepared.add_grid, (), (part, scores), (q.count, sums[2], sums[1]))
    return scores if winners is None else (scores, winners)


class Prepared(NamedTuple):
    """Everything of a launch but addresses.

    Attributes:
        plan: what it was made of.
        shape: of the scores.
        sums: [Nq, partial sums of a query, K], shape of what the first kernel writes where a query has several.
        winners: dtype of the argmax, None without it.
        score, grid, integers: the kernel that scores, its grid and its integer arguments.
        add, add_grid: the kernel that adds partial sums.
    """

    plan: HopperPlan
    shape: tuple[int, ...]
    sums: tuple[int, int, int]
    winners: torch.dtype | None
    score: Kernel
    grid: tuple[int, int]
    integers: tuple[int, ...]
    add: Kernel
    add_grid: tuple[int, int]


def prepare(
    q: TokenBatch, d: TokenBatch, pairing: Pairing, plan: HopperPlan, winners: torch.dtype | None = None
) -> Prepared:
    """The kernels, grids and integers with which `plan` scores batches of these shapes."""
    K = documents_per_query(q, d, pairing)
    score, add = _kernels(plan, q, d, winners)
    return Prepared(
        plan=plan,
        shape=(q.count,) if pairing == "pairs" else (q.count, K),
        sums=(q.count, plan.sums, K),
        winners=winners,
        score=score,
        grid=(plan.programs, 1),
        integers=(
            plan.groups * plan.blocks, plan.groups, plan.blocks, q.count, K, q.pitch, q.max_length, q.values.shape[0],
            d.pitch, d.max_length, d.total_rows or 0, plan.parts,
        ),
        add=add,
        add_grid=(-(-K // 128) * q.count, 1),
    )  # fmt: skip


_FOUND: dict[tuple[Any, ...], tuple[HopperPlan, Kernel, Kernel]] = {}


def _kernels(plan: HopperPlan, q: TokenBatch, d: TokenBatch, winners: torch.dtype | None) -> tuple[Kernel, Kernel]:
    """The kernel that scores and the one that adds partial sums, for a plan and what the batches carry."""
    types = (q.values.dtype, winners)
    carried = (q.starts is not None, q.lengths is not None, d.starts is not None, d.lengths is not None)
    index = q.values.device.index or 0
    key = (id(plan), index, *types, *carried)  # the entry keeps the plan alive, so its id stays its own
    found = _FOUND.get(key)
    if found is None:
        constants = (
            plan.BM, plan.BN, plan.BR, plan.BK, plan.KS, plan.KC, plan.KI, plan.ST, plan.QST, plan.NC, plan.G, plan.SUM,
            plan.shared, *carried, plan.balanced, winners is not None,
        )  # fmt: skip
        fp32 = q.values.dtype == torch.float32
        name = hopper_tf32.KERNEL if fp32 else "maxsim_forward"
        registers = hopper_tf32.REGISTERS[plan.NC] if fp32 else (CONSUMER_REGISTERS[plan.NC], LOADER_REGISTERS)
        constants += (*registers, 4)
        score = kernel(name, index, constants, types, None if plan.per_processor == 1 else SHARING_REGISTERS)
        if len(_FOUND) >= 4096:
            _FOUND.clear()
        found = _FOUND[key] = plan, score, kernel("add_sums", index, (plan.SUM == UNIT, 4))
    return found[1], found[2]
