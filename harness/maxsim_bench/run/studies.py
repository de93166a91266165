"""What a cell is asked beside its time: an axis `variant.study` names one of these, and its figures join the row.

Room: `run`. May import: declare, record, measure, backends. A study is one function, found by its name in `STUDIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from maxsim_bench.backends.base import Backend
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import VARIANT, axis_of
from maxsim_bench.measure.errors import compare
from maxsim_bench.measure.graphs import CaptureError, capture
from maxsim_bench.run.check import results
from maxsim_bench.run.counters import dram_bytes
from maxsim_bench.run.first_call import first_call_seconds
from maxsim_bench.run.work import work_of

if TYPE_CHECKING:
    import torch

REPEATS = 20

Study = Callable[[Cell, Backend, Callable[[], object], str], dict[str, Any]]


class StudyError(ValueError):
    """A cell asks for a study that there is not."""


def studied(cell: Cell, backend: Backend, call: Callable[[], object], device: str) -> dict[str, Any]:
    """Figures of the study that the cell names, none if it names none.

    Args:
        call: the prepared callable; it has run before, and its results were right.

    Raises:
        StudyError: for a name that is no study.
    """
    name = axis_of(cell, VARIANT + "study")
    if name is None:
        return {}
    if name not in STUDIES:
        raise StudyError(f"variant study={name}: not one of {', '.join(STUDIES)}")
    return STUDIES[name](cell, backend, call, device)


def repeat(cell: Cell, backend: Backend, call: Callable[[], object], device: str) -> dict[str, Any]:
    """Is the answer the same every time, bit by bit, called directly and replayed as a CUDA graph.

    `calls` and `distinct_results` (1: deterministic); on a GPU `replay_max_abs_err` of a replay against a direct call,
    exactly 0 where both compute the same, or in `replay` why the call cannot be captured.
    """
    distinct: list[list[torch.Tensor]] = []
    for _ in range(REPEATS):
        found = [t.clone() for t in results(call())]
        if not any(_same_bits(found, other) for other in distinct):
            distinct.append(found)
    figures: dict[str, Any] = {"calls": REPEATS, "distinct_results": len(distinct)}
    if device == "cuda":
        try:
            replayed = results(capture([call])[0]())
        except CaptureError as error:
            return figures | {"replay": str(error)}
        pairs = zip(replayed, distinct[0], strict=True)
        figures["replay_max_abs_err"] = max(compare(a, b).max_abs for a, b in pairs)
    return figures


def _same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    import torch

    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


def traffic(cell: Cell, backend: Backend, call: Callable[[], object], device: str) -> dict[str, Any]:
    """Bytes between the card's memory and its caches in one call.

    `hbm_gb_computed` is what the paper prints: the inputs read and the scores written once, and the similarity tensor
    written and read once by who materialises it (a backend says so by `similarity_bytes(cell)`, bytes an element).
    `hbm_gb_counted` is what hardware counters saw; without them it is absent and `hbm_source` says why.
    """
    element = getattr(backend, "similarity_bytes", lambda cell: 0)(cell)
    work = work_of(cell)
    tensor = work.pairs * (cell.Lq or 0) * (cell.Ld or 0) * element
    figures: dict[str, Any] = {"hbm_gb_computed": (work.bytes_min + 2 * tensor) / 1e9}
    counted = dram_bytes(cell, backend.name, device)
    if isinstance(counted, str):
        return figures | {"hbm_source": f"computed: {counted}"}
    read, written = counted
    return figures | {
        "hbm_gb_counted": (read + written) / 1e9, "hbm_read_gb": read / 1e9, "hbm_written_gb": written / 1e9,
        "hbm_source": "counted: ncu",
    }  # fmt: skip


def first_call(cell: Cell, backend: Backend, call: Callable[[], object], device: str) -> dict[str, Any]:
    """`first_call_s`: seconds of the first call of a fresh process, see `run.first_call`."""
    return {"first_call_s": round(first_call_seconds(cell, backend.name, device), 3)}


STUDIES: dict[str, Study] = {"repeat": repeat, "traffic": traffic, "first_call": first_call}
