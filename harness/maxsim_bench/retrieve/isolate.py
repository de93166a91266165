"""A function in a process of its own, that may crash or hang without taking the audit along.

Room: `retrieve`. May import: record, backends. Results come back over a pipe, never over stdout.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from maxsim_bench.record.children import DYING_SECONDS, Child

T = TypeVar("T")

_abandoned = threading.Event()
_running: set[Child] = set()


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
    for child in list(_running):
        child.kill()


def resume() -> None:
    """Let processes begin again."""
    _abandoned.clear()


def in_own_process(work: Callable[..., T], arguments: tuple[Any, ...], timeout_s: float) -> T:
    """`work(*arguments)` in a fresh process; an exception that it raises is raised here. Any other end ends it too.

    Raises:
        Dead: if the process dies, or has not answered after `timeout_s` and was killed.
        Abandoned: after `abandon`.
    """
    if _abandoned.is_set():
        raise Abandoned("the run was stopped")
    child = Child(_answer, work, arguments)
    _running.add(child)
    try:
        if _abandoned.is_set():  # while the process was started
            raise Abandoned("the run was stopped")
        if not child.channel.poll(timeout_s):
            raise Dead("timeout", f"no answer after {timeout_s:g} s")
        answered, value = child.channel.recv()
        child.end(DYING_SECONDS)  # what it printed is on its way
    except (EOFError, OSError):  # the latter in the middle of an answer
        code = child.end(DYING_SECONDS)
        if _abandoned.is_set():
            raise Abandoned("the run was stopped") from None
        raise Dead("crash", _end(code)) from None
    finally:
        _running.discard(child)
        child.end()
    if not answered:
        raise value
    result: T = value
    return result


def _answer(channel: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (True, work(*arguments))
    except Exception as error:  # carried over and raised on the other side
        answer = (False, error)
    channel.send(answer)


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended with code {code} and no answer"
