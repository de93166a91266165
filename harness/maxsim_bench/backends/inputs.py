"""The tensors of a cell, drawn once from its seed: the same ones for every backend.

Room: `backends`. May import: declare, `maxsim`. Random unit vectors, block by block, so that drawing a corpus costs no
more memory than the corpus.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.lengths import draw_lengths
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of

if TYPE_CHECKING:
    import torch

_BLOCK_ELEMENTS = 1 << 26  # 256 MiB of fp32 scratch while normalising


class InputError(ValueError):
    """A cell whose inputs cannot be made."""


def make_inputs(cell: Cell, device: str, set_index: int = 0) -> Inputs:
    """Inputs of a `forward` or `training_step` cell.

    Args:
        cell: with Nq, B, Lq, Ld, d and dtype set.
        device: "cuda" or "cpu".
        set_index: a timed block rotates over several sets; set i is drawn from seed and i.

    Returns:
        `Inputs` of L2-normalised standard normal tokens in the cell's dtype. Masked documents carry their lengths and
        hold large finite garbage in the padding, so that a backend that reads it shows; so do queries under variant
        `query_lengths=half`, whose lengths are uniform in Lq // 2 .. Lq. Under variant `reference=unrounded` the fp32
        values before rounding are kept as `exact`.

    Raises:
        InputError: for an axis that is missing or a source of inputs that is not there.
    """
    import torch

    _expect_axes(cell)
    if cell.inputs not in (None, "random"):
        raise InputError(f"inputs = {cell.inputs!r}: only 'random' unit vectors can be drawn here")
    assert cell.Nq
    assert cell.B
    assert cell.Lq
    assert cell.Ld
    assert cell.d
    assert cell.dtype
    if _keeps_exact(cell):
        drawn = make_inputs(
            cell.model_copy(update={"dtype": "fp32", "variant": _without_reference(cell)}), device, set_index
        )
        dtype = _dtype(cell.dtype)
        return replace(drawn, Q=drawn.Q.to(dtype), D=drawn.D.to(dtype), exact=(drawn.Q, drawn.D))
    dtype = _dtype(cell.dtype)
    generator = torch.Generator(device=device)
    generator.manual_seed(int(np.random.SeedSequence([cell.seed, set_index]).generate_state(1)[0]))
    Q = unit_vectors((cell.Nq, cell.Lq, cell.d), dtype, device, generator)
    q_lengths = _query_lengths(cell, Q, set_index)
    documents = _documents(cell)
    if cell.layout in (None, "dense"):
        shape = (cell.Nq, cell.B) if cell.pairing == "candidates" else (documents,)
        D = unit_vectors((*shape, cell.Ld, cell.d), dtype, device, generator)
        return Inputs(Q=Q, D=D, q_lengths=q_lengths)
    lengths = document_lengths(cell, documents, set_index)
    d_lengths = torch.from_numpy(lengths.astype(np.int32)).to(device)
    if cell.layout == "packed":
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        D = unit_vectors((int(offsets[-1]), cell.d), dtype, device, generator)
        offsets_there = torch.from_numpy(offsets).to(device)
        return Inputs(Q=Q, D=D, q_lengths=q_lengths, d_lengths=d_lengths, cu_seqlens=offsets_there)
    D = unit_vectors((documents, cell.Ld, cell.d), dtype, device, generator)
    D.masked_fill_((torch.arange(cell.Ld, device=device) >= d_lengths[:, None])[..., None], 9.0)
    if cell.pairing == "candidates":
        D, d_lengths = D.unflatten(0, (cell.Nq, cell.B)), d_lengths.view(cell.Nq, cell.B)
    return Inputs(Q=Q, D=D, q_lengths=q_lengths, d_lengths=d_lengths)


def drawn_bytes(cell: Cell, set_index: int = 0) -> int:
    """Bytes of the embeddings that `make_inputs` draws for a set, to be asked for before they are.

    Exact, where `declare.estimate.input_bytes` bounds packed documents by Ld: their lengths are drawn. Beside them are
    lengths, offsets and the scratch of one block.

    Raises:
        InputError: for an axis that is missing.
    """
    _expect_axes(cell)
    assert cell.Nq
    assert cell.Lq
    assert cell.Ld
    assert cell.d
    assert cell.dtype
    documents = _documents(cell)
    packed = cell.layout == "packed"
    rows = int(document_lengths(cell, documents, set_index).sum(dtype=np.int64)) if packed else documents * cell.Ld
    size = _dtype(cell.dtype).itemsize + (_dtype("fp32").itemsize if _keeps_exact(cell) else 0)
    return size * (cell.Nq * cell.Lq + rows) * cell.d


def document_lengths(cell: Cell, count: int, set_index: int) -> np.ndarray:
    """[count] int32 lengths of the documents of a set, by default uniform in 1..Ld."""
    assert cell.Ld
    name = cell.length_distribution or f"uniform:1:{cell.Ld}"
    return draw_lengths(name, count, seed=cell.seed + 7919 * set_index, Ld=cell.Ld)


def _expect_axes(cell: Cell) -> None:
    absent = [axis for axis in ("Nq", "B", "Lq", "Ld", "d", "dtype") if getattr(cell, axis) is None]
    if absent:
        raise InputError(f"cell {cell.hash()} of {cell.experiment}: {', '.join(absent)} not set, inputs need them")


def _documents(cell: Cell) -> int:
    """Documents that are drawn: B for each query of candidates, else the corpus."""
    assert cell.Nq
    assert cell.B
    return cell.Nq * cell.B if cell.pairing == "candidates" else corpus_of(cell)


def _keeps_exact(cell: Cell) -> bool:
    """Whether the fp32 values before rounding are kept beside the inputs."""
    return axis_of(cell, VARIANT + "reference") == "unrounded"


def corpus_of(cell: Cell) -> int:
    """Documents that the inputs of a cell hold: B, or the `corpus` of which a two-stage search keeps B."""
    assert cell.B
    return int(axis_of(cell, VARIANT + "corpus") or cell.B)


def _dtype(name: str) -> torch.dtype:
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[name]


def _without_reference(cell: Cell) -> str | None:
    pairs = [pair for pair in (cell.variant or "").split(";") if pair and not pair.startswith("reference=")]
    return ";".join(pairs) or None


def _query_lengths(cell: Cell, Q: torch.Tensor, set_index: int) -> torch.Tensor | None:
    """[Nq] int32 lengths of variant `query_lengths`, whose padding in Q is overwritten; None if all have Lq tokens."""
    import torch

    name = axis_of(cell, VARIANT + "query_lengths")
    if name is None:
        return None
    if name != "half":
        raise InputError(f"variant query_lengths={name}: only 'half' (uniform in Lq // 2 .. Lq) is known")
    Nq, Lq = Q.shape[:2]
    lengths = draw_lengths(f"uniform:{Lq // 2}:{Lq}", Nq, seed=cell.seed + 7919 * set_index + 1, Ld=Lq)
    q_lengths = torch.from_numpy(lengths.astype(np.int32)).to(Q.device)
    Q.masked_fill_((torch.arange(Lq, device=Q.device) >= q_lengths[:, None])[..., None], 9.0)
    return q_lengths


def unit_vectors(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> torch.Tensor:
    """L2-normalised standard normal vectors [..., d], drawn and normalised in fp32, rounded once to `dtype`."""
    import torch

    out = torch.empty(shape, dtype=dtype, device=device)
    rows = out.view(-1, shape[-1])
    step = max(1, _BLOCK_ELEMENTS // shape[-1])
    for start in range(0, rows.shape[0], step):
        block = rows[start : start + step]
        x = torch.randn(block.shape, dtype=torch.float32, device=device, generator=generator)
        block.copy_(torch.nn.functional.normalize(x, dim=-1, out=x))
    return out


def padded_documents(inputs: Inputs, Ld: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Documents as a padded tensor with lengths, which is what most implementations take.

    Args:
        inputs: any layout.
        Ld: pitch of the padded tensor.

    Returns:
        D [B, Ld, d] (or [Nq, B, Ld, d]) and lengths [B] int32, None where nothing is padded. Packed rows are copied.
    """
    import torch

    if inputs.cu_seqlens is None:
        return inputs.D, inputs.d_lengths
    assert inputs.d_lengths is not None
    D = torch.zeros((inputs.d_lengths.shape[0], Ld, inputs.D.shape[1]), dtype=inputs.D.dtype, device=inputs.D.device)
    valid = torch.arange(Ld, device=D.device) < inputs.d_lengths[:, None]
    D[valid] = inputs.D
    return D, inputs.d_lengths
