"""What commands run as modules (`python -m maxsim_bench.parity`) share: bounds of options, head of a row, their end.

Orchestration beside `cli.py`. May import: declare, record, measure, `machine.py`, `stopping.py`.
"""

from __future__ import annotations

import argparse
import errno
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from maxsim_bench.declare.cell import Cell
from maxsim_bench.machine import Machine
from maxsim_bench.measure import clock
from maxsim_bench.record.row import Row
from maxsim_bench.stopping import stopped_in_one_line

_OURS = ("maxsim_bench.", "__main__")  # the module that is run calls itself the latter


def command_parser(module: str, doc: str) -> argparse.ArgumentParser:
    """A parser of `python -m maxsim_bench.MODULE`: its help is what `doc` tells users, in its own lines, without what
    it tells readers of the code.
    """
    return argparse.ArgumentParser(
        prog=f"python -m maxsim_bench.{module}",
        description=doc.partition("\n\nOrchestration")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from `least` on; a usage error otherwise."""

    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return number

    return whole


def seconds(text: str) -> float:
    """The type of an option that is a time: finite and above 0; a usage error otherwise."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of seconds above 0")
    return number


@dataclass(frozen=True)
class Head:
    """What a row says whatever comes of the run."""

    cell: Cell
    backend: str
    version: str
    machine: Machine
    environment_id: str

    def row(self, status: Any, **found: Any) -> Row:
        """A row of this moment, with what was found."""
        return Row(
            cell=self.cell, backend=self.backend, backend_version=self.version, gpu=self.machine.name, status=status,
            environment_id=self.environment_id, measured_at=clock.utc_now(), **found,
        )  # fmt: skip


@contextmanager
def ended_in_one_line() -> Iterator[None]:
    """Around a command: a stop is its line and exit code 1; an exception of ours, an unusable file and a full disk are
    a message and exit code 2, as from `maxsim-bench`; a bug shows.
    """
    with stopped_in_one_line():
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                told = f"{error.filename}: {error.strerror}. Check the path, or name another."
            elif error.errno in (errno.ENOSPC, errno.EDQUOT):
                told = f"{error.strerror}. Every finished row is kept; free some space and run the same command again."
            else:
                raise
        except Exception as error:
            if not type(error).__module__.startswith(_OURS):
                raise
            told = str(error)
        else:
            return
        print(f"Error: {told}", file=sys.stderr, flush=True)
        raise SystemExit(2)
