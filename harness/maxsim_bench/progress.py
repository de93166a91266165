"""How a sweep shows where it is: a bar with the time left on a terminal, plain lines elsewhere.

Orchestration beside `cli.py`. May import: record, run.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from maxsim_bench.planning import describe, duration
from maxsim_bench.record.row import Row

if TYPE_CHECKING:
    from maxsim_bench.run.sweep import Progress

_QUIET = ("ok", "unsupported", "skipped")


class _Left(ProgressColumn):
    """The sweep's own estimate of the time left."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{duration(left)} left")


class SweepProgress:
    """Context manager; give `cell` to a sweep as its `progress`.

    On a terminal failed rows stay as lines above the bar; elsewhere every row is a line, so that a log is a record.
    """

    def __init__(self, name: str, total: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Left())
        self._bar = Bar(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(name, total=total, left=None)

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def cell(self, progress: Progress) -> None:
        """Show a finished cell and its new rows."""
        self._bar.update(self._task, completed=progress.done, left=progress.seconds_left)
        left = "" if progress.seconds_left is None else f", {duration(progress.seconds_left)} left"
        head = f"[{progress.done}/{progress.total}{left}] {progress.cell.experiment} {describe(progress.cell)}"
        for row in progress.rows:
            if not self._console.is_terminal or row.status not in _QUIET:
                line = f"{head} {row.backend}: {outcome(row)}"
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def outcome(row: Row) -> str:
    """ "0.123 ms", or the status with the first line of the reason."""
    if row.status == "ok":
        return "ok" if row.latency_ms is None else f"{row.latency_ms:.4g} ms"
    return f"{row.status}: {(row.error or '').splitlines()[0]}"
