"""Output that cannot be written: a full disk is one line and exit code 2, a reader that has left (`| head`) is nothing,
a letter that the terminal's encoding lacks is escaped.

Orchestration beside `cli.py`. Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator

import click

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def told_if_unwritable() -> Iterator[None]:
    """Around a command: what could not be printed, and a disk that is full, are a message and exit code 2.

    A pipe that nobody reads passes through: click ends on it without a word, with exit code 1. So do errors that name
    a file, and all others.
    """
    try:
        yield
    except (BrokenPipeError, SystemExit):  # rich, whose progress writes to standard error, ends by the latter
        _mute()
        raise
    except OSError as error:
        printed = any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))
        if printed:
            told = f"standard output: {error.strerror}. Send it where there is room."
        elif error.filename is None and error.errno in _FULL:
            told = f"{error.strerror}. Every finished row is kept; free some space and run the same command again."
        else:
            raise
        with contextlib.suppress(OSError):  # of standard error, after which there is nowhere left to tell
            print(f"Error: {told}", file=sys.stderr, flush=True)
        _mute()
        raise SystemExit(2) from None


def any_letter_printed() -> None:
    """Let what the encoding of standard output or error lacks (a Δ in Latin-1) be escaped, not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _mute() -> None:
    """Lead a stream that cannot be flushed nowhere, or Python fails on it once more at its end, with exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed by whoever started the command (`>&-`): nothing is written, and nothing fails
            continue
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
