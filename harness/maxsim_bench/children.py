"""Processes of our own that tell what they find over a pipe, and that end at once when they are to.

Orchestration beside `cli.py`. May import: record. A pool of the standard library waits for whatever its
processes are in before it lets go, so Ctrl-C would not end a command before its longest step does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from maxsim_bench.record.files import undisturbed

# Ctrl-C reaches children too, where all are in the foreground of a terminal. They leave it to the parent, or they would
# print a traceback each and look like a crash. Not so SIGTERM, with which the interpreter ends those it still finds.
_PARENTS = {signal.SIGINT}


class Child:
    """A process that runs `work(channel, *arguments)`; `channel` is the other end of what it reads and writes.

    Its end closes its side, so that `channel.recv` raises `EOFError`. It ends when its parent does.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        """Start it. `work` and `arguments` are pickled."""
        resource_tracker.ensure_running()  # starting it, as the first child would, lets the signals through again
        context = get_context("spawn")
        self.channel, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, work, arguments), daemon=True)
        with undisturbed(), _blocked(_PARENTS):  # one that is half started reads the end of its file, and says so
            self._process.start()
        theirs.close()

    def end(self, patience: float = 0.0) -> int | None:
        """Kill it if it still lives after so many seconds, and wait; its exit status. Safe to call twice."""
        self._process.join(patience)
        self._process.kill()
        self._process.join()
        self.channel.close()
        return self._process.exitcode


def _run(channel: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(channel, *arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Hold these signals back in this thread; what it starts holds them back for good, as they are inherited."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
