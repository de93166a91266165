"""The worker process: `python -m maxsim_bench.run.worker FD`. Answers requests over a private channel until it closes.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from maxsim_bench.record.children import end_with
from maxsim_bench.run.protocol import LostDeviceError, Session, load

LOST_DEVICE = 86  # exit status after the device was lost; any number that signals and Python do not use


def serve(channel: Connection, parent: int) -> int:
    """Answer until the other side closes; the exit status of the process.

    Messages in: ("setup", WorkerSetup), then any of ("ceilings",) and ("measure", CellRequest). Out: ("step", text) any
    number of times, then one of ("done", value), ("raised", traceback) and ("lost", text).
    """
    end_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a row; a dump of gigabytes takes long
    session: Session | None = None
    while True:
        try:
            message = channel.recv()
        except (EOFError, OSError):
            return 0
        try:
            if message[0] == "setup":
                setup = message[1]
                session = load(setup.session)(setup.device, load(setup.resolver))
                reply: tuple[str, Any] = ("done", session.hello())
            else:
                reply = ("done", _answer(session, message, channel))
        except LostDeviceError as error:
            channel.send(("lost", str(error)))
            return LOST_DEVICE
        except Exception:
            reply = ("raised", traceback.format_exc())
        channel.send(reply)


def _answer(session: Session | None, message: tuple[Any, ...], channel: Connection) -> Any:
    if session is None:
        raise RuntimeError(f"the first message must be a setup, not {message[0]!r}")
    if message[0] == "ceilings":
        return session.ceilings()
    if message[0] == "measure":
        return session.measure(message[1], lambda text: channel.send(("step", text)))
    raise RuntimeError(f"unknown message {message[0]!r}")


def main() -> None:
    """Serve on the descriptor and for the parent named on the command line."""
    status = serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a lost device or a stuck thread must not hold up the exit


if __name__ == "__main__":
    main()
