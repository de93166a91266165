"""The portable fused kernel, in Triton: Ampere and newer, any d, any lengths, fp16, bf16 and fp32.

Room: `fused`. In: two `TokenBatch`es and a `LaunchPlan`. Out: scores, and on request the argmax. May import:
`maxsim.tokens`, triton.

One program holds BLOCK_M query rows (several short queries, or a 128-row slice of a long one) and walks over a document
BLOCK_N tokens at a time, keeping one running maximum a query row; similarities live in registers only.

What keeps a score independent of the rest of the batch, to the bit: a similarity is one chain of matrix instructions
over ascending d (one for each BLOCK_K of a large d); a maximum has no rounding; and row maxima are added in a binary
tree of neighbours over 128-row slices whose missing rows are zeros, so that neither packing nor padding moves an
addition.
"""

# mypy: allow-untyped-defs
# (the compiler, not Python, types the arguments of a kernel)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from maxsim.tokens import Pairing, TokenBatch, documents_per_query, score_shape

if TYPE_CHECKING:
    from maxsim.fused.launch import LaunchPlan

# Everything that varies from batch to batch. Left unspecialised: no length, count or size compiles anything new.
_VARIES = ["q_pitch", "d_pitch", "q_rows", "d_rows", "q_max", "d_max", "Nq", "K", "slices", "row_tiles", "doc_programs"]


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _row_max(s, SIMULATED: tl.constexpr):
    """Largest of every row, NaN where a row holds one."""
    if SIMULATED:  # the interpreter's own maximum drops NaN, and its loop over a custom one takes a second a tile
        top = tl.where(tl.max((s != s).to(tl.int32), 1) > 0, float("nan"), tl.max(s, 1))
    else:
        top = tl.reduce(s, 1, _larger)
    return top


@triton.jit
def _span(n, starts, lengths, pitch, rows, longest, mask):
    """First row and number of rows of sequence n, forced into the rows that exist whatever the tensors say."""
    if starts is None:
        start = n.to(tl.int64) * pitch
    else:
        start = tl.load(starts + n, mask=mask, other=0)
    if lengths is None:
        length = longest + n * 0
    else:
        length = tl.load(lengths + n, mask=mask, other=0)
    start = tl.minimum(tl.maximum(start, 0), rows)
    length = tl.minimum(tl.maximum(length, 0), longest)
    return start, tl.minimum(length.to(tl.int64), rows - start).to(tl.int32)


@triton.jit(do_not_specialize=_VARIES)
def score_kernel(
    q_ptr, q_starts, q_lengths, d_ptr, d_starts, d_lengths, out_ptr, argmax_ptr,
    q_stride, d_stride, q_pitch, d_pitch, q_rows, d_rows, q_max, d_max, Nq, K, slices, row_tiles, doc_programs,
    SHARED: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, LEVELS: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, SIMULATED: tl.constexpr,
):  # fmt: skip
    """Partial scores [slices, Nq, K] fp32 and argmax [Nq, K, q_max] (None: not wanted).

    Program (row tile, first document): row tile t holds slice t % slices of queries (t // slices) * (BLOCK_M // GROUP)
    and following, GROUP rows each. Documents first, first + doc_programs, ... SHARED: every query meets the same K
    documents; otherwise query n meets documents n * K + k.
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    CHUNKS: tl.constexpr = (DIM + BLOCK_K - 1) // BLOCK_K
    EVEN: tl.constexpr = DIM % BLOCK_K == 0
    # Tensor cores cut the low bits of each 16-bit accumulation: a chain over 768 dimensions is off by 1e-6, and grows.
    # So chunks start from zero and are added with rounding. (Split fp32 products are added so by the compiler.)
    ROUNDED: tl.constexpr = q_ptr.dtype.element_ty.primitive_bitwidth == 16
    pid = tl.program_id(0)
    tile = pid % row_tiles
    query0 = (tile // slices) * QUERIES

    # load: where each query row lives
    r = tl.arange(0, BLOCK_M)
    n = query0 + r // GROUP
    token = (tile % slices) * BLOCK_M + r % GROUP
    q_start, q_length = _span(n, q_starts, q_lengths, q_pitch, q_rows, q_max, n < Nq)
    valid = (n < Nq) & (token < q_length)
    dims = tl.arange(0, BLOCK_K)
    q_at = q_ptr + tl.where(valid, q_start + token, 0)[:, None] * q_stride + dims[None, :]
    if CHUNKS == 1:
        q = tl.load(q_at, mask=valid[:, None] & (dims < DIM)[None, :], other=0.0)
        if SIMULATED:  # its dot is wrong on bf16
            q = q.to(tl.float32)

    for k in range(pid // row_tiles, K, doc_programs):
        doc = tl.full([], 0, tl.int64) + k  # the interpreter counts loops in Python integers, which cannot be cast
        if not SHARED:
            doc += query0.to(tl.int64) * K
        d_start, d_length = _span(doc, d_starts, d_lengths, d_pitch, d_rows, d_max, True)
        d_at = d_ptr + d_start * d_stride
        best = tl.full([BLOCK_M], float("-inf"), tl.float32)
        if argmax_ptr is not None:
            winner = tl.full([BLOCK_M], 0, tl.int32)
        for t in range(0, d_length, BLOCK_N):
            # Past the end the last token repeats: it cannot win over itself, and no mask is needed.
            column = tl.minimum(t + tl.arange(0, BLOCK_N), d_length - 1)
            row = column.to(tl.int64) if WIDE else column
            d_row = d_at + row[None, :] * d_stride

            # multiply
            s = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            if CHUNKS == 1:
                if EVEN:
                    x = tl.load(d_row + dims[:, None])
                else:
                    x = tl.load(d_row + dims[:, None], mask=(dims < DIM)[:, None], other=0.0)
                if SIMULATED:  # its dot is wrong on bf16
                    x = x.to(tl.float32)
                s = tl.dot(q, x, s, input_precision=PRECISION)
            else:
                # a zero that the compiler cannot see: it would join the addition below into the product again
                zeros = tl.zeros([BLOCK_M, BLOCK_N], tl.float32) + tl.minimum(d_length, 0).to(tl.float32)
                for c in range(0, DIM, BLOCK_K):
                    if EVEN:
                        a = tl.load(q_at + c, mask=valid[:, None], other=0.0)
                        x = tl.load(d_row + (c + dims)[:, None])
                    else:
                        a = tl.load(q_at + c, mask=valid[:, None] & (c + dims < DIM)[None, :], other=0.0)
                        x = tl.load(d_row + (c + dims)[:, None], mask=(c + dims < DIM)[:, None], other=0.0)
                    if SIMULATED:  # its dot is wrong on bf16
                        a = a.to(tl.float32)
                        x = x.to(tl.float32)
                    if ROUNDED:
                        s += tl.dot(a, x, zeros, input_precision=PRECISION)
                    else:
                        s = tl.dot(a, x, s, input_precision=PRECISION)

            # reduce over document tokens
            top = _row_max(s, SIMULATED)
            if argmax_ptr is not None:
                is_top = (s == top[:, None]) | (s != s)  # a row that holds a NaN has a NaN on top, equal to nothing
                first = tl.min(tl.where(is_top, column[None, :], 2147483647), 1)
                rises = (top > best) | ((top != top) & (best == best))
                winner = tl.where(rises, first, winner)
            best = _larger(best, top)

        # add a query's row maxima: neighbours first, whatever BLOCK_M and GROUP are
        total = tl.where(valid, best, 0.0)
        for _ in tl.static_range(LEVELS):
            left, right = tl.split(tl.reshape(total, [total.shape[0] // 2, 2]))
            total = left + right

        # store
        members = query0 + tl.arange(0, QUERIES)
        at = ((tile % slices).to(tl.int64) * Nq + members) * K + k
        tl.store(out_ptr + at, total + 0.0, mask=members < Nq)
        if argmax_ptr is not None:
            winner = tl.where(valid & (d_length > 0), winner, -1)
            at = (n.to(tl.int64) * K + k) * q_max + token
            tl.store(argmax_ptr + at, winner.to(argmax_ptr.dtype.element_ty), mask=(n < Nq) & (token < q_max))


@triton.jit(do_not_specialize=["slices", "pairs"])
def add_slices_kernel(parts_ptr, out_ptr, slices, pairs, BLOCK: tl.constexpr):
    """out [pairs] = parts [slices, pairs] added in ascending order of slices, fp32."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for s in range(slices):
        total += tl.load(parts_ptr + i + s * (i * 0 + pairs), mask=i < pairs, other=0.0)
    tl.store(out_ptr + i, total, mask=i < pairs)


INTERPRETED = isinstance(score_kernel, InterpretedFunction)  # TRITON_INTERPRET was set when this module was imported
_ADD_BLOCK = 256
_GRID_LIMIT = (1 << 31) - 1  # programs along x


def constants(plan: LaunchPlan, d: int, *, shared: bool, wide: bool) -> dict[str, Any]:
    """Compile-time arguments of `score_kernel`: each combination is one compilation, and no length is among them."""
    return {
        "SHARED": shared,
        "DIM": d,
        "BLOCK_M": plan.block_m,
        "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k,
        "GROUP": plan.group,
        "LEVELS": plan.group.bit_length() - 1,
        "WIDE": wide,
        "PRECISION": plan.precision,
        "SIMULATED": INTERPRETED,
    }


def _wide(d: TokenBatch, plan: LaunchPlan) -> bool:
    """Whether offsets within one document need 64 bits."""
    return (d.max_length + plan.block_n) * d.values.stride(0) >= 1 << 31


def forward(
    q: TokenBatch, d: TokenBatch, *, pairing: Pairing, argmax_dtype: torch.dtype | None, plan: LaunchPlan
) -> tuple[Tensor, Tensor | None]:
    """Scores fp32 [Nq, B] | [Nq] | [Nq, K], and the argmax [..., q.max_length] in `argmax_dtype` unless that is None.

    At most two launches and three allocations, none of which depends on the content of the batches: it can be captured
    in a CUDA graph. Extra memory: the scores, `plan.slices` times as much for partial sums if a query has more than
    one slice, and the argmax.
    """
    shape = score_shape(q, d, pairing)
    K = documents_per_query(q, d, pairing)
    scores = torch.empty(shape, dtype=torch.float32, device=q.device)
    winners = None
    if argmax_dtype is not None:
        winners = torch.empty((*shape, q.max_length), dtype=argmax_dtype, device=q.device)
    if scores.numel() == 0:
        return scores, winners
    slices = plan.slices
    parts = scores if slices == 1 else torch.empty((slices, *shape), dtype=torch.float32, device=q.device)
    row_tiles = triton.cdiv(q.count, plan.block_m // plan.group) * slices
    doc_programs = min(triton.cdiv(K, plan.docs_per_program), max(1, _GRID_LIMIT // row_tiles))
    score_kernel[(row_tiles * doc_programs,)](
        q.values, q.starts, q.lengths, d.values, d.starts, d.lengths, parts, winners,
        q.values.stride(0), d.values.stride(0), q.pitch, d.pitch, q.values.shape[0], d.values.shape[0],
        q.max_length, d.max_length, q.count, K, slices, row_tiles, doc_programs,
        **constants(plan, q.d, shared=pairing == "all", wide=_wide(d, plan)),
        num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip
    if slices > 1:
        pairs = scores.numel()
        add_slices_kernel[(triton.cdiv(pairs, _ADD_BLOCK),)](parts, scores, slices, pairs, BLOCK=_ADD_BLOCK)
    return scores, winners
