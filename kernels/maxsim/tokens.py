"""The front door: one validated `TokenBatch` out of dense, masked or packed token embeddings.

Room: the lowest floor of `maxsim`. In: tensors a caller has. Out: `TokenBatch`. May import: torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

EMBEDDING_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Pairing = Literal["all", "pairs", "candidates"]
PAIRINGS = ("all", "pairs", "candidates")
IN_A_TRANSFORM = (
    "Q, D: inside a transform of torch.func (vmap, jvp, grad), where a tensor has no memory that a kernel could read; "
    "maxsim scores batches itself, [Nq, Lq, d] with [B, Ld, d], and its gradients come from torch.autograd"
)
INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)  # a batch equals itself alone: tensors have no one answer to ==
class TokenBatch:
    """N sequences of token embeddings, described by where each begins and how long it is.

    A sequence n owns the rows `start(n) .. start(n) + length(n) - 1` of `values`. Kernels read nothing else, so
    padding, left padding, packed rows and a reranking list that points into a packed corpus are the same to them.

    Attributes:
        values: [R, d], fp16 | bf16 | fp32 | float64 (int8 in quantised batches), last dimension contiguous; the row
            stride may be larger than d. For an unpadded or padded dense input this is a view of the caller's tensor.
            It is made by differentiable operations only, so a gradient of `values` flows back to the caller's tensor.
        count: N, the number of sequences.
        pitch: rows from one sequence's slot to the next (Ld of a dense tensor, 0 where one sequence is expanded over
            the batch); used only when `starts` is None.
        max_length: no sequence is longer (host integer; an upper bound is enough).
        starts: [N] int64 on the device of `values`, first row of each sequence; None means `n * pitch`.
        lengths: [N] int32 on the device of `values`, valid tokens; None means every sequence has `max_length` tokens.
        shift: [N] int32 or None; the original position of a sequence's first row (left padding starts late).
        positions: [R] int32 or None; original token position of every row, only where holes were compacted away.
        dense_shape: (N, L) of the caller's dense tensor, None for packed input: the shape gradients go back to.
        total_rows: number of valid rows if known on the host (packed input), else None.
    """

    values: Tensor
    count: int
    pitch: int
    max_length: int
    starts: Tensor | None = None
    lengths: Tensor | None = None
    shift: Tensor | None = None
    positions: Tensor | None = None
    dense_shape: tuple[int, int] | None = None
    total_rows: int | None = None

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return self.values.shape[1]

    @property
    def device(self) -> torch.device:
        """Where every tensor of the batch lives."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the embeddings."""
        return self.values.dtype

    @cached_property
    def layout(self) -> tuple[Any, ...]:
        """What a launch over the batch depends on besides addresses; hashable, made once: `values` keep their shape."""
        rows = self.values
        carried = (self.count, self.pitch, self.max_length, self.starts is None, self.lengths is None, self.total_rows)
        return (*carried, rows.shape, rows.stride(), rows.dtype, rows.get_device(), rows.data_ptr() % 16)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: no `layout`, for the copy may lie on another device and begin elsewhere."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def row_starts(self) -> Tensor:
        """[N] int64: first row of every sequence, made where `starts` is None. No host synchronisation."""
        if self.starts is not None:
            return self.starts
        return torch.arange(self.count, device=self.device, dtype=torch.int64) * self.pitch

    def row_lengths(self) -> Tensor:
        """[N] int32: valid tokens of every sequence, made where `lengths` is None. No host synchronisation."""
        if self.lengths is not None:
            return self.lengths
        return torch.full((self.count,), self.max_length, device=self.device, dtype=torch.int32)

    def full(self) -> bool:
        """Whether every sequence is known on the host to have `max_length` tokens, one at least: nothing to mask."""
        return self.lengths is None and self.max_length > 0 and self.values.shape[0] > 0

    def select(self, index: Tensor) -> TokenBatch:
        """The sequences `index` names, in that order and with repeats, over the same rows: nothing is copied.

        Args:
            index: integers in [0, N) of any shape, flattened in row-major order, on the device of `values`. A
                reranking list [Nq, K] becomes the Nq * K documents that `pairing="candidates"` expects.

        Raises:
            ValueError: for an index that is not integral, on another device or out of range (checking synchronises),
                or on the device meta.
        """
        refuse_transforms(self.values, index)
        _require_integers("index", index, self.device)
        require_numbers("index", self.device)
        index = index.reshape(-1).to(torch.int64)
        low, high = _bounds(index)
        if low < 0 or high >= self.count:
            raise ValueError(f"index: holds {low if low < 0 else high}; the batch has sequences 0..{self.count - 1}")
        return replace(
            self,
            count=index.numel(),
            starts=self.row_starts()[index],
            lengths=None if self.lengths is None else self.lengths[index],
            shift=None if self.shift is None else self.shift[index],
            dense_shape=None,
            total_rows=None,
        )

    def padded(self, first: int = 0, last: int | None = None) -> tuple[Tensor, Tensor]:
        """Sequences first..last-1 as a rectangle, for implementations that need one: do not write to it.

        Returns:
            x [n, L, d] in the dtype of `values`, a view of them where the sequences lie one pitch apart and a copy
            elsewhere, and valid [n, L] bool, L = max(1, max_length). What x holds outside `valid` is unspecified
            (finite or not): mask results, not operands.
        """
        last = self.count if last is None else last
        L = max(1, self.max_length)
        if self.values.shape[0] == 0:
            x = self.values.new_zeros((last - first, L, self.d))
            return x, torch.zeros((last - first, L), dtype=torch.bool, device=self.device)
        token = torch.arange(L, device=self.device)
        valid = token < self.row_lengths()[first:last, None]
        if self.starts is None and self.pitch >= L and last * self.pitch <= self.values.shape[0]:
            slots = self.values[first * self.pitch : last * self.pitch].unflatten(0, (last - first, self.pitch))
            return slots[:, :L], valid
        rows = self.row_starts()[first:last, None] + token
        return self.values[rows.clamp_(0, self.values.shape[0] - 1)], valid


def tokens(
    values: Tensor | TokenBatch,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    role: Literal["Q", "D"] = "D",
) -> TokenBatch:
    """Check token embeddings once and describe them as a `TokenBatch`, which is scored without further checks.

    Args:
        values: [L, d] one sequence | [N, L, d] | packed [T, d] with `cu_seqlens`; fp16, bf16, fp32 or float64, d >= 1.
            Any strides: where the last dimension is contiguous and rows lie at one stride (slices, every second token,
            an expanded batch) it is viewed in place, anything else is copied once. An input that requires grad is
            viewed or copied by differentiable operations.
        mask: [N, L] (or [L]) bool or integer, non-zero = valid; any pattern. Holes are compacted away by one copy.
        lengths: [N] integers in [0, L]; right padding.
        cu_seqlens: [N + 1] integers that start at 0, do not decrease and end at T.
        role: "Q" or "D", only for messages: errors name `q_lengths` or `d_lengths`.

    At most one of mask, lengths and cu_seqlens. N = 0 and L = 0 are allowed. What masked tokens hold is never looked
    at. Checking lengths, masks and offsets synchronises with the device once, and is refused on the device meta.

    What needs no conversion is not copied, for a copy is one more kernel before every score: the batch keeps the
    caller's memory of values that it views, of contiguous int32 `lengths` and int64 `cu_seqlens`. Writing to one of
    them later changes the batch unchecked, so do not, or pass a clone. Other lengths, offsets and masks are copied.

    Raises:
        ValueError: that names the argument, for anything that is not as described; inside a transform of `torch.func`
            and for values with a tangent of forward-mode differentiation.
        TypeError: for values that are not a tensor.
    """
    return named_tokens(Names(role, f"{role.lower()}_"), values, mask=mask, lengths=lengths, cu_seqlens=cu_seqlens)


@dataclass(frozen=True)
class Names:
    """Argument names as the caller knows them: the embeddings', and what stands before mask, lengths and offsets."""

    role: str
    prefix: str = ""

    @property
    def mask(self) -> str:
        return f"{self.prefix}mask"

    @property
    def lengths(self) -> str:
        return f"{self.prefix}lengths"

    @property
    def cu_seqlens(self) -> str:
        return f"{self.prefix}cu_seqlens"


def named_tokens(
    name: Names,
    values: Tensor | TokenBatch,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> TokenBatch:
    """`tokens` for a caller whose arguments have other names than those of the operator."""
    role = name.role
    if isinstance(values, TokenBatch):
        if mask is not None or lengths is not None or cu_seqlens is not None:
            raise ValueError(f"{role}: already a TokenBatch; pass mask, lengths and cu_seqlens when it is built")
        refuse_transforms(values.values, values.starts, values.lengths)
        return values
    if not isinstance(values, Tensor):
        raise TypeError(f"{role}: expected a torch.Tensor or TokenBatch, got {type(values).__name__}")
    if values.is_nested:  # prototype nested tensors call themselves strided
        raise ValueError(f"{role}: is a nested tensor; pass its packed rows with {name.cu_seqlens}")
    if values.layout != torch.strided:
        raise ValueError(f"{role}: layout is {values.layout}; pass a strided (dense) tensor")
    refuse_transforms(values, mask, lengths, cu_seqlens)
    values = values.resolve_neg()  # a view with the negative bit would be read with the other sign
    require_embeddings(role, values.dtype)
    extents = sum(x is not None for x in (mask, lengths, cu_seqlens))
    if extents > 1:
        raise ValueError(f"{name.mask}, {name.lengths}, {name.cu_seqlens}: pass one of them, they say the same thing")
    if extents:  # their content is looked at
        require_numbers(role, values.device)
    if values.ndim not in (2, 3):
        raise ValueError(f"{role}: shape is {tuple(values.shape)}; expected [L, d] or [N, L, d], or [T, d] if packed")
    if values.shape[-1] < 1:
        raise ValueError(f"{role}: shape is {tuple(values.shape)}; the embedding dimension must be at least 1")
    if cu_seqlens is not None:
        return _packed(values, cu_seqlens, name)
    dense = values if values.ndim == 3 else values[None]
    if mask is not None:
        return _masked(dense, mask, name)
    batch = _dense(dense)
    return batch if lengths is None else _right_padded(batch, lengths, name)


def require_embeddings(name: str, dtype: torch.dtype) -> None:
    """ValueError, naming the argument, for what is no embedding, such as the codes of a quantised batch."""
    if dtype not in EMBEDDING_DTYPES:
        raise ValueError(f"{name}: dtype is {dtype}; embeddings are float16, bfloat16, float32 or float64")


def require_numbers(name: str, device: torch.device) -> None:
    """ValueError, naming the argument, for the device meta. The fake tensors of torch.compile name a real device."""
    if device.type == "meta":
        raise ValueError(f"{name}: is on the device meta, which holds no numbers; give tensors of a processor or a GPU")


def refuse_transforms(*given: object) -> None:
    """ValueError where a tensor among those given belongs to a transform of `torch.func` or carries a tangent.

    Kernels read addresses: they would miss what a transform or forward-mode differentiation adds to a tensor, and what
    is missed is zero in silence. Asked before anything else reads the tensors, which would end in errors of torch's own
    or, on a processor, in a result. Costs two look-ups while there is neither.
    """
    if torch.compiler.is_compiling():  # which would break the graph at the questions below
        return
    if torch._C._are_functorch_transforms_active() and any(
        isinstance(x, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x) for x in given
    ):
        raise ValueError(IN_A_TRANSFORM)
    if tangents_exist() and any(
        isinstance(x, Tensor) and x.layout == torch.strided and forward_ad.unpack_dual(x).tangent is not None
        for x in given
    ):
        raise ValueError(
            "Q, D: carry a tangent of forward-mode differentiation (torch.autograd.forward_ad), which maxsim does not "
            "propagate; its gradients come from torch.autograd.backward and grad"
        )


def tangents_exist() -> bool:
    """Whether a level of forward-mode differentiation is open, without which no tensor has a tangent."""
    return forward_ad._current_level >= 0


def documents_per_query(q: TokenBatch, d: TokenBatch, pairing: Pairing) -> int:
    """How many documents query n is scored with: B of "all" (the same for every n), 1 of "pairs", K of "candidates".

    With "pairs" query n meets document n; with "candidates" it meets documents n*K .. n*K + K - 1.

    Raises:
        ValueError: for an unknown pairing or counts that do not fit it.
    """
    if pairing == "all":
        return d.count
    if pairing == "pairs":
        if q.count != d.count:
            raise ValueError(f'D: {d.count} documents for {q.count} queries; pairing="pairs" needs as many')
        return 1
    if pairing == "candidates":
        if q.count == 0 and d.count == 0:
            return 0
        if q.count == 0 or d.count % q.count:
            raise ValueError(
                f'D: {d.count} documents for {q.count} queries; pairing="candidates" needs the same number K for each'
            )
        return d.count // q.count
    raise ValueError(f"pairing: {pairing!r} is not one of {', '.join(PAIRINGS)}")


def score_shape(q: TokenBatch, d: TokenBatch, pairing: Pairing) -> tuple[int, ...]:
    """[Nq, B] of "all", [B] of "pairs", [Nq, K] of "candidates"; ValueError as `documents_per_query`."""
    K = documents_per_query(q, d, pairing)
    return (q.count,) if pairing == "pairs" else (q.count, K)


def _dense(x: Tensor) -> TokenBatch:
    """[N, L, d] with any strides, no padding."""
    N, L, _ = x.shape
    values, pitch = _rows(x)
    return TokenBatch(values=values, count=N, pitch=pitch, max_length=L, dense_shape=(N, L))


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """[N, L, d] as rows [R, d] at one stride, and the rows from one sequence to the next; a view where there is one."""
    N, L, d = x.shape
    per_sequence, per_token, per_element = x.stride()
    if N == 0 or L == 0:
        return x.reshape(-1, d).contiguous(), L
    if L == 1:
        per_token = per_sequence if N > 1 and per_sequence >= d else d
    if N == 1:
        per_sequence = L * per_token
    in_place = (per_element == 1 or d == 1) and per_token >= d and per_sequence % per_token == 0 and not x.requires_grad
    if in_place:
        pitch = per_sequence // per_token
        return x.as_strided(((N - 1) * pitch + L, d), (per_token, 1)), pitch
    rows = x.reshape(N * L, d)
    return (rows if rows.stride(1) == 1 or d == 1 else rows.contiguous()), L


def _right_padded(batch: TokenBatch, lengths: Tensor, name: Names) -> TokenBatch:
    """A dense batch of which sequence n has `lengths[n]` valid tokens."""
    _require_integers(name.lengths, lengths, batch.device)
    L = batch.max_length
    if lengths.shape != (batch.count,):
        raise ValueError(f"{name.lengths}: shape is {tuple(lengths.shape)}; expected ({batch.count},), one a sequence")
    low, high = _bounds(lengths)
    if low < 0 or high > L:
        raise ValueError(f"{name.lengths}: holds {low if low < 0 else high}; every length must lie in [0, {L}]")
    # contiguous: kernels are given an address and step by one element, and a caller's view may be a column
    return replace(batch, lengths=lengths.to(torch.int32).contiguous(), max_length=max(0, high))


def _masked(x: Tensor, mask: Tensor, name: Names) -> TokenBatch:
    """A dense batch with any pattern of valid tokens: padding on either side in place, holes by compaction."""
    N, L, _ = x.shape
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *INTEGER_DTYPES):
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"{name.mask}: is {kind}; expected a bool or integer tensor, non-zero where a token is valid")
    if mask.device != x.device:
        raise ValueError(f"{name.mask}: is on {mask.device}, {name.role} on {x.device}; move one of them")
    if mask.ndim == 1 and N == 1:
        mask = mask[None]
    if mask.shape != (N, L):
        raise ValueError(f"{name.mask}: shape is {tuple(mask.shape)}; expected {(N, L)}")
    if N == 0 or L == 0:
        return _dense(x)
    valid = mask != 0
    lengths = valid.sum(1, dtype=torch.int32)
    first = valid.to(torch.uint8).argmax(1).to(torch.int32)  # 0 where nothing is valid
    last = L - 1 - valid.flip(1).to(torch.uint8).argmax(1).to(torch.int32)
    holes = ((last - first + 1 != lengths) & (lengths > 0)).any()
    has_holes, high, late = torch.stack((holes.to(torch.int32), lengths.max(), first.max())).tolist()
    if has_holes:
        return _compacted(x, valid, lengths, high)
    batch = replace(_dense(x), lengths=lengths, max_length=high)
    return batch if late == 0 else replace(batch, starts=batch.row_starts() + first, shift=first)


def _compacted(x: Tensor, valid: Tensor, lengths: Tensor, max_length: int) -> TokenBatch:
    """The valid tokens of [N, L, d] packed one after the other, each remembering where it stood."""
    N, L, d = x.shape
    kept = valid.reshape(-1).nonzero().squeeze(1)
    starts = torch.zeros(N, dtype=torch.int64, device=x.device)
    starts[1:] = lengths.cumsum(0, dtype=torch.int64)[:-1]
    return TokenBatch(
        values=x.reshape(N * L, d).index_select(0, kept),
        count=N,
        pitch=0,
        max_length=max_length,
        starts=starts,
        lengths=lengths,
        positions=(kept % L).to(torch.int32),
        dense_shape=(N, L),
        total_rows=kept.numel(),
    )


def _packed(x: Tensor, cu_seqlens: Tensor, name: Names) -> TokenBatch:
    """[T, d] rows of N sequences one after the other."""
    what = name.cu_seqlens
    if x.ndim != 2:
        raise ValueError(f"{name.role}: shape is {tuple(x.shape)}; with {what} the rows are packed as [T, d]")
    _require_integers(what, cu_seqlens, x.device)
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
        raise ValueError(f"{what}: shape is {tuple(cu_seqlens.shape)}; expected [N + 1] offsets, the first 0")
    T = x.shape[0]
    offsets = cu_seqlens.to(torch.int64).contiguous()
    lengths = offsets.diff()
    low_high = torch.aminmax(lengths) if lengths.numel() else (offsets[0], offsets[0])
    first, end, low, high = torch.stack((offsets[0], offsets[-1], *low_high)).tolist()
    if first != 0:
        raise ValueError(f"{what}: starts at {first}; offsets start at 0")
    if low < 0:
        raise ValueError(f"{what}: decreases by {-low} somewhere; offsets must not decrease")
    if end != T:
        raise ValueError(f"{what}: ends at {end}, but {name.role} has {T} rows; the last offset is the number of rows")
    return TokenBatch(
        values=_rows(x[None])[0],
        count=lengths.numel(),
        pitch=0,
        max_length=high,
        starts=offsets[:-1],
        lengths=lengths.to(torch.int32),
        total_rows=T,
    )


def _require_integers(name: str, x: Tensor, device: torch.device) -> None:
    """ValueError unless x is an integer tensor on `device`."""
    if not isinstance(x, Tensor) or x.dtype not in INTEGER_DTYPES:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name}: is {kind}; expected a tensor of integers")
    if x.device != device:
        raise ValueError(f"{name}: is on {x.device}, the embeddings on {device}; move one of them")


def _bounds(x: Tensor) -> tuple[int, int]:
    """Smallest and largest element, (0, -1) of an empty tensor; one synchronisation."""
    if x.numel() == 0:
        return 0, -1
    low, high = torch.stack(torch.aminmax(x)).tolist()
    return int(low), int(high)
