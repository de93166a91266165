"""What a process pays before its first answer, over an empty and over a populated kernel cache.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from maxsim_bench.declare.experiment import axis_of
from maxsim_bench.report import names
from maxsim_bench.report.elements import element
from maxsim_bench.report.goals import metric_of
from maxsim_bench.report.load import Results
from maxsim_bench.report.tables import CELL, Column, Table


@element
def first_calls(results: Results) -> Iterator[Table]:
    """Every row of cold_start: seconds to the first answer of a process, beside the call that is warm."""
    chosen = results.experiment("cold_start")
    lines = []
    for row in chosen.rows:
        seconds = metric_of(row, "extra.first_call_s")
        if row.status == "ok" and seconds is not None:
            lines.append(
                {
                    "device": row.cell.gpu, "cache": axis_of(row.cell, "variant.cache"), "B": row.cell.B,
                    "Lq": row.cell.Lq, "Ld": row.cell.Ld, "backend": row.backend, "seconds": seconds,
                    "latency_ms": row.latency_ms, "cell_hash": row.cell.hash(),
                }
            )  # fmt: skip
    if not lines:
        return
    columns = [
        Column("device", "GPU", names.card, right=False),
        Column("cache", "kernel cache", right=False),
        Column("B", "B", names.count),
        Column("Lq", "Lq"),
        Column("Ld", "Ld"),
        Column("backend", "backend", names.backend, right=False),
        Column("seconds", "first call [s]"),
        Column("latency_ms", "warm call [ms]"),
        CELL,
    ]
    frame = pd.DataFrame(lines).sort_values(["device", "B", "Lq", "Ld", "backend", "cache"], kind="stable")
    yield Table(
        "cold_start/first_call", "The first call of a process", columns, frame.reset_index(drop=True),
        tuple(sorted(set(chosen.frame["source"]))),
        "By the host's clock, of a process that has its inputs and has scored nothing: what is compiled and tuned, or "
        "read from the kernel cache, and prepared; neither imports nor the start of the device. Warm: the median of "
        "calls after it.",
    )  # fmt: skip
