"""Being asked to stop: what a scheduler sends ends a command in the same words and order as Ctrl-C.

Orchestration beside `cli.py`. Imports nothing else of ours.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPED = "Stopped. Every finished row is kept; the same command goes on from there."


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block for the first SIGTERM; a second one kills as ever.

    By default SIGTERM ends Python on the spot: no worker is closed and nothing is said. Outside the main thread, where
    no handler may be set, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextmanager
def stopped_in_one_line() -> Iterator[None]:
    """Around a command: being asked to stop is one line and exit code 1, not a traceback."""
    try:
        with terminated_as_interrupted():
            yield
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr, flush=True)
        raise SystemExit(1) from None
