# Arguments of kernels have no Python types, and Gluon gives integers methods and lets a tuple grow.
# mypy: disable-error-code="no-untyped-def, attr-defined, assignment"
# ruff: noqa: RUF005 (the compiler of kernels adds tuples and does not unpack them)
"""Device side of the Hopper forward: Gluon kernels for sm_90. `hopper.py` plans, checks and launches them.

Room: `fused`. May import: triton. Imported by `hopper.py` only when a kernel is compiled; importing it needs no GPU.

Shape of the kernel. A program is one loader warp and NC consumer warpgroups (1, 2 or 4). The loader copies tiles of BN
document rows into a ring of ST stages by TMA; consumer W holds BM query rows in shared memory, multiplies them with
every tile (wgmma, fp32 accumulator in registers) and keeps the row maxima in registers. All consumers see the same
tiles, so one's maximum runs under another's matrix product.

Query rows live in *units* of 64: a unit is 64/G queries of at most G tokens each (G = 8, 16, 32 or 64), or 64 of the
rows of a longer query, which then has `parts` units. Row maxima are always summed over one unit's G rows first, by the
same reduction tree wherever the unit sits, so a score has the same bits in every batch.

Document rows are a stream. A tile begins where the previous document or the previous tile ended; every document that
ends or begins inside the tile is masked to its columns. Only where the next document is elsewhere (padding, a reranking
list) a new tile begins at its first row. The loader and the consumers walk the same documents, so they agree on the
tiles without talking about them.

Work is cut into chunks: query group (NC * BM / 64 units) times block of documents. Program p takes chunks p,
p + programs, ...; neighbours in that order share documents, which meet in L2.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.core import _aggregate as aggregate

ALL = gl.constexpr(tl.PropagateNan.ALL)
UNIT = gl.constexpr(64)


@aggregate
class Tile:
    """Compile-time shape of a program: the fields of `HopperPlan` of the same names, and what the batches carry.

    Annotations are real types here: the decorator checks them, so this module does not postpone their evaluation.
    """

    BM: gl.constexpr
    BN: gl.constexpr
    BR: gl.constexpr
    BK: gl.constexpr
    KS: gl.constexpr
    KC: gl.constexpr
    KI: gl.constexpr
    ST: gl.constexpr
    QST: gl.constexpr
    NC: gl.constexpr
    G: gl.constexpr
    SUM: gl.constexpr
    SHARED: gl.constexpr
    HAS_Q_STARTS: gl.constexpr
    HAS_Q_LENGTHS: gl.constexpr
    HAS_STARTS: gl.constexpr
    HAS_LENGTHS: gl.constexpr
    BALANCED: gl.constexpr
    ARGMAX: gl.constexpr
    USED: gl.constexpr  # queries of a unit: the others of its 64 / G slots stay empty where queries share no documents
    UNITS: gl.constexpr  # of a query group

    @gluon.constexpr_function
    def __init__(
        self, BM, BN, BR, BK, KS, KC, KI, ST, QST, NC, G, SUM, SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS,
        HAS_LENGTHS, BALANCED, ARGMAX,
    ):  # fmt: skip
        self.BM = gl.constexpr(BM)
        self.BN = gl.constexpr(BN)
        self.BR = gl.constexpr(BR)
        self.BK = gl.constexpr(BK)
        self.KS = gl.constexpr(KS)
        self.KC = gl.constexpr(KC)
        self.KI = gl.constexpr(KI)
        self.ST = gl.constexpr(ST)
        self.QST = gl.constexpr(QST)
        self.NC = gl.constexpr(NC)
        self.G = gl.constexpr(G)
        self.SUM = gl.constexpr(SUM)
        self.SHARED = gl.constexpr(SHARED)
        self.HAS_Q_STARTS = gl.constexpr(HAS_Q_STARTS)
        self.HAS_Q_LENGTHS = gl.constexpr(HAS_Q_LENGTHS)
        self.HAS_STARTS = gl.constexpr(HAS_STARTS)
        self.HAS_LENGTHS = gl.constexpr(HAS_LENGTHS)
        self.BALANCED = gl.constexpr(BALANCED)
        self.ARGMAX = gl.constexpr(ARGMAX)
        self.USED = gl.constexpr(64 // G if SHARED else 1)
        self.UNITS = gl.constexpr(NC * BM // 64)


@aggregate
class Ring:
    """Shared memory of a program: query rows, document tiles, and the barriers that hand them over."""

    q_boxes: gl.shared_memory_descriptor
    q_tiles: gl.shared_memory_descriptor
    d_boxes: gl.shared_memory_descriptor
    d_tiles: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q_boxes, q_tiles, d_boxes, d_tiles, q_full, q_empty, full, empty):
        self.q_boxes = q_boxes
        self.q_tiles = q_tiles
        self.d_boxes = d_boxes
        self.d_tiles = d_tiles
        self.q_full = q_full
        self.q_empty = q_empty
        self.full = full
        self.empty = empty

    # How `_consume` multiplies; a ring of another kind brings its own.

    @gluon.jit
    def start(self, t, zero, it, loads, W: gl.constexpr):
        """Issue what of the next document tile's products needs no waiting in between; handed on to `similarities`."""
        if t.KC == 1:
            started = _multiply(t, self, zero, it, loads, 0, 0, W)
        else:
            started = zero
        return started

    @gluon.jit
    def similarities(self, t, started, it, loads, W: gl.constexpr):
        """Similarities [BM, BN] of the tile, whose stages are handed back."""
        return _similarities(t, self, started, it, loads, W)


@aggregate
class Work:
    """Run-time arguments of the kernel."""

    q_desc: tma.tensor_descriptor
    d_desc: tma.tensor_descriptor
    out_ptr: gl.tensor
    arg_ptr: gl.tensor
    q_start_ptr: gl.tensor
    q_len_ptr: gl.tensor
    d_start_ptr: gl.tensor
    d_len_ptr: gl.tensor
    n_chunks: gl.tensor
    n_groups: gl.tensor
    n_blocks: gl.tensor
    Nq: gl.tensor
    K: gl.tensor
    q_pitch: gl.tensor
    q_max: gl.tensor
    q_rows: gl.tensor
    d_pitch: gl.tensor
    d_max: gl.tensor
    d_total: gl.tensor
    parts: gl.tensor

    @gluon.constexpr_function
    def __init__(
        self, q_desc, d_desc, out_ptr, arg_ptr, q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, n_chunks, n_groups,
        n_blocks, Nq, K, q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts,
    ):  # fmt: skip
        self.q_desc = q_desc
        self.d_desc = d_desc
        self.out_ptr = out_ptr
        self.arg_ptr = arg_ptr
        self.q_start_ptr = q_start_ptr
        self.q_len_ptr = q_len_ptr
        self.d_start_ptr = d_start_ptr
        self.d_len_ptr = d_len_ptr
        self.n_chunks = n_chunks
        self.n_groups = n_groups
        self.n_blocks = n_blocks
        self.Nq = Nq
        self.K = K
        self.q_pitch = q_pitch
        self.q_max = q_max
        self.q_rows = q_rows
        self.d_pitch = d_pitch
        self.d_max = d_max
        self.d_total = d_total
        self.parts = parts


@gluon.jit
def _max_nan(a, b):
    """Maximum that keeps NaN: `max.NaN.f32` in PTX, the same number of instructions as the one that drops it."""
    return gl.maximum(a, b, propagate_nan=ALL)


@gluon.jit
def _leaves(x, BM: gl.constexpr, J: gl.constexpr):
    """x [BM, J, 4] as J tensors [BM, 4], in order: a renaming of registers."""
    if J == 1:
        found = (gl.reshape(x, [BM, 4]),)
    else:
        first, second = gl.split(gl.permute(gl.reshape(x, [BM, 2, J // 2, 4]), (0, 2, 3, 1)))
        found = _leaves(first, BM, J // 2) + _leaves(second, BM, J // 2)
    return found


@gluon.jit
def _columns(x, BM: gl.constexpr, N: gl.constexpr):
    """The N / 4 columns of x [BM, N] that a thread holds, as tensors [BM, 4] from left to right."""
    even, odd = gl.split(gl.reshape(x, [BM, N // 8, 4, 2]))
    even = _leaves(even, BM, N // 8)
    odd = _leaves(odd, BM, N // 8)
    found = (even[0], odd[0])
    for j in gl.static_range(1, N // 8):
        found = found + (even[j], odd[j])
    return found


@gluon.jit
def _half(nodes, right, COUNT: gl.constexpr):
    """The right half of COUNT tensors where `right`, else the left half."""
    found = (gl.where(right, nodes[COUNT // 2], nodes[0]),)
    for j in gl.static_range(1, COUNT // 2):
        found = found + (gl.where(right, nodes[COUNT // 2 + j], nodes[j]),)
    return found


@gluon.jit
def _first_greatest(nodes, DEPTH: gl.constexpr):
    """The greatest of 2^DEPTH tensors, elementwise, and the turns of the way to its first place, the first turn first.

    A tree of maxima, and back down: to the right where the left half holds nothing as great. Comparing every element
    with the greatest so far is three instructions each, and each waits for the comparison before it; this is two, with
    a comparison to wait for at every level only.
    """
    PAIRS: gl.constexpr = 2 ** (DEPTH - 1)
    left = (nodes[0],)
    above = (_max_nan(nodes[0], nodes[1]),)
    for j in gl.static_range(1, PAIRS):
        left = left + (nodes[2 * j],)
        above = above + (_max_nan(nodes[2 * j], nodes[2 * j + 1]),)
    if DEPTH == 1:
        best = above[0]
        turns = (best > left[0],)
    else:
        best, turns = _first_greatest(above, DEPTH - 1)
        for k in gl.static_range(DEPTH - 1):
            left = _half(left, turns[k], 2 ** (DEPTH - 1 - k))
        turns = turns + (best > left[0],)
    return best, turns


@gluon.jit
def _winner(s, i, BM: gl.constexpr, N: gl.constexpr):
    """Maxima [BM, 4] of what a row's four lanes hold each of s [BM, N], and the number in i of the first of them."""
    DEPTH: gl.constexpr = 5 if N == 128 else 4 if N == 64 else 3 if N == 32 else 2  # of a tree over N / 4 columns
    best, turns = _first_greatest(_columns(s, BM, N), DEPTH)
    at = _columns(i, BM, N)[0]
    for k in gl.static_range(DEPTH):  # the last turn is between neighbours, the others between columns 8 j apart
        at = at + gl.where(turns[k], 8 * 2 ** (DEPTH - 2 - k) if k < DEPTH - 1 else 1, 0)
    return best, at


@gluon.jit
def _lower_wins(v1, i1, v2, i2):
    """The greater of two values with its index; the lower index where they are equal, in whichever order they come."""
    return gl.maximum(v1, v2, propagate_nan=ALL), gl.where((v2 > v1) | ((v2 == v1) & (i2 < i1)), i2, i1)


@gluon.jit
def _fold(
    m, mi, s, i, c0, c1, shift, MASKED: gl.constexpr, ARGMAX: gl.constexpr, BM: gl.constexpr, N: gl.constexpr,
    quads: gl.constexpr,
):  # fmt: skip
    """Running maxima m [BM, 4] (and indices mi) after N columns s [BM, N], of which i in c0 .. c1 - 1 take part.

    A thread holds columns 8j + 2c and 8j + 2c + 1 of its rows, c = lane % 4. It reduces what it holds; the four lanes
    of a row are reduced once a document. A masked column is -inf and never greater than anything. The index kept is
    i + shift.
    """
    if MASKED:
        s = gl.where((i >= c0) & (i < c1), s, float("-inf"))
    if ARGMAX:
        best, at = _winner(s, i, BM, N)
        best = gl.convert_layout(best, quads)
        mi = gl.where(best > m, gl.convert_layout(at, quads) + shift, mi)
    else:
        s = gl.reshape(s, [BM, N // 8, 4, 2])
        best = gl.convert_layout(gl.reduce(gl.reduce(s, 1, _max_nan), 2, _max_nan), quads)
    return gl.maximum(m, best, propagate_nan=ALL), mi


@gluon.jit
def _halves(x, BM: gl.constexpr, N: gl.constexpr):
    """The left and the right N / 2 columns of x [BM, N]: a renaming of registers."""
    return gl.split(gl.permute(gl.reshape(x, [BM, 2, N // 2]), (0, 2, 1)))


@gluon.jit
def _fold_part(
    m, mi, s, i, lo, c0, c1, shift, ARGMAX: gl.constexpr, BM: gl.constexpr, N: gl.constexpr, quads: gl.constexpr
):
    """`_fold` of the columns lo .. lo + N - 1, which costs nothing where none of them takes part."""
    if (c0 < lo + N) & (c1 > lo):
        if (c0 <= lo) & (c1 >= lo + N):
            m, mi = _fold(m, mi, s, i, c0, c1, shift, False, ARGMAX, BM, N, quads)
        else:
            m, mi = _fold(m, mi, s, i, c0, c1, shift, True, ARGMAX, BM, N, quads)
    return m, mi


@gluon.jit
def _fold_segment(
    m, mi, s, i, c0, c1, shift, ARGMAX: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, quads: gl.constexpr
):
    """`_fold` of the part c0 .. c1 - 1 of a tile, by quarters, so that short documents pay for their own columns."""
    s0, s1 = _halves(s, BM, BN)
    i0, i1 = _halves(i, BM, BN)
    s00, s01 = _halves(s0, BM, BN // 2)
    i00, i01 = _halves(i0, BM, BN // 2)
    s10, s11 = _halves(s1, BM, BN // 2)
    i10, i11 = _halves(i1, BM, BN // 2)
    N: gl.constexpr = BN // 4
    m, mi = _fold_part(m, mi, s00, i00, 0, c0, c1, shift, ARGMAX, BM, N, quads)
    m, mi = _fold_part(m, mi, s01, i01, N, c0, c1, shift, ARGMAX, BM, N, quads)
    m, mi = _fold_part(m, mi, s10, i10, 2 * N, c0, c1, shift, ARGMAX, BM, N, quads)
    m, mi = _fold_part(m, mi, s11, i11, 3 * N, c0, c1, shift, ARGMAX, BM, N, quads)
    return m, mi


@gluon.jit
def _held_back(x):
    """x, of which the compiler knows nothing: what is made of it stays where it is written.

    Otherwise the maxima of all quarters of a tile are made before the loop over the documents that end in it, also
    where no other begins there. To be removed when test_hopper_kernels stays within its spills without it.
    """
    return gl.inline_asm_elementwise("", "=f,0", [x], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def _span(t, w, doc, first):
    """First row and end row of document `first + doc`; a length outside [0, d_max] is clamped."""
    index = first + doc
    if t.HAS_STARTS:
        start = gl.load(w.d_start_ptr + index).to(gl.int32)
    else:
        start = index * w.d_pitch
    if t.HAS_LENGTHS:
        length = gl.maximum(gl.minimum(gl.load(w.d_len_ptr + index), w.d_max), 0)
    else:
        length = w.d_max
    return start, start + length


@gluon.jit
def _around(d_start_ptr, K, target, guess, probe, PROBES: gl.constexpr):
    """First step of a search for the first of the K sorted starts that is not below `target`: a look around `guess`.

    Returns: the first place and the number of places after it that are left to search, as `_narrowed` does.
    """
    base = gl.maximum(gl.minimum(guess - PROBES // 2, K - PROBES), 0)
    seen = gl.minimum(K - base, PROBES)
    start = gl.load(d_start_ptr + base + probe, mask=probe < seen, other=0).to(gl.int32)
    below = gl.sum(((probe < seen) & (start < target)).to(gl.int32), axis=0)
    before = gl.where(below == 0, base, 0)
    return base + below - before, before + gl.where(below == seen, K - base - seen, 0)


@gluon.jit
def _narrowed(d_start_ptr, base, left, target, probe, PROBES: gl.constexpr):
    """One step of a search for the first of the sorted starts base .. base + left - 1 that is not below `target`."""
    step = (left + PROBES - 1) // PROBES
    inside = probe * step < left
    start = gl.load(d_start_ptr + base + probe * step, mask=inside, other=0).to(gl.int32)
    below = gl.sum((inside & (start < target)).to(gl.int32), axis=0)
    passed = gl.where(below > 0, (below - 1) * step + 1, 0)
    return base + passed, gl.where(below > 0, gl.minimum(below * step, left) - passed, 0)


@gluon.jit
def _lower_bounds(d_start_ptr, K, lower, lower_guess, upper, upper_guess, THREADS: gl.constexpr):
    """How many of the K sorted starts are below `lower`, and below `upper`.

    Two searches side by side, of 64 probes a step or 32 a warp, if that is more: each step waits for memory, which a
    short call feels. The first looks where the place is if all documents are equally long; of a thousand ordinary ones
    it finds most.
    """
    EACH: gl.constexpr = 2 if THREADS == 1 else 1
    PROBES: gl.constexpr = 32 * EACH * THREADS
    wide: gl.constexpr = gl.BlockedLayout([EACH], [32], [THREADS], [0])
    probe = gl.arange(0, PROBES, layout=wide)
    lo, lo_left = _around(d_start_ptr, K, lower, lower_guess, probe, PROBES)
    hi, hi_left = _around(d_start_ptr, K, upper, upper_guess, probe, PROBES)
    while gl.maximum(lo_left, hi_left) > 0:
        lo, lo_left = _narrowed(d_start_ptr, lo, lo_left, lower, probe, PROBES)
        hi, hi_left = _narrowed(d_start_ptr, hi, hi_left, upper, probe, PROBES)
    return lo, hi


@gluon.jit
def _chunk(t, w, chunk, THREADS: gl.constexpr):
    """Query group of a chunk, the document its documents are counted from, and lo .. hi - 1, the documents."""
    group = chunk % w.n_groups
    block = chunk // w.n_groups
    if t.SHARED:
        first = group * 0
    else:
        first = (group * t.UNITS // w.parts) * w.K
    # blocks of equal counts
    lo = (block.to(gl.int64) * w.K // w.n_blocks).to(gl.int32)
    hi = ((block + 1).to(gl.int64) * w.K // w.n_blocks).to(gl.int32)
    if t.BALANCED:  # of equal rows
        lower = (block.to(gl.int64) * w.d_total // w.n_blocks).to(gl.int32)
        upper = ((block + 1).to(gl.int64) * w.d_total // w.n_blocks).to(gl.int32)
        lo, hi = _lower_bounds(w.d_start_ptr, w.K, lower, lo, upper, hi, THREADS)
        hi = gl.where(block + 1 == w.n_blocks, w.K, hi)
    return group, first, lo, hi


@gluon.jit
def _multiply(t, ring, acc, it, loads, kc, k, W: gl.constexpr):
    """Issue the products of stage `kc` of a tile onto `acc`, which they overwrite where k = 0."""
    stage = it % t.ST
    mbarrier.wait(ring.full.index(stage), (it // t.ST) & 1)
    for ks in gl.static_range(t.KS):
        if t.QST > 0:
            q_at = (((loads - 1) % t.QST) * t.NC + W) * (t.KC * t.KS) + kc * t.KS + ks
        else:
            q_at = (stage * t.NC + W) * t.KS + ks
        acc = warpgroup_mma(
            ring.q_tiles.index(q_at), ring.d_tiles.index(stage * t.KS + ks).permute((1, 0)), acc,
            use_acc=True if ks > 0 else k > 0, is_async=True,
        )  # fmt: skip
    return acc


@gluon.jit
def _similarities(t, ring, started, it, loads, W: gl.constexpr):
    """Similarities [BM, BN] of the document tile whose first products were `started`, and the stages handed back.

    The tensor core truncates every time it adds to its accumulator. KI stages are added up there; runs of them are
    added by ordinary fp32 instructions, which round to nearest and keep wide embeddings within 1e-6.
    """
    if t.KC == 1:
        s = warpgroup_mma_wait(0, deps=(started,))
        mbarrier.arrive(ring.empty.index(it % t.ST), count=1)
        it += 1
    elif t.KI == t.KC:
        acc = started
        for k in range(t.KC):
            pending = _multiply(t, ring, acc, it, loads, k, k, W)
            # the stage before this one has been read when only this one's products are outstanding
            acc = warpgroup_mma_wait(t.KS, deps=(pending,))
            mbarrier.arrive(ring.empty.index((it + t.ST - 1) % t.ST), count=1, pred=k > 0)
            it += 1
        s = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
    else:
        RUNS: gl.constexpr = t.KC // t.KI
        TURNS: gl.constexpr = 2 if RUNS % 2 == 0 else 1  # accumulators: one is added while the other is multiplied
        s = started
        for pair in range(RUNS // TURNS):
            done = started
            for turn in gl.static_range(TURNS):
                kc = (pair * TURNS + turn) * t.KI
                pending = _multiply(t, ring, started, it, loads, kc, 0, W)
                if turn == 0:
                    acc = warpgroup_mma_wait(t.KS, deps=(pending,))
                else:  # as a stage, so a run: the one before has been multiplied
                    done, acc = warpgroup_mma_wait(t.KS, deps=(done, pending))
                    mbarrier.arrive(ring.empty.index((it + t.ST - 1) % t.ST), count=1)
                    s += done
                it += 1
                for k in range(1, t.KI):
                    pending = _multiply(t, ring, acc, it, loads, kc + k, 1, W)
                    acc = warpgroup_mma_wait(t.KS, deps=(pending,))
                    mbarrier.arrive(ring.empty.index((it + t.ST - 1) % t.ST), count=1)
                    it += 1
                done = acc
            s += warpgroup_mma_wait(0, deps=(done,))
            mbarrier.arrive(ring.empty.index((it - 1) % t.ST), count=1)
    return s, it


@gluon.jit
def _query_rows(t, w, group, r, W: gl.constexpr):
    """Unit, query and token of the rows r of consumer W, and which of them hold a token; no query is query Nq."""
    unit = group * t.UNITS + W * (t.BM // UNIT) + r // UNIT
    slot = (r % UNIT) // t.G
    n = gl.where(slot < t.USED, (unit // w.parts) * t.USED + slot, w.Nq)
    token = (unit % w.parts) * UNIT + r % t.G
    if t.HAS_Q_LENGTHS:
        q_len = gl.minimum(gl.load(w.q_len_ptr + n, mask=n < w.Nq, other=0), w.q_max)
    else:
        q_len = w.q_max
    return unit, n, token, (n < w.Nq) & (token < q_len)


@gluon.jit
def _store(t, kept, doc, place, out_at):
    """Add up the maxima kept [BM] of rows, zero where there is no query token, and store the sums of document `doc`."""
    sums = gl.sum(gl.reshape(kept, [t.BM // t.G, t.G]), axis=1)
    if t.SUM > UNIT and t.SUM <= t.BM:
        sums = gl.sum(gl.reshape(sums, [t.BM // t.SUM, t.SUM // UNIT]), axis=1)
    if t.SUM > t.BM:  # the other half comes from elsewhere: 0 + a + b is the same in either order
        gl.atomic_add(out_at + doc, sums, mask=place >= 0, sem="relaxed")
    else:
        gl.store(out_at + doc, sums, mask=place >= 0)


@gluon.jit
def _winners(m, mi, BM: gl.constexpr, half: gl.constexpr, own: gl.constexpr):
    """Which index in mi [BM, 4] has a row's greatest value of m, the lowest on a tie: [BM], laid out as `own` reduced.

    The four lanes of a quad hold four places of the same rows. Each hands half of its rows to a lane that hands it the
    other half, twice (once where BM = 64), so that a row is compared, and stored, by one lane (two) instead of four.
    """
    m = gl.reshape(gl.convert_layout(m, half), [BM, 2, 2])
    mi = gl.reshape(gl.convert_layout(mi, half), [BM, 2, 2])
    m, mi = gl.reduce((m, mi), 1, _lower_wins)
    _, won = gl.reduce((gl.convert_layout(m, own), gl.convert_layout(mi, own)), 1, _lower_wins)
    return won


@gluon.jit
def _close(t, w, m, mi, doc, holds, rows, row: gl.constexpr, half: gl.constexpr, own: gl.constexpr):
    """Store what the maxima m [BM, 4] (and their indices mi) of document `doc` come to; doc = -1 is none.

    `holds`: the document has tokens. `rows`: which rows are query tokens, and the place and address of their sums; then
    query, token and validity of the rows as `own` has them, for the argmax.
    """
    if doc >= 0:
        valid, place, out_at, n, token, wanted = rows
        if t.ARGMAX:
            won = gl.where(wanted & holds, _winners(m, mi, t.BM, half, own), -1)
            won_at = (n.to(gl.int64) * w.K + doc) * w.q_max + token
            gl.store(w.arg_ptr + won_at, won.to(w.arg_ptr.dtype.element_ty), mask=(n < w.Nq) & (token < w.q_max))
        top = gl.convert_layout(gl.reduce(m, 1, _max_nan), row)
        _store(t, gl.where(valid, top, 0.0), doc, place, out_at)


@gluon.jit
def _consume(t, w, ring, W: gl.constexpr):
    """Consumer warpgroup W: rows W * BM .. of every query group of this program against its documents.

    The sum over a query's rows crosses warps. That of the last document to end in a tile is due: it is made while the
    tensor core multiplies the next tile.
    """
    depth: gl.constexpr = 256 // ring.q_tiles.dtype.primitive_bitwidth  # columns of one matrix instruction
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, t.BN, depth]
    )
    row: gl.constexpr = gl.SliceLayout(1, layout)
    # What is left of the accumulator when each thread has reduced its columns: a row, and the lane's place among four.
    quads: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[8, 0], [64, 0]] if t.BM == 128 else [[8, 0]], lane_bases=[[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[t.BM, 4],
    )  # fmt: skip
    # The two steps of `_winners`: a bit of the row moves from registers to lanes, and one of the place the other way.
    half: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[8, 0], [0, 2]] if t.BM == 128 else [[0, 2]],
        lane_bases=[[0, 1], [64, 0] if t.BM == 128 else [8, 0], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[t.BM, 4],
    )  # fmt: skip
    own: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 1]] if t.BM == 128 else [],
        lane_bases=[[8, 0] if t.BM == 128 else [0, 1], [64, 0] if t.BM == 128 else [8, 0], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]], block_bases=[], shape=[t.BM, 2],
    )  # fmt: skip
    RUN: gl.constexpr = t.SUM if t.SUM > UNIT else UNIT
    WHOLE: gl.constexpr = t.SUM > UNIT and t.SUM <= t.BM  # a sum of several units that this consumer has all of
    zero = gl.zeros([t.BM, t.BN], gl.float32, layout)
    column = gl.arange(0, t.BN, layout=gl.SliceLayout(0, layout))[None, :] + gl.zeros([t.BM, t.BN], gl.int32, layout)
    r = gl.arange(0, t.BM, layout=row)
    r_own = gl.arange(0, t.BM, layout=gl.SliceLayout(1, own))
    it = 0
    loads = 0
    last = -1
    for chunk in range(gl.program_id(0), w.n_chunks, gl.num_programs(0)):
        group, first, lo, hi = _chunk(t, w, chunk, 4)
        if group != last:
            if t.QST > 0:
                if last >= 0:
                    mbarrier.arrive(ring.q_empty.index((loads - 1) % t.QST), count=1)
                mbarrier.wait(ring.q_full.index(loads % t.QST), (loads // t.QST) & 1)
            loads += 1
            last = group
        # -- which query and token every row is
        unit, n, _token, valid = _query_rows(t, w, group, r, W)
        # the same rows as the lanes of `own` hold them, for the argmax; without it the compiler drops them
        _unit, n_own, token_own, valid_own = _query_rows(t, w, group, r_own, W)
        # the place of a sum, reduced as the maxima are, so that it lies where they come to lie; -1 for no query
        place = gl.where(n < w.Nq, n * ((w.parts * UNIT + RUN - 1) // RUN) + (unit % w.parts) * UNIT // RUN, -1)
        place = gl.max(gl.reshape(place, [t.BM // t.G, t.G]), axis=1)
        if WHOLE:
            place = gl.max(gl.reshape(place, [t.BM // t.SUM, t.SUM // UNIT]), axis=1)
        rows = (valid, place, w.out_ptr + place.to(gl.int64) * w.K, n_own, token_own, valid_own)
        doc = lo
        start = 0
        end = 0
        if lo < hi:
            start, end = _span(t, w, lo, first)
        tile = start
        m = gl.full([t.BM, 4], float("-inf"), gl.float32, quads)
        mi = gl.full([t.BM, 4], 0, gl.int32, quads)
        due = m
        due_i = mi
        due_doc = -1
        due_holds = False
        while doc < hi:
            started = ring.start(t, zero, it, loads, W)
            _close(t, w, due, due_i, due_doc, due_holds, rows, row, half, own)
            due_doc = -1
            s, it = ring.similarities(t, started, it, loads, W)
            # -- reduce: the document that the tile begins in, then those that begin inside the tile
            c1 = end - tile
            if c1 >= t.BN:
                m, mi = _fold(m, mi, s, column, 0, t.BN, tile - start, False, t.ARGMAX, t.BM, t.BN, quads)
            else:
                m, mi = _fold_segment(m, mi, s, column, 0, c1, tile - start, t.ARGMAX, t.BM, t.BN, quads)
            following = tile + t.BN
            ended = c1 <= t.BN
            while ended:
                _close(t, w, due, due_i, due_doc, due_holds, rows, row, half, own)
                due = m
                due_i = mi
                due_doc = doc
                due_holds = end > start
                m = gl.full([t.BM, 4], float("-inf"), gl.float32, quads)
                mi = gl.full([t.BM, 4], 0, gl.int32, quads)
                doc += 1
                ended = False
                if doc < hi:
                    start, end = _span(t, w, doc, first)
                    c0 = start - tile
                    if (c0 >= 0) & (c0 < t.BN):
                        here = _held_back(s)
                        m, mi = _fold_segment(m, mi, here, column, c0, end - tile, -c0, t.ARGMAX, t.BM, t.BN, quads)
                        ended = end - tile <= t.BN
                    else:
                        following = start
            tile = following
        _close(t, w, due, due_i, due_doc, due_holds, rows, row, half, own)


@gluon.jit
def _load_query(t, w, ring, bar, group, at, column, KT: gl.constexpr):
    """Columns `column` .. of the group's query rows: those of consumer c into tile `at + c * KT`."""
    for c in gl.static_range(t.NC):
        for u in gl.static_range(t.BM // UNIT):
            unit = group * t.UNITS + c * (t.BM // UNIT) + u
            for slot in gl.static_range(t.USED):
                n = (unit // w.parts) * t.USED + slot
                known = gl.minimum(n, w.Nq - 1)
                if t.HAS_Q_STARTS:
                    start = gl.load(w.q_start_ptr + known).to(gl.int32)
                else:
                    start = known * w.q_pitch
                # rows past the tensor read as zero, and still count as bytes that arrive
                line = gl.where(n < w.Nq, start + (unit % w.parts) * UNIT, w.q_rows)
                box = (at + c * KT) * (t.BM // t.G) + u * (UNIT // t.G) + slot
                tma.async_copy_global_to_shared(w.q_desc, [line, column], bar, ring.q_boxes.index(box))


@gluon.jit
def _next_tile(t, w, tile, doc, hi, first, start, end):
    """The walk of `_consume` over the tile that begins at row `tile` inside document `doc`, rows start .. end - 1.

    Returns: rows of the tile that hold wanted tokens, where the next tile begins, and the document that it begins in.
    """
    wanted = gl.minimum(end - tile, t.BN)
    following = tile + t.BN
    ended = end <= following
    while ended:
        doc += 1
        ended = False
        if doc < hi:
            start, end = _span(t, w, doc, first)
            if (start >= tile) & (start < tile + t.BN):
                wanted = gl.maximum(wanted, gl.minimum(end - tile, t.BN))
                ended = end <= tile + t.BN
            else:
                following = start
    return wanted, following, doc, start, end


@gluon.jit
def _load(t, w, ring):
    """The loader warp: query groups and document tiles of this program, in the order in which consumers want them."""
    KT: gl.constexpr = t.KC * t.KS
    BOXES: gl.constexpr = t.UNITS * t.USED  # copies that bring BK columns of a query group
    PIECES: gl.constexpr = t.BN // t.BR  # copies that bring BK columns of a document tile
    it = 0
    loads = 0
    last = -1
    for chunk in range(gl.program_id(0), w.n_chunks, gl.num_programs(0)):
        group, first, lo, hi = _chunk(t, w, chunk, 1)
        if group != last:
            if t.QST > 0:
                q_stage = loads % t.QST
                bar = ring.q_full.index(q_stage)
                mbarrier.wait(ring.q_empty.index(q_stage), ((loads // t.QST) & 1) ^ 1)
                mbarrier.expect(bar, KT * BOXES * w.q_desc.block_type.nbytes)
                for k in range(KT):
                    _load_query(t, w, ring, bar, group, q_stage * t.NC * KT + k, k * t.BK, KT)
            loads += 1
            last = group
        doc = lo
        start = 0
        end = 0
        if lo < hi:
            start, end = _span(t, w, lo, first)
        tile = start
        while doc < hi:
            wanted, following, doc, start, end = _next_tile(t, w, tile, doc, hi, first, start, end)
            # -- copy
            for kc in range(t.KC):
                stage = it % t.ST
                bar = ring.full.index(stage)
                mbarrier.wait(ring.empty.index(stage), ((it // t.ST) & 1) ^ 1)
                if t.QST == 0:
                    mbarrier.expect(bar, t.KS * BOXES * w.q_desc.block_type.nbytes)
                    for ks in gl.static_range(t.KS):
                        _load_query(t, w, ring, bar, group, stage * t.NC * t.KS + ks, (kc * t.KS + ks) * t.BK, t.KS)
                for piece in gl.static_range(PIECES):
                    here = (piece == 0) | (piece * t.BR < wanted)
                    if here:
                        mbarrier.expect(bar, t.KS * w.d_desc.block_type.nbytes)
                        for ks in gl.static_range(t.KS):
                            tma.async_copy_global_to_shared(
                                w.d_desc, [tile + piece * t.BR, (kc * t.KS + ks) * t.BK], bar,
                                ring.d_boxes.index((stage * t.KS + ks) * PIECES + piece),
                            )  # fmt: skip
                    else:  # what the piece held before stays there: its columns are masked
                        mbarrier.arrive(bar, count=1)
                it += 1
            tile = following


@gluon.jit
def _consume0(t, w, ring):
    _consume(t, w, ring, 0)


@gluon.jit
def _consume1(t, w, ring):
    _consume(t, w, ring, 1)


@gluon.jit
def _consume2(t, w, ring):
    _consume(t, w, ring, 2)


@gluon.jit
def _consume3(t, w, ring):
    _consume(t, w, ring, 3)


_RUNTIME = (
    "out_ptr", "arg_ptr", "q_start_ptr", "q_len_ptr", "d_start_ptr", "d_len_ptr", "n_chunks", "n_groups", "n_blocks",
    "Nq", "K", "q_pitch", "q_max", "q_rows", "d_pitch", "d_max", "d_total", "parts",
)  # fmt: skip


# Nothing is specialised on a run-time value, so new lengths and counts never compile anything.
@gluon.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_RUNTIME)
def maxsim_forward(
    q_desc, d_desc, out_ptr, arg_ptr, q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, n_chunks, n_groups, n_blocks, Nq,
    K, q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts, BM: gl.constexpr, BN: gl.constexpr, BR: gl.constexpr,
    BK: gl.constexpr, KS: gl.constexpr, KC: gl.constexpr, KI: gl.constexpr, ST: gl.constexpr, QST: gl.constexpr,
    NC: gl.constexpr, G: gl.constexpr, SUM: gl.constexpr, SHARED: gl.constexpr, HAS_Q_STARTS: gl.constexpr,
    HAS_Q_LENGTHS: gl.constexpr, HAS_STARTS: gl.constexpr, HAS_LENGTHS: gl.constexpr, BALANCED: gl.constexpr,
    ARGMAX: gl.constexpr, R1: gl.constexpr, R2: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Sums of row maxima: out[(n * sums + i) * K + k] for query n, its i-th run of SUM rows and document k, fp32.

    Where SUM > BM, out holds zeros before.

    q_desc [q_rows, d] in boxes [G, BK]; d_desc [R, d] in boxes [BR, BK]; arg_ptr int16 or int32 [Nq, K, q_max].
    SHARED: all queries meet documents 0 .. K - 1; otherwise query n meets n * K .. n * K + K - 1.
    KS boxes of BK columns make a stage, KC stages a document tile, KI of them are added up in the tensor core.
    QST > 0: query groups resident in shared memory; QST = 0: their rows travel through the ring with the document's.
    """
    t = Tile(BM, BN, BR, BK, KS, KC, KI, ST, QST, NC, G, SUM, SHARED, HAS_Q_STARTS, HAS_Q_LENGTHS, HAS_STARTS,
             HAS_LENGTHS, BALANCED, ARGMAX)  # fmt: skip
    w = Work(q_desc, d_desc, out_ptr, arg_ptr, q_start_ptr, q_len_ptr, d_start_ptr, d_len_ptr, n_chunks, n_groups,
             n_blocks, Nq, K, q_pitch, q_max, q_rows, d_pitch, d_max, d_total, parts)  # fmt: skip
    # `add_sums` may be scheduled from now on: it waits for this grid before it reads, as does any kernel of others that
    # asks to be scheduled early
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], gl.int32, False, 1)
    Q_TILES: gl.constexpr = (QST * KC if QST > 0 else ST) * KS * NC
    Q_STAGES: gl.constexpr = QST if QST > 0 else 1
    q_boxes = gl.allocate_shared_memory(q_desc.dtype, [Q_TILES * (BM // G), G, BK], q_desc.layout)
    d_boxes = gl.allocate_shared_memory(d_desc.dtype, [ST * KS * (BN // BR), BR, BK], d_desc.layout)
    ring = Ring(
        q_boxes, q_boxes._reinterpret(q_desc.dtype, [Q_TILES, BM, BK], q_desc.layout),
        d_boxes, d_boxes._reinterpret(d_desc.dtype, [ST * KS, BN, BK], d_desc.layout),
        gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout()),
    )  # fmt: skip
    for i in gl.static_range(ST):
        mbarrier.init(ring.full.index(i), count=BN // BR + (1 if QST == 0 else 0))
        mbarrier.init(ring.empty.index(i), count=NC)
    for i in gl.static_range(Q_STAGES):
        mbarrier.init(ring.q_full.index(i), count=1)
        mbarrier.init(ring.q_empty.index(i), count=NC)
    fence_async_shared()
    # compile-time values reach a specialised function inside an aggregate, or written out in the argument tuple
    if NC == 4:
        gl.warp_specialize(
            [(_consume0, (t, w, ring)), (_consume1, (t, w, ring)), (_consume2, (t, w, ring)),
             (_consume3, (t, w, ring)), (_load, (t, w, ring))], [4, 4, 4, 1], [R1, R1, R1, R2]
        )  # fmt: skip
    elif NC == 2:
        gl.warp_specialize(
            [(_consume0, (t, w, ring)), (_consume1, (t, w, ring)), (_load, (t, w, ring))], [4, 1], [R1, R2]
        )
    else:
        gl.warp_specialize([(_consume0, (t, w, ring)), (_load, (t, w, ring))], [1], [R2])


_SUM_RUNTIME = ("part_ptr", "out_ptr", "Nq", "K", "sums")


@gluon.jit(do_not_specialize=_SUM_RUNTIME, do_not_specialize_on_alignment=_SUM_RUNTIME)
def add_sums(part_ptr, out_ptr, Nq, K, sums, PAIRS: gl.constexpr, num_warps: gl.constexpr):
    """out [Nq, K] from partial sums [Nq, sums, K], fp32, in one order: sums of 64 rows by pairs, then in turn."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    # along x alone, which takes 2^31 - 1 programs: y takes 65 535, fewer than some have pairs
    blocks = (K + 127) // 128
    n = gl.program_id(0) // blocks
    k = gl.program_id(0) % blocks * 128 + gl.arange(0, 128, layout=flat)
    inside = k < K
    base = part_ptr + n.to(gl.int64) * sums * K + k
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], gl.int32, False, 1)
    total = gl.zeros([128], gl.float32, flat)
    for i in range(0, sums, 2 if PAIRS else 1):
        run = gl.load(base + i.to(gl.int64) * K, mask=inside, other=0.0)
        if PAIRS:
            run += gl.load(base + (i + 1).to(gl.int64) * K, mask=inside & (i + 1 < sums), other=0.0)
        total += run
    gl.store(out_ptr + n.to(gl.int64) * K + k, total, mask=inside)
