"""One timer: nobody outside `measure` touches clocks or events."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLOCKS = re.compile(
    r"perf_counter|process_time|time\.time\(|time\.monotonic|monotonic_ns|\btimeit\b|enable_timing|elapsed_time|do_bench"
)  # an event that only orders streams is no clock
SOURCES = sorted([*(ROOT / "harness").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parent.name != "measure"], ids=lambda p: p.name)
def test_only_measure_has_a_clock(path: Path) -> None:
    found = [f"{n}: {line.strip()}" for n, line in enumerate(path.read_text().splitlines(), 1) if CLOCKS.search(line)]
    assert not found, f"{path.relative_to(ROOT)} measures time by itself; ask maxsim_bench.measure: {found}"


def test_the_search_would_find_the_clocks_of_measure() -> None:
    text = (ROOT / "harness" / "maxsim_bench" / "measure" / "clock.py").read_text()
    assert {"perf_counter", "elapsed_time", "enable_timing"} <= set(CLOCKS.findall(text))
