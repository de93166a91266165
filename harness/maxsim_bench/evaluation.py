"""A judged run as text: measures with gain and cut in their names, and everything that was counted on the way.

Orchestration beside `cli.py`. May import: retrieve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxsim_bench.retrieve.metrics import Evaluation


def evaluation_lines(found: Evaluation) -> list[str]:
    """One line a measure, then what makes them mean something: queries counted, missing, left out; warnings."""
    from maxsim_bench.retrieve.metrics import MEASURES

    lines = [f"{MEASURES[name]:<10}{value:.4f}" for name, value in found.means.items()]
    lines.append(f"queries   {len(found.per_query)} (linear gain)")
    counted = {
        "without results, counted as 0": found.missing,
        "without a relevant document, left out": found.without_relevant,
        "in the run but not judged, ignored": found.unjudged,
    }
    lines += [f"  {len(ids)} {what}: {_some(ids)}" for what, ids in counted.items() if ids]
    return lines + [f"warning: {told}" for told in found.suspicious]


def _some(ids: tuple[str, ...]) -> str:
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")
