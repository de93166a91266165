"""Bytes that hardware counters saw in one call, and whether they can be those of the call that was timed.

Room: `report`. May import: record, declare.
"""

from __future__ import annotations

import json
import math

from maxsim_bench.declare.estimate import known_gpus
from maxsim_bench.record.row import Row

COUNTED_GB = "hbm_gb_counted"  # of a row's extra: from and to the card's memory, 10^9 bytes


def traffic_gb(row: Row) -> float | None:
    """What the counters of the card's memory saw in one call, in 10^9 bytes; None where none were read.

    A call reads its inputs, so what is not positive and finite was written by no counter and is none.
    """
    value = json.loads(row.extra or "{}").get(COUNTED_GB)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        return None
    return float(value)


def traffic_gbs(row: Row) -> float | None:
    """Counted bytes over the median time of calls that were not counted, in 10^9 bytes a second."""
    counted = traffic_gb(row)
    return counted / (row.latency_ms * 1e-3) if counted is not None and row.latency_ms else None


def refuted(row: Row) -> str | None:
    """Why what was counted cannot be the traffic of the call that was timed, in words; None where it can, or none was.

    Counting takes a process of its own, in which a backend that tunes its launches may choose another one: more bytes
    than the card's memory moves, by its data sheet, in the time that was measured. And every call reads its inputs,
    for the counted one begins with empty caches; scores it may leave in them.
    """
    gigabytes, rate, card = traffic_gb(row), traffic_gbs(row), known_gpus().get(row.cell.gpu)
    if rate is not None and card is not None and rate > card.bandwidth_gbs:
        return (
            "more bytes than the card's memory moves in the time of the call by its data sheet, so another launch was "
            "counted than timed"
        )
    if gigabytes is not None and gigabytes * 1e9 < (row.input_bytes or 0):
        return "fewer bytes than the inputs of the call have, so not all of it was counted"
    return None
