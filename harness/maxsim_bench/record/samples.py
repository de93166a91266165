"""Raw samples beside a CSV: one gzip member of JSON an append.

Room: `record`. Imports nothing else of ours. Samples are what comparisons and bootstrap intervals are made of, so they
are kept as measured; rounding belongs to the report.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxsim_bench.record.files import StoreError, append_durably

_LONGEST = 300  # digits of a whole number that a float still holds


def samples_path(csv_path: Path) -> Path:
    """Where the raw samples of a CSV lie: `forward.csv` → `forward.samples.jsonl.gz`."""
    return csv_path.with_name(csv_path.stem + ".samples.jsonl.gz")


def append_samples(csv_path: Path, samples: Mapping[str, Any]) -> None:
    """Add row key → whatever JSON holds (times in ms, order). The caller holds the store's lock."""
    if not samples:
        return
    path = samples_path(csv_path)
    lines = "".join(json.dumps({"key": k, "samples": v}, separators=(",", ":")) + "\n" for k, v in samples.items())
    packer = zlib.compressobj(level=9, wbits=31)
    end = _members(path)[1] if path.exists() else 0
    append_durably(path, packer.compress(lines.encode("utf-8")) + packer.flush(), at=end)


def read_samples(csv_path: Path) -> dict[str, Any]:
    """Row key → samples; the last entry of a key wins (it was measured again). A torn last member is left out.

    A whole number beyond every float is infinite, as JSON has it for one with an exponent: who computes refuses both.

    Raises:
        StoreError: for a file that is damaged, or holds something else.
    """
    path = samples_path(csv_path)
    if not path.exists():
        return {}
    found: dict[str, Any] = {}
    for number, line in enumerate(_members(path)[0].splitlines(), start=1):
        try:
            entry = json.loads(line, parse_int=_whole)
            found[entry["key"]] = entry["samples"]
        except (ValueError, KeyError, TypeError, RecursionError):  # no UTF-8, no JSON, JSON of something else, too deep
            raise StoreError(
                f"{path}: line {number} of its content is no object with `key` and `samples`. "
                "Restore the file, or delete it."
            ) from None
    return found


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST else float(digits)


def misshapen(record: Any) -> str | None:
    """Why no timer wrote this record of a row's times; None where one may have, or it holds no times.

    Told are types and counts. Whether a time is positive and finite is for those to judge who compute with it.
    """
    if not isinstance(record, Mapping) or "ms" not in record:
        return None
    times, rounds, conditions = record["ms"], record.get("round"), record.get("conditions", {})
    if not isinstance(times, list):
        return "no list of samples"
    bad = [ms for ms in times if isinstance(ms, bool) or not isinstance(ms, (int, float))]
    if bad:
        return f"a sample is {bad[0]}, no number,"
    if "round" in record:
        if not isinstance(rounds, list) or not all(isinstance(number, int) for number in rounds):
            return "no list of rounds"
        if len(rounds) != len(times) or len(set(rounds)) != len(times):
            return f"{len(times)} samples in {len(set(rounds))} rounds"
    if not isinstance(conditions, Mapping):
        return "no table of conditions"
    clock = conditions.get("sm_clock_mhz")
    if clock is not None and not (isinstance(clock, (int, float)) and 0 <= clock < math.inf):
        return f"a clock of {clock} MHz"
    return None


def common_rounds(one: Any, other: Any) -> tuple[list[float], list[float]]:
    """Milliseconds of two backends, entry i of both from one round, from their records of samples.

    Both empty where they were not timed against each other: no samples were kept, or one of them was measured again
    later. Rounds of two runs carry equal numbers and mean nothing together.
    """
    if not all(isinstance(record, Mapping) and "ms" in record for record in (one, other)):
        return [], []
    if not in_one_company(one, other):
        return [], []
    mine, theirs = _by_round(one), _by_round(other)
    both = sorted(mine.keys() & theirs.keys())
    return [mine[r] for r in both], [theirs[r] for r in both]


def in_one_company(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records of times name the same company, and the same readings of the card.

    Every backend of a cell is kept with the readings of all the time that the cell was measured. On a card they differ
    from one run to the next; on a processor there are none, and two runs in one company look alike.
    """
    return all(one.get(name) == other.get(name) for name in ("interleaved_with", "conditions"))


def _by_round(record: Mapping[str, Any]) -> dict[int, float]:
    return dict(zip(record.get("round", range(len(record["ms"]))), record["ms"], strict=True))


def _members(path: Path) -> tuple[bytes, int]:
    """The content of all finished gzip members, and the byte where the last of them ends."""
    rest = path.read_bytes()
    whole, end = [], 0
    while rest:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            content = unpacker.decompress(rest)
        except zlib.error as error:
            raise StoreError(f"{path}: damaged after byte {end}: {error}. Restore the file, or delete it.") from None
        if not unpacker.eof:
            break
        end += len(rest) - len(unpacker.unused_data)
        whole.append(content)
        rest = unpacker.unused_data
    return b"".join(whole), end
