"""What kind of failure an exception is: out of memory, a device that is lost, or an ordinary error.

Room: `measure`. Imports nothing else of ours.
"""

from __future__ import annotations

import sys
import traceback
from typing import Literal

Kind = Literal["oom", "fatal", "error"]

# After one of these the CUDA context answers every call with the same error: the process cannot go on.
_FATAL = (
    "illegal memory access", "unspecified launch failure", "misaligned address", "device-side assert",
    "illegal instruction", "uncorrectable ecc", "an illegal barrier", "device is lost", "launch timed out",
)  # fmt: skip
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


def kind_of(error: BaseException) -> Kind:
    """Which failure this is, from its type and, for errors of the CUDA driver, its text."""
    text = str(error).lower()
    if any(mark in text for mark in _FATAL):
        return "fatal"
    torch = sys.modules.get("torch")
    oom_types = (MemoryError, torch.OutOfMemoryError) if torch is not None else (MemoryError,)
    if isinstance(error, oom_types) or (isinstance(error, RuntimeError) and any(m in text for m in _OUT_OF_MEMORY)):
        return "oom"
    return "error"


def describe(error: BaseException, limit: int = 600) -> str:
    """One line: type, first line of the message, and the innermost place that raised, without its directory."""
    message = (str(error).strip().splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}"[:limit] + where
