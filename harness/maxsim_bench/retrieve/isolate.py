"""A function in a process of its own, that may crash or hang without taking the audit along.

Room: `retrieve`. May import: record, backends. Results come back over a pipe, never over stdout.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")

_abandoned = threading.Event()


class Dead(RuntimeError):  # noqa: N818  # a fact about the process, turned into a row's status
    """The process ended without an answer; `status` is "crash" or "timeout"."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Abandoned(RuntimeError):  # noqa: N818  # somebody stopped the run; no fact about the work
    """The process was ended because the whole run was."""


def abandon() -> None:
    """End every process of `in_own_process` and let no other begin, until `resume`. For a run that is interrupted."""
    _abandoned.set()
    for process in multiprocessing.active_children():
        process.kill()


def resume() -> None:
    """Let processes begin again."""
    _abandoned.clear()


def in_own_process(work: Callable[..., T], arguments: tuple[Any, ...], timeout_s: float) -> T:
    """`work(*arguments)` in a fresh process; an exception that it raises is raised here.

    Raises:
        Dead: if the process dies, or has not answered after `timeout_s` and was killed.
        Abandoned: after `abandon`.
    """
    if _abandoned.is_set():
        raise Abandoned("the run was stopped")
    context = multiprocessing.get_context("spawn")  # a forked process could not use the GPU
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout_s):
            process.kill()
            raise Dead("timeout", f"no answer after {timeout_s:g} s")
        answered, value = receiver.recv()
    except EOFError:
        process.join()
        if _abandoned.is_set():
            raise Abandoned("the run was stopped") from None
        raise Dead("crash", _end(process.exitcode)) from None
    finally:
        process.join()
        receiver.close()
    if not answered:
        raise value
    result: T = value
    return result


def _child(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = (True, work(*arguments))
    except Exception as error:  # carried over and raised on the other side
        answer = (False, error)
    sender.send(answer)


def _end_with_parent() -> None:
    """Nobody would read the answer, and the device would be busy with it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended with code {code} and no answer"
