"""How a sweep shows where it is: a bar with the time left on a terminal, one plain line a row elsewhere.

Orchestration beside `cli.py`. May import: record.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from maxsim_bench.planning import describe
from maxsim_bench.record.row import Row


class SweepProgress:
    """Context manager; call `row` with every finished row.

    On a terminal failed rows stay as lines above the bar; elsewhere every row is a line, so that a log is a record.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._total = total
        self._done = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("measuring", total=total)

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def row(self, row: Row) -> None:
        """Count a row and show it."""
        self._done += 1
        self._bar.update(self._task, advance=1, description=row.backend)
        if not self._console.is_terminal or row.status not in ("ok", "unsupported", "skipped"):
            text = (
                f"[{self._done}/{self._total}] {row.cell.experiment} {describe(row.cell)} {row.backend}: {outcome(row)}"
            )
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def outcome(row: Row) -> str:
    """ "0.123 ms", or the status with the first line of the reason."""
    if row.status == "ok":
        return "ok" if row.latency_ms is None else f"{row.latency_ms:.4g} ms"
    return f"{row.status}: {(row.error or '').splitlines()[0]}"
