"""How much a cell asks for: operations and compulsory bytes. Pure functions of the cell and its lengths.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.encoders import encoder_flops
from maxsim_bench.declare.estimate import DTYPE_BYTES
from maxsim_bench.declare.experiment import VARIANT, axis_of

_CODE, _SCORE, _NUMBER = 1, 4, 8  # bytes of a quantised element, a score, a document number
# A training step multiplies three times: scores, then the winners' gradients to each side, which are sparse. Only the
# first is dense work; the gradients add 2 · d operations a winning pair and side.
_GRADIENT_SIDES = 2


@dataclass(frozen=True)
class Work:
    """One call of a cell.

    Attributes:
        flops: multiply-adds counted twice, over real tokens only; the maxima and sums are not counted.
        bytes_min: every input element read once and every result written once.
        pairs: query-document pairs scored.
        unit: matrix unit that serves the operands: "fp16", "bf16", "tf32", "fp32" or "int8".
        host_bytes: of `bytes_min`, those that have to cross from host memory to the device; 0 where nothing lies there.
    """

    flops: float
    bytes_min: float
    pairs: int
    unit: str
    host_bytes: float = 0.0


def work_of(cell: Cell, d_lengths: Sequence[int] | None = None) -> Work:
    """Work of a `forward`, `search` or `training_step` cell.

    Every query has Lq tokens. `forward` multiplies 2 · Lq · d for each query and each token of the documents it meets:
    2 · Nq · Lq · Σ Ld · d for pairing "all". `search` writes k scores and numbers a query instead of all scores.
    `training_step` adds the gradients of the winning tokens and writes both; a complete one also what its encoder
    multiplies, while of bytes only the embeddings' are counted. Documents of a quantised cell are one byte an element;
    scales are left out. What a backend makes of it is `work_served`.

    Args:
        cell: with Nq, B, Lq, Ld, d and dtype set.
        d_lengths: real tokens of every document there is (B; Nq · B for candidates); None means Ld each.
    """
    if axis_of(cell, VARIANT + "corpus") is not None:
        return _two_stages(cell, d_lengths)
    Nq, B, Lq, Ld, d = (_known(cell, axis) for axis in ("Nq", "B", "Lq", "Ld", "d"))
    documents = Nq * B if cell.pairing == "candidates" else B
    tokens = documents * Ld if d_lengths is None else sum(int(n) for n in d_lengths)
    meets = Nq if cell.pairing in (None, "all") else 1  # queries that each document meets
    pairs = documents * meets
    flops = 2.0 * Lq * d * tokens * meets
    element = DTYPE_BYTES[cell.dtype or "fp32"]
    query_bytes = Nq * Lq * d * element
    document_bytes = tokens * d * (element if cell.quantiser is None else _CODE)
    written = pairs * _SCORE if cell.k is None else Nq * cell.k * (_SCORE + _NUMBER)
    bytes_min = float(query_bytes + document_bytes + written)
    if cell.op == "training_step":
        flops += _GRADIENT_SIDES * 2.0 * pairs * Lq * d + encoder_flops(cell)
        bytes_min += query_bytes + document_bytes  # the gradients have the shape and dtype of the inputs
    return Work(flops, bytes_min, pairs, unit_of(cell))


def _two_stages(cell: Cell, d_lengths: Sequence[int] | None) -> Work:
    """Work of the stage that a two-stage search's cell times; candidates are taken to be as long as the corpus is.

    The first stage multiplies one vector with N; gathering reads and writes the candidates' tokens.
    """
    N, stage = int(axis_of(cell, VARIANT + "corpus")), axis_of(cell, VARIANT + "stage")
    plain = cell.model_copy(update={"variant": None})
    rerank = work_of(plain, None if d_lengths is None else list(d_lengths[: _known(cell, "B")]))
    d, element = _known(cell, "d"), DTYPE_BYTES[cell.dtype or "fp32"]
    first = replace(rerank, flops=2.0 * N * d, bytes_min=float(N * d * element))
    if stage == "stage1":
        return first
    if stage == "gather":
        return replace(rerank, flops=0.0, bytes_min=2 * rerank.bytes_min)
    if stage == "rerank":
        return rerank
    return replace(rerank, flops=rerank.flops + first.flops, bytes_min=rerank.bytes_min + first.bytes_min)


def work_served(
    cell: Cell, backend: Backend, d_lengths: Sequence[int] | None = None, *, from_host: bool = False
) -> Work:
    """The cell's work as this backend does it: a quantised one reads fewer bytes and multiplies on another unit.

    A backend may say so by `unit` (None: that of the cell's dtype) and `document_bytes(cell, tokens, documents)`; one
    that does a piece of the operator, by `piece_work(cell, tokens, documents)`: its operations and bytes.

    `from_host`: the documents lie in host memory, and a GPU scores. What the backend reads of them has to be copied,
    pinned or not: a buffer on the way changes how fast that goes, not how much there is. Offsets are left out.
    """
    work = work_of(cell, d_lengths)
    unit = getattr(backend, "unit", None)
    bytes_of = getattr(backend, "document_bytes", None)
    piece_of = getattr(backend, "piece_work", None)
    documents = _known(cell, "B") * (_known(cell, "Nq") if cell.pairing == "candidates" else 1)
    tokens = documents * _known(cell, "Ld") if d_lengths is None else sum(int(n) for n in d_lengths)
    if piece_of is not None:
        flops, bytes_min = piece_of(cell, tokens, documents)
        return replace(work, flops=flops, bytes_min=bytes_min)
    as_given = tokens * _known(cell, "d") * (DTYPE_BYTES[cell.dtype or "fp32"] if cell.quantiser is None else _CODE)
    held = as_given if bytes_of is None else bytes_of(cell, tokens, documents)
    if bytes_of is not None:
        # a quantiser is what documents went through: who leaves the query as given multiplies on the unit of its dtype
        unit = unit or unit_of(cell.model_copy(update={"quantiser": None}))
    return replace(
        work, bytes_min=work.bytes_min - as_given + held, unit=unit or work.unit, host_bytes=float(held * from_host)
    )


def unit_of(cell: Cell) -> str:
    """The matrix unit that a cell's operands ask for."""
    if cell.quantiser is not None:
        return "int8" if cell.quantiser.startswith("int8") else "fp8"
    if cell.dtype == "fp32":
        return "tf32" if cell.precision == "tf32" else "fp32"
    return cell.dtype or "fp32"


def _known(cell: Cell, axis: str) -> int:
    value = getattr(cell, axis)
    if value is None:
        raise ValueError(f"cell {cell.hash()} of {cell.experiment}: {axis} is not set, so its work is unknown")
    return int(value)
