"""Files that survive a kill, a full disk and a second writer: locks that name their holder, atomic replacement.

Room: `record`. Imports nothing else of ours.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_NO_SPACE = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class StoreError(RuntimeError):
    """A results file that cannot be read or written as asked; the message says which, where and what to do."""


class HeldError(StoreError):
    """A results file that another process is writing; the message says which process, and it may be tried again."""


@contextmanager
def hold(path: Path, *, what: str, doing: str = "being written", wait: bool = False) -> Iterator[None]:
    """Hold the lock file `path` for the life of the block; raises `HeldError` naming the holder if somebody has it.

    `doing`: what a holder does to it, for the message.
    `wait`: until the holder is done, where two may want the same result and the second finds it made.

    The operating system drops the lock when the holder ends, however it ends, so there is no stale one to remove.
    """
    import fcntl  # not on Windows, where nothing of this harness measures

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(
                    f"{path}: cannot be locked: {error.strerror}. Put the results on a local disk."
                ) from None
            raise HeldError(f"{what} is {doing} by {_holder(path)}. Wait for it, or stop it.") from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "command": " ".join(sys.argv)}) + "\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _holder(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return f"process {told['pid']} on {told['host']} ({told['command']})"
    except (ValueError, KeyError, OSError):  # the holder has not written its name yet
        return "another process"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM to the end of the block: what took minutes is not lost while it is written.

    Nothing is put off outside the main thread, where no handler may be set and none runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for late in held:
            signal.raise_signal(late)


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write every byte to an unbuffered file: a raw write may be short where the disk fills up."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def append_durably(path: Path, data: bytes, at: int) -> None:
    """Write `data` at byte `at` of `path`, cutting off what lies behind, and wait for the disk.

    If the disk is full the file is cut back to `at` and `StoreError` raised.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    created = not path.exists()
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
        file.truncate(at)
        file.seek(at)
        try:
            write_all(file, data)
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(at)
            raise disk_error(path, error) from error
    if created:
        _sync_directory(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, whole or not at all, and wait for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=0) as file:
            write_all(file, data)
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)  # nothing is left of it after Ctrl-C either; gone where it took its place
    _sync_directory(path.parent)


def disk_error(path: Path, error: OSError) -> StoreError:
    """What a failed write means, and that nothing earlier is lost."""
    if error.errno in _NO_SPACE:
        return StoreError(
            f"{path}: the disk is full. Every earlier row is safe; free some space and run the same command again."
        )
    return StoreError(f"{path}: cannot be written: {error.strerror}. Every earlier row is safe.")


def _sync_directory(folder: Path) -> None:
    """A new name is on the disk only when its directory is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
