"""How a sweep shows where it is: a bar with the time left on a terminal, plain lines elsewhere.

Orchestration beside `cli.py`. May import: declare, record, run.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from maxsim_bench.declare.cell import Cell
from maxsim_bench.planning import IDLE, describe, duration, varying
from maxsim_bench.record.row import WIDE_PERCENT, Row

if TYPE_CHECKING:
    from maxsim_bench.run.sweep import Progress

_QUIET = ("ok", "unsupported", "skipped")


class _Left(ProgressColumn):
    """The sweep's own estimate of the time left."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{duration(left)} left")


class SweepProgress:
    """Context manager; give `cell` to a sweep as its `progress`, `waiting` as its `waiting`.

    On a terminal only failed rows stay as lines, above the bar; elsewhere every cell is a line, for the log.
    """

    def __init__(self, name: str, cells: list[Cell], console: Console | None = None) -> None:
        self._name, self._axes = name, varying(cells)
        self._console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Left())
        self._bar = Bar(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(name, total=len(cells), left=None)

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def cell(self, progress: Progress) -> None:
        """Show a finished cell and its new rows; a cell that was finished before moves the bar only."""
        self._bar.update(self._task, completed=progress.done, left=progress.seconds_left)
        over = progress.seconds_left is None or progress.done == progress.total
        left = "" if over else f", {duration(progress.seconds_left or 0.0)} left"
        head = f"[{progress.done}/{progress.total}{left}] {self._name} {describe(progress.cell, self._axes)}"
        if progress.rows and not self._console.is_terminal:
            good = [f"{row.backend} {outcome(row)}" for row in progress.rows if row.status == "ok"]
            absent = " ".join(row.backend for row in progress.rows if row.status in ("unsupported", "skipped"))
            self._line(f"{head}: {', '.join([*good, 'without ' + absent] if absent else good)}")
        for row in progress.rows:
            if row.status not in _QUIET:
                self._line(f"{head} {row.backend}: {outcome(row)}")

    def waiting(self, text: str) -> None:
        """A line for a cell that takes long, so that a stall names its cause."""
        self._line(f"{self._name}, {text}")

    def idle(self, why: str) -> None:
        """A line, before the first cell, for a constraint that leaves nothing out: a sweep may take hours."""
        self._line(f"{self._name}, a constraint that {IDLE}: {why}")

    def parting(self, again: list[str], left: list[str], cells: int) -> None:
        """A line, before the first cell, for rows whose ratios a forced sweep of a part of the backends takes away."""
        self._line(
            f"{self._name}: rows of {', '.join(again)} are replaced, those of {', '.join(left)} stay ({cells} of the "
            "cells): ratios between the two will be missing until one run measures both"
        )

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def outcome(row: Row) -> str:
    """ "0.123 ms", with its interval where that is wide; or the status with the first line of the reason."""
    if row.status == "ok":
        if row.latency_ms is None:
            return "ok"
        wide = (row.ci_width_percent or 0) > WIDE_PERCENT
        return f"{row.latency_ms:.4g} ms" + (f" (± {row.ci_width_percent:.0f} %)" if wide else "")
    return f"{row.status}: {(row.error or '').splitlines()[0]}"
