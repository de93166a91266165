"""Processes of our own: they end when their parent does, and at once when they are to.

Room: `record`. Imports nothing else of ours. Beside the locks, because a lock ends with who holds it: a process that
outlived its parent would write, or occupy a device, beside the run that takes the lock next.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from maxsim_bench.record.files import undisturbed

# Ctrl-C reaches children too, where all are in the foreground of a terminal. They leave it to the parent, or they would
# print a traceback each and look like a crash. Not so SIGTERM, with which the interpreter ends those it still finds.
_PARENTS = {signal.SIGINT}
_PR_SET_PDEATHSIG = 1
DYING_SECONDS = 5.0  # between the end of a process's channel and its own
_LOOK_EVERY_S = 1.0  # after the parent, where the system does not tell of its end


def end_with(parent: int) -> None:
    """End this process when the one of that id, its parent, does, however that one ends; call it first of all.

    Linux kills it, in whatever call it hangs; it does so when the *thread* that started it ends, so that one waits for
    it. Elsewhere, and where a sandbox refuses that, a thread of its own looks, which a call that holds the interpreter
    lock keeps from looking.
    """
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        threading.Thread(target=_look_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)  # it ended before the request was made


def _look_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


class Child:
    """A process that runs `work(channel, *arguments)`; `channel` is the other end of what it reads and writes.

    Its end closes its side, so that `channel.recv` raises `EOFError`. It ends when its parent does; the thread that
    starts it is to live as long as it (`end_with`). A pool of the standard library would not do: it waits for whatever
    its processes are in before it lets go, so Ctrl-C would not end a command before its longest step does.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        """Start it. `work` and `arguments` are pickled."""
        resource_tracker.ensure_running()  # starting it, as the first child would, lets the signals through again
        context = get_context("spawn")  # a forked process could not use the GPU
        self.channel, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, work, arguments), daemon=True)
        with undisturbed(), held_back(_PARENTS):  # one that is half started reads the end of its file, and says so
            self._process.start()
        theirs.close()

    def kill(self) -> None:
        """End it and do not wait; for another thread than the one that waits for what the channel gives."""
        self._process.kill()

    def end(self, patience: float = 0.0) -> int | None:
        """Kill it if it still lives after so many seconds, and wait; its exit status. Safe to call twice."""
        self._process.join(patience)
        self._process.kill()
        self._process.join()
        self.channel.close()
        return self._process.exitcode


def _run(channel: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    parent = parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with(parent.pid)
    work(channel, *arguments)


@contextmanager
def held_back(signals: set[signal.Signals]) -> Iterator[None]:
    """Hold these signals back in this thread; what it starts holds them back until it says otherwise itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
