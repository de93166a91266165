"""A function in a process of its own, that may crash or hang without taking the audit along.

Room: `retrieve`. May import: record, backends. Results come back over a pipe, never over stdout.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")


class Dead(RuntimeError):  # noqa: N818  # a fact about the process, turned into a row's status
    """The process ended without an answer; `status` is "crash" or "timeout"."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def in_own_process(work: Callable[..., T], arguments: tuple[Any, ...], timeout_s: float) -> T:
    """`work(*arguments)` in a fresh process; an exception that it raises is raised here.

    Raises:
        Dead: if the process dies, or has not answered after `timeout_s` and was killed.
    """
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
        raise Dead("crash", _end(process.exitcode)) from None
    finally:
        process.join()
        receiver.close()
    if not answered:
        raise value
    result: T = value
    return result


def _child(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (True, work(*arguments))
    except Exception as error:  # carried over and raised on the other side
        answer = (False, error)
    sender.send(answer)


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process died of {signal.Signals(-code).name}"
    return f"the process ended with code {code} and no answer"
