# Arguments of kernels have no Python types.
# mypy: disable-error-code="no-untyped-def"
"""Two Triton kernels that read two tensors once and score nothing, launched the way the scoring kernels are.

Room: `backends`. May import: declare, `maxsim`. Imported only where a GPU is measured or a test runs, for it imports
Triton. Both kernels add up the 32-bit words that they read and write one sum a program, so that no load can be left
out by a compiler, and a load left out by us shows. A thread reads a group of 16 bytes at once; where a tensor ends is
known in whole groups, so the mask of the last block does not break loads apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl

from maxsim.fused.hopper_launch import DirectLaunch
from maxsim_bench.backends.ceilings import processors

Way = Literal["streaming", "persistent"]
WORDS = 4  # of a group
WARPS = 8
# Groups of a block, which a program asks for before it waits for any, and blocks of a streaming program: 32 KiB and
# 256 KiB, as in the read that the session's ceiling comes from. A persistent program has two smaller blocks under way.
GROUPS: dict[Way, int] = {"streaming": 2048, "persistent": 1024}
STEPS = 8
RESIDENT = 4  # persistent programs of a multiprocessor: 128 KiB under way
_ALIGNED = 32  # groups: a share begins at a multiple of 512 bytes, so that no two programs read one line of the cache


@triton.jit
def _block(source, first, last, GROUPS: tl.constexpr):
    """[GROUPS, 4] int32: groups `first` to `first` + GROUPS of `source`, 0 from `last` on; both int64."""
    lanes = tl.arange(0, GROUPS)
    left = tl.minimum(last - first, GROUPS).to(tl.int32)
    places = lanes[:, None] * 4 + tl.arange(0, 4)[None, :]
    return tl.load(source + first * 4 + places, mask=(lanes < left)[:, None], other=0)


@triton.jit
def _query_block(q_ptr, q_groups, d_programs, GROUPS: tl.constexpr):
    """The block of Q that this program reads: one of those behind the `d_programs` has one, the others none."""
    mine = tl.program_id(0) >= d_programs
    first = tl.where(mine, tl.program_id(0) - d_programs, 0).to(tl.int64) * GROUPS
    return _block(q_ptr, first, tl.where(mine, q_groups, 0).to(tl.int64), GROUPS)


@triton.jit
def _write(sum_ptr, total):
    """One float64 a program: the sum of its groups' sums, which are int32 and wrap; it holds that exactly.

    Groups are added up as int32, so that a thread needs one register for the four words of each; their sum is wider
    because triton's interpreter has no scalar that wraps.
    """
    groups = tl.sum(total, axis=1)
    tl.store(sum_ptr + tl.program_id(0), tl.sum(groups.to(tl.int64), axis=0).to(tl.float64))


@triton.jit(do_not_specialize=["q_groups", "d_groups", "d_programs", "share"])
def read_streaming(
    q_ptr, d_ptr, sum_ptr, q_groups, d_groups, d_programs, share, GROUPS: tl.constexpr, STEPS: tl.constexpr
):
    """A program for every STEPS blocks of D and every block of Q; `share`: groups of D a program."""
    total = _query_block(q_ptr, q_groups, d_programs, GROUPS)
    first = tl.program_id(0).to(tl.int64) * share
    for step in tl.static_range(STEPS):
        total += _block(d_ptr, first + step * GROUPS, d_groups.to(tl.int64), GROUPS)
    _write(sum_ptr, total)


@triton.jit(do_not_specialize=["q_groups", "d_groups", "d_programs", "share"])
def read_persistent(
    q_ptr, d_ptr, sum_ptr, q_groups, d_groups, d_programs, share, GROUPS: tl.constexpr, STEPS: tl.constexpr
):
    """A program for every contiguous `share` of D, in groups, and every block of Q; STEPS is not used."""
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, d_groups.to(tl.int64))
    ahead = _query_block(q_ptr, q_groups, d_programs, GROUPS)
    total = tl.zeros([GROUPS, 4], tl.int32)
    for at in range(first, last, GROUPS):
        now = ahead
        ahead = _block(d_ptr, at, last, GROUPS)  # asked for before the block before it is waited for
        total += now
    _write(sum_ptr, total + ahead)


KERNELS = {"streaming": read_streaming, "persistent": read_persistent}


@dataclass(frozen=True)
class Plan:
    """How two operands are dealt out.

    Attributes:
        way: which kernel.
        q_groups, d_groups: of 16 bytes.
        d_programs, q_programs: programs that read D, and those behind them that read Q.
        share: groups of D a program, of which the last may find fewer.
    """

    way: Way
    q_groups: int
    d_groups: int
    d_programs: int
    q_programs: int
    share: int

    @property
    def programs(self) -> int:
        """Of the launch, and sums written."""
        return self.d_programs + self.q_programs

    def __str__(self) -> str:
        blocks = self.share / GROUPS[self.way]
        return (
            f"{self.way}: {self.d_programs} programs of {blocks:.1f} blocks of {GROUPS[self.way] // 64} KiB for D, "
            f"{self.q_programs} for Q"
        )


def plan(way: Way, q: torch.Tensor, d: torch.Tensor, processors: int) -> Plan:
    """The launch that reads the words q and d ([N] int32, N a multiple of 4) on so many multiprocessors.

    Raises:
        ValueError: for words that are no whole groups of 16 bytes.
    """
    if q.numel() % WORDS or d.numel() % WORDS:
        raise ValueError(f"{q.numel()} and {d.numel()} words are no whole groups of {WORDS}")
    q_groups, d_groups = q.numel() // WORDS, d.numel() // WORDS
    q_programs = triton.cdiv(q_groups, GROUPS[way])
    if way == "streaming":
        share = STEPS * GROUPS[way]
    else:
        share = triton.cdiv(d_groups, max(1, RESIDENT * processors - q_programs))
        share = triton.cdiv(share, _ALIGNED) * _ALIGNED
    return Plan(way, q_groups, d_groups, triton.cdiv(d_groups, share), q_programs, share)


def read(way: Way, q: torch.Tensor, d: torch.Tensor, processors: int) -> tuple[torch.Tensor, Plan, Any]:
    """Read once, launched by triton, which compiles: [programs] float64 sums, the plan, and what triton compiled.

    The last is None under triton's interpreter, where q and d lie on the CPU.
    """
    chosen = plan(way, q, d, processors)
    sums = torch.empty(chosen.programs, dtype=torch.float64, device=q.device)
    compiled = KERNELS[way][(chosen.programs,)](
        q, d, sums, chosen.q_groups, chosen.d_groups, chosen.d_programs, chosen.share, GROUPS=GROUPS[way], STEPS=STEPS,
        num_warps=WARPS,
    )  # fmt: skip
    return sums, chosen, compiled


class Reader:
    """A call that reads the words q and d once; returns the same [programs] float64 every time, written anew.

    It is launched by the driver with arguments that are kept, as the scoring kernels' repeated calls are: triton's own
    launch takes longer on the host than they do, and a floor under them would not be one.
    """

    def __init__(self, way: Way, q: torch.Tensor, d: torch.Tensor) -> None:
        self.operands = q, d  # kept alive: the launch knows their addresses only
        self.sums, chosen, compiled = read(way, q, d, processors())
        self.direct = DirectLaunch(compiled.function, compiled.asm["ptx"], compiled.metadata.shared)
        self.index, self.grid = q.get_device(), (chosen.programs, 1)
        addresses = [x.data_ptr() for x in (q, d, self.sums)]
        self.arguments = [*addresses, chosen.q_groups, chosen.d_groups, chosen.d_programs, chosen.share]

    def __call__(self) -> torch.Tensor:
        """Launch on the current stream."""
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        self.direct(self.grid, stream, [], self.arguments)
        return self.sums
