"""The source of the Hopper kernel, run over numpy arrays: every row, token, document and sum at its address. No GPU.

Room: tests of `fused`. Loader and consumers run after one another over a ring that is never full, so what is not
emulated here is waiting (arrivals and bytes are counted, phases are not), registers and the layouts that the compiler
checks. What no copy wrote is NaN. Integers have the kernel's 32 or 64 bits, and one that does not fit is an error.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from triton.experimental.gluon.language import constexpr

from maxsim.fused import hopper_kernels
from maxsim.fused.hopper_plan import UNIT, HopperPlan, _paired, _schedule, _tile, plan_shape

ENDLESS = 1 << 20  # stages of a ring that is never full
ALL = hopper_kernels.ALL.value  # a maximum that keeps NaN; others drop it
UNTOUCHED = -7  # a winner that was not stored
FACTOR = 0.1234567
PLANS = ((4, 64, 1), (2, 128, 1), (1, 128, 1), (2, 64, 1), (1, 64, 1), (1, 64, 2), (1, 128, 2))


class Array(np.ndarray):
    """A tensor of the kernel; scalars are arrays without axes.

    Integers are as wide as the kernel's: a number written out in its source takes the other operand's width, 32 bits
    and 64 make 64. numpy lets arrays of integers overflow without a word; here that is an error.
    """

    def to(self, dtype: type) -> Array:
        found = self.astype(dtype)
        assert self.dtype.kind != "i" or found.dtype.kind != "i" or (found == self).all(), "does not fit"
        return found

    def __add__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.add, self, other)

    def __radd__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.add, other, self)

    def __sub__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.subtract, other, self)

    def __mul__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.multiply, other, self)

    def __floordiv__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.floor_divide, self, other)

    def __mod__(self, other: Any) -> Array:  # type: ignore[override]
        return _calculate(np.remainder, self, other)

    def permute(self, axes: tuple[int, ...]) -> Array:
        return np.transpose(self, axes)

    def __iadd__(self, other: Any) -> Array:  # type: ignore[override, misc]
        return self + other  # values, not memory: what had this one before keeps it


def _calculate(operation: np.ufunc, x: Any, y: Any) -> Array:
    """What the operation makes of two operands; AssertionError for integers that their width does not hold."""
    x, y = _plain(x), _plain(y)
    if isinstance(x, float) or isinstance(y, float) or x.dtype.kind == "f" or y.dtype.kind == "f":
        return np.asarray(operation(x, y)).view(Array)
    exact = operation(x, y, dtype=np.int64)
    if x.dtype == np.int64 or y.dtype == np.int64:
        return np.asarray(exact).view(Array)
    found = exact.astype(np.int32)
    assert (found == exact).all(), f"{operation.__name__} of 32 bits overflows: {exact}"
    return np.asarray(found).view(Array)


def _plain(x: Any) -> Any:
    """An operand without the checks of `Array`."""
    return x.view(np.ndarray) if isinstance(x, Array) else _written(x)


def _written(x: Any) -> Any:
    """A number written out in the kernel's source: an integer has 32 bits."""
    return np.int32(x) if type(x) is int else x


class Pointer:
    """Addresses into a flat array or what acts like one. An address outside of it must be masked."""

    def __init__(self, memory: Any, at: Any = 0) -> None:
        self.memory, self.at = memory, np.asarray(at, np.int64)
        self.dtype = SimpleNamespace(element_ty=None if memory is None else memory.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at + np.asarray(offset))


class Boxes:
    """Shared memory: pieces that are found by their number."""

    def __init__(self, rows: int, columns: int) -> None:
        self.pieces: dict[int, np.ndarray] = defaultdict(lambda: np.full((rows, columns), np.nan, np.float32))

    def index(self, i: Any) -> tuple[Boxes, int]:
        return self, int(i)


class Tiles:
    """The same memory as matrices of `boxes` pieces."""

    def __init__(self, memory: Boxes, boxes: int) -> None:
        self.memory, self.boxes = memory, boxes
        self.dtype = SimpleNamespace(primitive_bitwidth=16)

    def index(self, i: Any) -> Array:
        first = int(i) * self.boxes
        return _array(np.concatenate([self.memory.pieces[first + box] for box in range(self.boxes)]))


class Descriptor:
    """A matrix of embeddings that is copied in boxes; what lies outside of it is zero."""

    def __init__(self, values: Any, rows: int, columns: int) -> None:
        self.values, self.rows, self.columns = values, rows, columns
        self.block_type = SimpleNamespace(nbytes=rows * columns * 2)

    def copy_to(self, corner: list[Any], box: tuple[Boxes, int]) -> None:
        row, column = (int(x) for x in corner)
        part = self.values[row : row + self.rows, column : column + self.columns]
        piece = np.zeros((self.rows, self.columns), np.float32)
        piece[: part.shape[0], : part.shape[1]] = part
        box[0].pieces[box[1]] = piece


class Barriers:
    """Barriers of one kind, and what is asked of each; they count, and nothing waits for them."""

    def __init__(self, arrived: Counter[tuple[str, int]], name: str) -> None:
        self.arrived, self.name = arrived, name

    def index(self, i: Any) -> Bar:
        return Bar(self.arrived, (self.name, int(i)))


@dataclasses.dataclass(frozen=True)
class Bar:
    """One of them. Bytes that it awaits are counted up, bytes that come are counted down."""

    arrived: Counter[tuple[str, int]]
    key: tuple[str, int]

    def arrive(self, count: int, pred: Any = True) -> None:
        if pred:
            self.arrived[self.key] += count

    def expect(self, nbytes: int) -> None:
        self.arrived[self.key] += 1
        self.arrived["bytes of " + self.key[0], self.key[1]] += nbytes

    def copy(self, desc: Descriptor, corner: list[Any], box: tuple[Boxes, int]) -> None:
        desc.copy_to(corner, box)
        self.arrived["bytes of " + self.key[0], self.key[1]] -= desc.block_type.nbytes


class Ring:
    """Shared memory of a program and its barriers; it multiplies as the kernel's own ring does."""

    def __init__(self, plan: HopperPlan) -> None:
        self.q_boxes, self.d_boxes = Boxes(plan.G, plan.BK), Boxes(plan.BR, plan.BK)
        self.q_tiles, self.d_tiles = Tiles(self.q_boxes, plan.BM // plan.G), Tiles(self.d_boxes, plan.BN // plan.BR)
        self.arrived: Counter[tuple[str, int]] = Counter()
        self.q_full, self.q_empty = Barriers(self.arrived, "q_full"), Barriers(self.arrived, "q_empty")
        self.full, self.empty = Barriers(self.arrived, "full"), Barriers(self.arrived, "empty")

    def start(self, t: Any, zero: Any, it: Any, loads: Any, W: int) -> Any:
        return hopper_kernels._multiply(t, self, zero, it, loads, 0, 0, W) if t.KC == 1 else zero

    def similarities(self, t: Any, started: Any, it: Any, loads: Any, W: int) -> tuple[Array, Any]:
        """Products of eighths are exact in fp32, in any order; a factor rounds each, so that sums depend on theirs."""
        s, it = hopper_kernels._similarities(t, self, started, it, loads, W)
        return s * np.float32(FACTOR), it

    def check(self, plan: HopperPlan) -> None:
        """Whether loader and consumers handed over the same tiles, and every barrier got what it counts to."""
        stages, groups = (sum(name == kind for name, _ in self.arrived) for kind in ("full", "q_full"))
        wanted = Counter({("full", i): plan.BN // plan.BR + (plan.QST == 0) for i in range(stages)})
        wanted += Counter({("empty", i): plan.NC for i in range(stages)})
        wanted += Counter({("q_full", i): 1 for i in range(groups)})
        wanted += Counter({("q_empty", i): plan.NC for i in range(groups - 1)})
        assert self.arrived == wanted, "loader and consumers walk the same tiles"


def _array(x: Any) -> Array:
    return np.asarray(_written(x)).view(Array)


def _reduce(x: Any, axis: int, combine: Any) -> Any:
    several = isinstance(x, tuple)
    parts = [[_array(one) for one in np.moveaxis(v, axis, 0)] for v in (x if several else (x,))]
    steps = list(zip(*parts, strict=True))
    total = steps[0]
    for step in steps[1:]:
        total = combine(*total, *step)
        total = total if several else (total,)
    return total if several else total[0]


def _sum(x: Any, axis: int) -> Array:
    """In fp32 by the tree that the layout of a matrix product's result makes: registers, then lanes, then warps.

    Rows 64 and 8 apart are in one thread, rows 4, 2, 1 apart in one warp, rows 32 and 16 apart in two. Which tree it is
    matters: a sum of 128 rows at once would begin with rows of two units and have other bits than two units' sums that
    two consumers add, or `add_sums`; and rows that no query has add zero at every level, so that a query has the same
    bits whatever G its batch gives it. A tree from neighbours up would let both go unseen.
    """
    x = np.moveaxis(x, axis, -1)
    assert x.shape[-1] in (1, 2, 4, 8, 16, 32, 64, 128)
    bits = x.shape[-1].bit_length() - 1
    x = x.reshape(*x.shape[:-1], *[2] * bits)  # the axis of rows 2^b apart is the (b + 1)th from the right
    left = list(range(bits))
    for bit in (b for b in (6, 3, 2, 1, 0, 5, 4) if b < bits):
        at = -1 - left.index(bit)
        x = np.take(x, 0, at) + np.take(x, 1, at)
        left.remove(bit)
    return _array(x)


def _load(at: Pointer, mask: Any = True, other: Any = 0) -> Array:
    mask = np.broadcast_to(mask, at.at.shape)
    assert ((at.at >= 0) & (at.at < at.memory.size))[mask].all()
    found = at.memory[np.where(mask, at.at, 0)]
    return _array(np.where(mask, found, found.dtype.type(other)))


def _store(at: Pointer, value: Any, mask: Any) -> None:
    where, value, mask = np.broadcast_arrays(at.at, value, mask)
    where, value = where[mask], value[mask]
    assert len(set(where.tolist())) == where.size, "two threads store to one address"
    assert ((where >= 0) & (where < at.memory.size)).all()
    before = at.memory[where]
    assert (np.isnan(before) if before.dtype == np.float32 else before == UNTOUCHED).all(), "stored twice"
    at.memory[where] = value


def _atomic_add(at: Pointer, value: Any, mask: Any, sem: str) -> None:
    where, value, mask = np.broadcast_arrays(at.at, value, mask)
    where, value = where[mask], value[mask]
    assert ((where >= 0) & (where < at.memory.size)).all()
    np.add.at(at.memory, where, value)


def _multiply(a: Array, b: Array, onto: Array, use_acc: Any, is_async: bool) -> Array:
    return a @ b + onto if use_acc else a @ b


def _no_instruction(asm: str, constraints: str, args: list[Array], *how: Any, **options: Any) -> Array:
    """What inline assembly gives that is empty and leaves its operand where it is, or only waits; no other is emulated.

    When `add_sums` waits is read off what it is compiled to (test_hopper_kernels).
    """
    if asm == "griddepcontrol.wait; mov.u32 $0, 0;":
        assert (constraints, args) == ("=r", [])
        return _array(0)
    assert (asm, constraints, len(args)) == ("", "=f,0", 1)
    return args[0]


def _nothing(*args: Any, **options: Any) -> None:
    return None


def _language(program: int, programs: int) -> SimpleNamespace:
    """`gluon.language`, as far as the kernels use it; `program`: of how many `programs`, along x."""
    layouts = dict.fromkeys(
        ("NVMMADistributedLayout", "SliceLayout", "DistributedLinearLayout", "BlockedLayout"), _nothing
    )
    return SimpleNamespace(
        **layouts, constexpr=constexpr, float32=np.float32, int32=np.int32, int64=np.int64,
        program_id=lambda axis: _array((program,)[axis]), num_programs=lambda axis: _array(programs),
        static_range=range,
        split=lambda x: (x[..., 0], x[..., 1]),
        arange=lambda first, end, layout=None: _array(np.arange(first, end, dtype=np.int32)),
        full=lambda shape, value, dtype, layout: _array(np.full(shape, value, dtype)),
        zeros=lambda shape, dtype, layout: _array(np.zeros(shape, dtype)),
        where=lambda c, x, y: _array(np.where(c, _written(x), _written(y))),
        maximum=lambda x, y, propagate_nan=None: _array(
            (np.maximum if propagate_nan == ALL else np.fmax)(_written(x), _written(y))
        ),
        minimum=lambda x, y: _array(np.minimum(_written(x), _written(y))),
        reshape=lambda x, shape: _array(np.reshape(x, shape)), permute=lambda x, axes: _array(np.transpose(x, axes)),
        convert_layout=lambda x, layout: x, max=lambda x, axis: _array(np.max(x, axis=axis)),
        inline_asm_elementwise=_no_instruction,
        reduce=_reduce, sum=_sum, load=_load, store=_store, atomic_add=_atomic_add,
    )  # fmt: skip


@pytest.fixture
def program(monkeypatch):
    """One program of `maxsim_forward`, by the source of its loader and consumers."""
    for name, value in list(vars(hopper_kernels).items()):
        if name in ("UNIT", "ALL"):
            monkeypatch.setattr(hopper_kernels, name, value.value)
        elif name.startswith("_") and hasattr(value, "fn"):
            monkeypatch.setattr(hopper_kernels, name, value.fn)
    barriers = SimpleNamespace(wait=_nothing, arrive=Bar.arrive, expect=Bar.expect)
    copies = SimpleNamespace(async_copy_global_to_shared=lambda desc, corner, bar, box: bar.copy(desc, corner, box))
    monkeypatch.setattr(hopper_kernels, "mbarrier", barriers)
    monkeypatch.setattr(hopper_kernels, "tma", copies)
    monkeypatch.setattr(hopper_kernels, "warpgroup_mma", _multiply)
    monkeypatch.setattr(hopper_kernels, "warpgroup_mma_wait", lambda left, deps: deps[0] if len(deps) == 1 else deps)
    monkeypatch.setattr(hopper_kernels, "range", lambda *of: map(_array, range(*of)), raising=False)

    def run(plan: HopperPlan, t: SimpleNamespace, w: SimpleNamespace, number: int, programs: int) -> None:
        monkeypatch.setattr(hopper_kernels, "gl", _language(number, programs))
        ring = Ring(plan)
        with np.errstate(invalid="ignore"):
            hopper_kernels._load(t, w, ring)  # to its end, before a consumer begins
            for consumer in range(plan.NC):
                hopper_kernels._consume(t, w, ring, consumer)
        ring.check(plan)

    return run


@pytest.fixture
def add(program, monkeypatch):
    """Sums [Nq, K] of partial sums [Nq, sums, K], by the source of `add_sums` over its grid."""

    def run(parts: np.ndarray, pairs: bool) -> np.ndarray:
        Nq, sums, K = parts.shape
        out = np.full(Nq * K, np.nan, np.float32)
        programs = Nq * -(-K // 128)
        for number in range(programs):
            monkeypatch.setattr(hopper_kernels, "gl", _language(number, programs))
            numbers = (_array(x) for x in (Nq, K, sums))
            hopper_kernels.add_sums.fn(Pointer(parts.reshape(-1)), Pointer(out), *numbers, pairs, 4)
        return out.reshape(Nq, K)

    return run


@pytest.fixture
def emulate(program, add):
    """Scores (and winners) of a plan, by the kernels' own source."""

    def run(plan: HopperPlan, case: Case, argmax: bool = False) -> tuple[np.ndarray, np.ndarray]:
        out = np.full(case.Nq * plan.sums * case.K, 0 if plan.added else np.nan, np.float32)
        won = np.full(case.Nq * case.K * case.q_max, UNTOUCHED, np.int16)
        t, w = compiled(plan, case, argmax), arguments(plan, case, out, won)
        for number in range(plan.programs):
            program(plan, t, w, number, plan.programs)
        sums = out.reshape(case.Nq, plan.sums, case.K)
        scores = sums[:, 0] if plan.sums == 1 else add(sums, plan.SUM == UNIT)
        return scores, won.reshape(case.Nq, case.K, case.q_max)

    return run


def compiled(plan: HopperPlan, case: Case, argmax: bool) -> SimpleNamespace:
    """Compile-time arguments, as plain values."""
    given = [getattr(case, role) is not None for role in ("q_starts", "q_lengths", "d_starts", "d_lengths")]
    built = hopper_kernels.Tile(
        plan.BM, plan.BN, plan.BR, plan.BK, plan.KS, plan.KC, plan.KI, ENDLESS, ENDLESS if plan.QST else 0, plan.NC,
        plan.G, plan.SUM, plan.shared, *given, plan.balanced, argmax,
    )  # fmt: skip
    return SimpleNamespace(**{name: value.value for name, value in vars(built).items()})


def arguments(plan: HopperPlan, case: Case, out: Any, won: Any) -> SimpleNamespace:
    """Run-time arguments of the widths that the kernel gets: starts of 64 bits, everything else of 32."""
    numbers = {
        "n_chunks": plan.groups * plan.blocks, "n_groups": plan.groups, "n_blocks": plan.blocks, "Nq": case.Nq,
        "K": case.K, "q_pitch": case.q_max, "q_max": case.q_max, "q_rows": len(case.q), "d_pitch": case.d_max,
        "d_max": case.d_max, "d_total": len(case.d), "parts": plan.parts,
    }  # fmt: skip
    q_lengths, d_lengths = (None if x is None else x.astype(np.int32) for x in (case.q_lengths, case.d_lengths))
    return SimpleNamespace(
        q_desc=Descriptor(case.q, plan.G, plan.BK), d_desc=Descriptor(case.d, plan.BR, plan.BK),
        out_ptr=Pointer(out), arg_ptr=Pointer(won), q_start_ptr=Pointer(case.q_starts), q_len_ptr=Pointer(q_lengths),
        d_start_ptr=Pointer(case.d_starts), d_len_ptr=Pointer(d_lengths),
        **{name: _array(value) for name, value in numbers.items()},
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """Batches as the kernel sees them: q [rows, d], d [rows, d] fp32; K documents for each of Nq queries."""

    q: np.ndarray
    d: np.ndarray
    Nq: int
    K: int
    q_max: int
    d_max: int
    q_starts: np.ndarray | None = None
    q_lengths: np.ndarray | None = None
    d_starts: np.ndarray | None = None
    d_lengths: np.ndarray | None = None
    shared: bool = True

    def query(self, n: int) -> np.ndarray:
        start = self.q_max * n if self.q_starts is None else self.q_starts[n]
        return self.q[start : start + (self.q_max if self.q_lengths is None else self.q_lengths[n])]

    def document(self, k: int) -> np.ndarray:
        start = self.d_max * k if self.d_starts is None else self.d_starts[k]
        return self.d[start : start + (self.d_max if self.d_lengths is None else self.d_lengths[k])]

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores in fp64 of fp32 similarities, and the first row of each maximum (-1 for none)."""
        scores = np.zeros((self.Nq, self.K))
        won = np.full((self.Nq, self.K, self.q_max), -1)
        for n in range(self.Nq):
            for k in range(self.K):
                q, d = self.query(n), self.document(k if self.shared else n * self.K + k)
                s = q @ d.T * np.float32(FACTOR)
                top = s.max(1) if len(d) else np.full(len(q), -np.inf)
                scores[n, k] = top.sum(dtype=np.float64)
                if len(d):
                    won[n, k, : len(q)] = s.argmax(1)
        return scores, won

    def pruned(self, n: int, k: int, q_max: int) -> Case:
        """One query, given q_max tokens, and one document of it."""
        q, d = self.query(n), self.document(k if self.shared else n * self.K + k)
        one = np.array([0])
        return dataclasses.replace(
            self, q=q, d=d, Nq=1, K=1, q_max=q_max, q_starts=one, q_lengths=np.array([len(q)]), d_starts=one,
            d_lengths=np.array([len(d)]),
        )  # fmt: skip


def eighths(rng: np.random.Generator, rows: int, d: int) -> np.ndarray:
    """Embeddings whose products are exact, most of them different."""
    return (rng.integers(-64, 65, (rows, d)) / 8).astype(np.float32)


def make(
    Nq: int,
    K: int,
    Lq: int,
    lengths: tuple[int, int],
    kind: str,
    d: int = 32,
    masked: bool = False,
    starts: bool = False,
) -> Case:
    """A batch; kind: dense (all documents of the longest length), packed, padded, list (ragged, in no order), apart.

    masked: queries are of several lengths, and rows behind them NaN; starts: and begin anywhere, in no order.
    """
    rng = np.random.default_rng(Nq * 1000 + K * 10 + Lq)
    shared = kind != "apart"
    count = K if shared else Nq * K
    n = rng.integers(lengths[0], lengths[1] + 1, count)
    d_starts = np.concatenate([[0], n.cumsum()])
    rows = int(d_starts[-1]) if kind in ("packed", "list") else count * lengths[1]
    q, x = eighths(rng, Nq * Lq, d), eighths(rng, max(rows, 1), d)
    case = Case(q, x, Nq, K, Lq, lengths[1], shared=shared)
    if kind in ("packed", "list"):
        order = np.arange(count) if kind == "packed" else rng.permutation(count)
        case = dataclasses.replace(case, d_starts=d_starts[:-1][order], d_lengths=n[order])
    elif kind != "dense":
        case = dataclasses.replace(case, d_lengths=n)
    if masked:
        q_lengths = rng.integers(0, Lq + 1, Nq)
        q_lengths[0] = Lq
        for i in range(Nq):
            q[i * Lq + q_lengths[i] : (i + 1) * Lq] = np.nan
        case = dataclasses.replace(case, q_lengths=q_lengths)
    if starts:
        order = rng.permutation(Nq)
        lengths_of = q_lengths[order] if masked else np.full(Nq, Lq)
        q_starts = np.zeros(Nq, int)
        q_starts[order] = lengths_of.cumsum() - lengths_of + 3
        case = dataclasses.replace(case, q=eighths(rng, 3 + int(lengths_of.sum()), d), q_starts=q_starts)
    return case


def plans(case: Case, kind: str, argmax: bool = False, processors: int = 3) -> list[HopperPlan]:
    """Every tile that these shapes can be given, each on few programs and on many."""
    found = []
    ascending = len(case.d) if kind == "packed" else None
    for NC, BM, each in PLANS:
        tile = _tile(NC, BM, case.Nq, case.K, case.q_max, case.q.shape[1], case.shared)
        if tile is None:
            continue
        contiguous = kind in ("packed", "dense")
        if each == 2:
            tile = _paired(tile, contiguous)
            if tile is None:
                continue
        _, plan = _schedule(tile, case.K, case.d_max, ascending, contiguous, argmax, processors)
        found.append(plan)
        copies = plan.KS * plan.KC
        for run in {1, copies // 2 if copies % 2 == 0 else 1}:  # columns added up at a time; queries travel too
            found.append(dataclasses.replace(plan, QST=0, KS=1, KC=copies, KI=run))
        for blocks in {1, min(case.K, 3)}:
            found.append(dataclasses.replace(plan, blocks=blocks, programs=min(2, plan.groups * blocks)))
    return found


CASES = [
    ((1, 45, 32, (20, 60), "packed"), {}),
    ((1, 40, 32, (300, 300), "dense"), {}),
    ((3, 70, 17, (0, 5), "packed"), {"masked": True}),
    ((5, 34, 32, (0, 180), "packed"), {"masked": True, "d": 192}),
    ((9, 33, 25, (130, 130), "dense"), {"starts": True}),
    ((7, 12, 32, (0, 300), "padded"), {"masked": True}),
    ((2, 33, 30, (1, 200), "list"), {"masked": True, "starts": True}),
    ((3, 35, 32, (0, 150), "apart"), {"masked": True}),
    ((2, 3, 100, (0, 150), "apart"), {}),
    ((19, 5, 8, (1, 140), "packed"), {}),
    ((9, 66, 16, (64, 64), "dense"), {}),
    ((3, 36, 64, (16, 120), "packed"), {"masked": True}),
    ((2, 5, 128, (129, 129), "dense"), {}),
    ((3, 6, 300, (0, 150), "packed"), {"masked": True, "starts": True}),
    ((1, 4, 150, (0, 200), "packed"), {"d": 544}),
    ((2, 5, 70, (0, 200), "packed"), {"d": 256}),  # four runs, of which two take turns, and two
    ((1, 3, 150, (100, 200), "packed"), {"d": 1024}),  # four runs, whether queries are held or travel
]


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_every_plan_stores_every_score_once_with_the_same_bits(emulate, shape, options):
    case = make(*shape, **options)
    expected, _ = case.expected()
    first: np.ndarray | None = None
    for plan in plans(case, shape[4]):
        scores, _ = emulate(plan, case)
        assert np.allclose(scores, expected, rtol=1e-6, atol=1e-4), plan
        first = scores if first is None else first
        assert np.array_equal(scores, first), plan
    assert first is not None
    for n, k in ((0, 0), (case.Nq - 1, case.K - 1)):
        for q_max in {case.q_max, max(1, len(case.query(n)))}:
            alone = case.pruned(n, k, q_max)
            for plan in plans(alone, "list"):
                assert emulate(plan, alone)[0][0, 0] == first[n, k], plan


@pytest.mark.parametrize(("shape", "options"), [CASES[i] for i in (0, 2, 5, 7, 9, 11, 13)], ids=str)
def test_winners_are_stored_at_their_token_and_change_no_score(emulate, shape, options):
    case = make(*shape, **options)
    _, won = case.expected()
    scores, _ = emulate(plans(case, shape[4])[0], case)
    for plan in plans(case, shape[4], argmax=True):
        found, winners = emulate(plan, case, argmax=True)
        assert np.array_equal(found, scores), plan
        assert np.array_equal(winners, won), plan


def test_nan_and_infinity_stay_in_their_document(emulate):
    case = make(2, 40, 32, (1, 90), "packed")
    case.d[case.d_starts[7]] = np.nan
    case.d[case.d_starts[12] : case.d_starts[12] + 1, :] = np.inf
    for plan in plans(case, "packed"):
        scores, _ = emulate(plan, case)
        odd = ~np.isfinite(scores)
        assert odd[:, [7, 12]].all()
        assert odd.sum() == 2 * case.Nq
        assert np.isnan(scores[:, 7]).all()


def repeated(case: Case, kinds: np.ndarray) -> Case:
    """The case with rows of few kinds, one number a row, so that most maxima come more than once."""
    rows = eighths(np.random.default_rng(0), int(kinds.max()) + 1, case.d.shape[1])
    return dataclasses.replace(case, d=rows[kinds])


def of_each_tile(found: list[HopperPlan]) -> list[HopperPlan]:
    """One plan of each tile; a winner goes another way through the lanes where a consumer has 128 rows."""
    first = {(plan.NC, plan.BM): plan for plan in reversed(found)}
    assert set(first) == {tile[:2] for tile in PLANS}
    return list(first.values())


def test_winners_among_equals_are_the_first(emulate):
    """Rows of few kinds, so that the greatest comes again in the same thread, in other lanes, parts and tiles."""
    case = make(5, 7, 32, (0, 400), "packed")
    again = np.random.default_rng(1).integers(0, 9, len(case.d))
    for which in (again, np.sort(again), again * 0):
        equals = repeated(case, which)
        for plan in of_each_tile(plans(equals, "packed", argmax=True)):
            assert np.array_equal(emulate(plan, equals, argmax=True)[1], equals.expected()[1]), plan


@pytest.mark.parametrize(("Nq", "Lq"), [(5, 32), (3, 100)], ids=["queries that share a unit", "sums of 128 rows"])
def test_documents_that_end_in_one_tile_have_each_their_own_winners(emulate, Nq, Lq):
    """Dozens of them, some without tokens, one after the other: what is due is closed before it is forgotten."""
    case = make(Nq, 30, Lq, (0, 6), "packed", masked=True)
    assert len(case.d) < 128, "all in one tile"
    assert (np.diff(np.flatnonzero(case.d_lengths == 0)) == 1).any(), "two empty ones in a row"
    case = repeated(case, np.random.default_rng(2).integers(0, 3, len(case.d)))
    expected, won = case.expected()
    for plan in of_each_tile(plans(case, "packed", argmax=True)):
        scores, winners = emulate(plan, case, argmax=True)
        assert np.allclose(scores, expected, rtol=1e-6, atol=1e-4), plan
        assert np.array_equal(winners, won), plan


def test_winners_among_nan_are_tokens_of_their_document(emulate):
    case = make(2, 40, 32, (1, 290), "packed")
    odd = np.array([3, 7, 8, 30])
    case.d[case.d_starts[3] : case.d_starts[4]] = np.nan
    case.d[case.d_starts[7]] = np.nan  # a tile's document that begins with it, the one after ends with it
    case.d[case.d_starts[9] - 1] = np.nan
    case.d[case.d_starts[30] + case.d_lengths[30] // 2] = -np.inf
    _, wanted = make(2, 40, 32, (1, 290), "packed").expected()
    for plan in plans(case, "packed", argmax=True):
        scores, won = emulate(plan, case, argmax=True)
        assert np.isnan(scores[:, [3, 7, 8]]).all()
        assert (won[:, odd] >= 0).all()
        assert (won[:, odd] < case.d_lengths[odd][None, :, None]).all()
        assert np.array_equal(np.delete(won, odd, 1), np.delete(wanted, odd, 1)), plan


EDGES = (0, 128, 0, 0, 127, 1, 0, 129, 255, 0, 0, 64, 64, 0)


@pytest.mark.parametrize("Nq", [2, 5])
@pytest.mark.parametrize("kind", ["packed", "padded", "list"])
def test_documents_end_begin_and_are_empty_at_the_edges_of_tiles(emulate, kind, Nq):
    """The first and the last one are empty, too: a tile for nobody that only one side walked would be waited for."""
    case = make(Nq, len(EDGES), 20, (1, max(EDGES)), "dense")
    n = np.array(EDGES)
    starts = n.cumsum() - n if kind == "packed" else None
    if kind == "list":
        starts = np.array([0, 0, 128, 300, 128, 255, 256, 0, 129, 384, 400, 400, 464, 528])
    case = dataclasses.replace(case, d_starts=starts, d_lengths=n, d=case.d[: n.sum()] if kind == "packed" else case.d)
    expected, won = case.expected()
    found = plans(case, kind, argmax=True)
    for plan in found if Nq == 2 else of_each_tile(found):
        scores, _ = emulate(plan, case)
        beside, winners = emulate(plan, case, argmax=True)
        assert np.array_equal(beside, scores), plan
        assert np.array_equal(winners, won), plan
        empty = n == 0
        assert np.isneginf(scores[:, empty]).all()
        assert np.allclose(scores[:, ~empty], expected[:, ~empty], rtol=1e-6, atol=1e-4), plan


def test_lengths_outside_of_their_batch_are_clamped(emulate):
    clamped = make(3, 12, 20, (0, 150), "padded", masked=True)
    clamped.d_lengths[[2, 5]] = 0, clamped.d_max
    clamped.q_lengths[[0, 1]] = clamped.q_max, 0
    odd = dataclasses.replace(clamped, d_lengths=clamped.d_lengths.copy(), q_lengths=clamped.q_lengths.copy())
    odd.d_lengths[[2, 5]] = -3, clamped.d_max + 40
    odd.q_lengths[[0, 1]] = clamped.q_max + 7, -2
    for plan in plans(odd, "padded", argmax=True):
        for one, other in zip(emulate(plan, odd, argmax=True), emulate(plan, clamped, argmax=True), strict=True):
            assert np.array_equal(one, other), plan


def test_plans_of_every_kind_are_emulated():
    kinds = {
        (plan.BM, plan.G, plan.SUM, plan.added, plan.shared)
        for shape, options in CASES
        for plan in plans(make(*shape, **options), shape[4])
    }
    for wanted in ((128, 32), (64, 32), (64, 8), (128, 16), (64, 64), (128, 64)):
        assert any(kind[:2] == wanted for kind in kinds), wanted
    assert any(kind[3] for kind in kinds), "sums that two consumers add to"
    assert any(kind[2] == 128 and kind[0] == 128 for kind in kinds), "sums of 128 rows"
    assert {kind[4] for kind in kinds} == {True, False}
    alone, together = (plan_shape(Nq=Nq, K=10, Lq=32, Ld=300, d=128) for Nq in (1, 2))
    assert (alone.shared, together.shared) == (False, True), "a lone short query copies nothing for a second one"


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("K", [1, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 4097])
def test_blocks_of_packed_documents_begin_where_a_search_finds_their_rows(emulate, monkeypatch, K, threads):
    """Lengths that the guess fits, and that it misses by all there is: sorted, empty, one long one at either end."""
    monkeypatch.setattr(hopper_kernels, "gl", _language(0, 1))
    rng = np.random.default_rng(K)
    ordinary = rng.integers(0, 300, K)
    long_first, long_last = np.zeros(K, int), np.zeros(K, int)
    long_first[0] = long_last[-1] = 10_000
    for lengths in (ordinary, np.sort(ordinary), np.sort(ordinary)[::-1], np.zeros(K, int), long_first, long_last):
        starts = lengths.cumsum() - lengths
        total = int(lengths.sum())
        for blocks in (1, 2, 7, 264):
            for block in {0, 1, blocks // 2, blocks - 1} - {blocks}:
                ends = [(block + i) * total // blocks for i in (0, 1)]
                guesses = [_array((block + i) * K // blocks) for i in (0, 1)]
                found = hopper_kernels._lower_bounds(
                    Pointer(starts), _array(K), _array(ends[0]), guesses[0], _array(ends[1]), guesses[1], threads
                )
                assert [int(x) for x in found] == np.searchsorted(starts, ends, "left").tolist(), (
                    lengths,
                    blocks,
                    block,
                )


def test_a_guess_that_fits_costs_one_look_at_memory(emulate, monkeypatch):
    """A thousand documents of ordinary lengths, cut into the blocks of an H200: most are found where expected."""
    monkeypatch.setattr(hopper_kernels, "gl", _language(0, 1))
    steps = []
    narrowed = hopper_kernels._narrowed
    monkeypatch.setattr(hopper_kernels, "_narrowed", lambda *args: steps.append(1) or narrowed(*args))
    lengths = np.random.default_rng(0).integers(20, 513, 1000)
    starts, total = lengths.cumsum() - lengths, int(lengths.sum())
    for block in range(264):
        guesses = [_array((block + i) * 1000 // 264) for i in (0, 1)]
        ends = [_array((block + i) * total // 264) for i in (0, 1)]
        hopper_kernels._lower_bounds(Pointer(starts), _array(1000), ends[0], guesses[0], ends[1], guesses[1], 1)
    assert len(steps) <= 2 * 264 // 10


def test_an_integer_that_its_width_does_not_hold_is_an_error_here():
    large = _array(2**30)
    for overflows in (
        lambda: large * 2,
        lambda: 2 * large,
        lambda: large + large,
        lambda: -2 - large - large,
        lambda: _array(np.array([1, 3], np.int32)) * large,
        lambda: (large.to(np.int64) * 4).to(np.int32),
    ):
        with pytest.raises(AssertionError, match=r"overflows|does not fit"):
            overflows()
    assert int(large.to(np.int64) * large) == 2**60
    assert (large * 1 + 5).dtype == np.int32


class Computed:
    """Memory of `size` starts, each worked out from its place: no array of so many is needed."""

    def __init__(self, size: int, start: Callable[[np.ndarray], np.ndarray]) -> None:
        self.size, self.start, self.dtype = size, start, np.dtype(np.int64)

    def __getitem__(self, place: np.ndarray) -> np.ndarray:
        return np.asarray(self.start(place.astype(np.int64)), np.int64)


MOST = 2**31 - 2**16  # rows that `hopper.supports` accepts, and documents where none is empty


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(("K", "total"), [(MOST, MOST), (MOST, 1000), (1000, MOST), (264, MOST), (MOST // 3, MOST)])
def test_blocks_are_cut_where_they_belong_among_as_many_documents_and_rows_as_there_can_be(
    program, monkeypatch, K, total, threads
):
    """A block's number times either passes 32 bits. Of even lengths the guess fits; otherwise it is all documents off.

    A search for a row gives the first document that does not begin before it.
    """
    monkeypatch.setattr(hopper_kernels, "gl", _language(0, 1))
    kinds = {
        "even": (lambda k: k * total // K, lambda row: -(-row * K // total)),
        "all rows in the last": (lambda k: k * 0, lambda row: 0 if row == 0 else K),
        "all rows in the first": (lambda k: np.where(k > 0, total, 0), lambda row: 0 if row == 0 else 1),
    }
    numbers = {"n_groups": 2, "n_blocks": 264, "K": K, "d_total": total, "parts": 1}
    w = SimpleNamespace(**{name: _array(value) for name, value in numbers.items()})
    for block in (0, 1, 131, 262, 263):
        t = SimpleNamespace(SHARED=True, BALANCED=False, UNITS=1)
        found = hopper_kernels._chunk(t, w, _array(2 * block + 1), threads)
        assert [int(x) for x in found] == [1, 0, block * K // 264, (block + 1) * K // 264]
        t.BALANCED = True
        for kind, (start, first_from) in kinds.items():
            w.d_start_ptr = Pointer(Computed(K, start))
            found = hopper_kernels._chunk(t, w, _array(2 * block + 1), threads)
            lo, hi = (first_from((block + i) * total // 264) for i in (0, 1))
            assert [int(x) for x in found] == [1, 0, lo, K if block == 263 else hi], (kind, block)


class Sparse:
    """Memory of which only what was stored takes room."""

    def __init__(self, size: int, dtype: Any, empty: float) -> None:
        self.size, self.dtype, self.empty = size, np.dtype(dtype), empty
        self.held: dict[int, float] = {}

    def __getitem__(self, place: np.ndarray) -> np.ndarray:
        return np.array([self.held.get(at, self.empty) for at in place.tolist()], self.dtype)

    def __setitem__(self, place: np.ndarray, values: np.ndarray) -> None:
        self.held.update(zip(place.tolist(), values.tolist(), strict=True))


class Recurring:
    """`count` rows that are the same few over and over."""

    def __init__(self, rows: np.ndarray, count: int) -> None:
        self.rows, self.count = rows, count

    def __getitem__(self, part: tuple[slice, slice]) -> np.ndarray:
        row, column = part
        return self.rows[np.arange(row.start, min(row.stop, self.count)) % len(self.rows), column]


@pytest.mark.parametrize(("Nq", "Lq", "argmax"), [(40, 32, True), (20, 150, False)])
def test_scores_and_winners_beyond_two_billion_lie_at_their_addresses(program, Nq, Lq, argmax):
    """2^27 documents of one token in blocks of eight; one program scores the first of all, another the last."""
    K, blocks = 2**27, 2**24
    case = make(Nq, 7, Lq, (1, 1), "dense")
    tile = _tile(2, 128, Nq, K, Lq, 32, True) or _tile(1, 64, Nq, K, Lq, 32, True)
    assert tile is not None
    _, plan = _schedule(tile, 264, 1, None, True, argmax, 132)
    assert not plan.added
    scores, won = Sparse(Nq * plan.sums * K, np.float32, np.nan), Sparse(Nq * K * Lq, np.int16, UNTOUCHED)
    w = arguments(plan, case, scores, won)
    w.d_desc = Descriptor(Recurring(case.d, K), plan.BR, plan.BK)
    chunks = plan.groups * blocks
    w.K, w.n_blocks, w.n_chunks = _array(K), _array(blocks), _array(chunks)
    for group in range(plan.groups):
        for block in (0, blocks - 1):
            program(plan, compiled(plan, case, argmax), w, block * plan.groups + group, chunks)
    expected, winners = case.expected()
    documents = (*range(8), *range(K - 8, K))
    assert len(scores.held) == len(documents) * Nq * plan.sums
    assert len(won.held) == (len(documents) * Nq * Lq if argmax else 0)
    assert max(scores.held) > 2**32
    for n, doc in itertools.product(range(Nq), documents):
        places = (np.arange(plan.sums) + n * plan.sums) * K + doc
        assert np.isclose(scores[places].sum(), expected[n, doc % 7], rtol=1e-6, atol=1e-4), (n, doc)
        if argmax:
            assert (won[(n * K + doc) * Lq + np.arange(Lq)] == winners[n, doc % 7]).all(), (n, doc)


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("K", [1, 128, 129])
@pytest.mark.parametrize("sums", [2, 3, 4, 5, 17])
def test_partial_sums_are_added_in_their_order_and_none_of_the_next_query(add, sums, K, pairs):
    """Sums of 64 rows first by pairs, so that they come to what sums of 128 rows come to; the last one may be alone."""
    parts = np.random.default_rng(sums).standard_normal((3, sums, K)).astype(np.float32)
    whole = parts
    if pairs:
        padded = np.concatenate([parts, np.zeros((3, sums % 2, K), np.float32)], axis=1)
        whole = padded[:, ::2] + padded[:, 1::2]
    expected = np.zeros((3, K), np.float32)
    for i in range(whole.shape[1]):
        expected = expected + whole[:, i]
    assert np.array_equal(add(parts, pairs), expected)


def test_partial_sums_beyond_two_billion_are_found(program, monkeypatch):
    """Of the last query: its partial sums, and its place among the scores."""
    Nq, K, sums = 5, 2**29 + 1, 5
    parts, out = Sparse(Nq * sums * K, np.float32, 0.0), Sparse(Nq * K, np.float32, np.nan)
    parts[np.array([(4 * sums + i) * K + K - 1 for i in range(sums)])] = np.array([1, 2, 4, 8, 16])
    blocks = -(-K // 128)
    monkeypatch.setattr(hopper_kernels, "gl", _language(Nq * blocks - 1, Nq * blocks))
    numbers = (_array(x) for x in (Nq, K, sums))
    hopper_kernels.add_sums.fn(Pointer(parts), Pointer(out), *numbers, True, 4)
    assert out.held == {4 * K + k: 31 if k == K - 1 else 0 for k in range((K - 1) // 128 * 128, K)}


def test_every_consumer_takes_rows_of_its_own(monkeypatch):
    """The emulation above calls consumers by number; a launch calls these, one a warpgroup."""
    taken = []
    monkeypatch.setattr(hopper_kernels, "_consume", lambda t, w, ring, W: taken.append(W))
    for number in range(4):
        getattr(hopper_kernels, f"_consume{number}").fn(None, None, None)
    assert taken == [0, 1, 2, 3]
