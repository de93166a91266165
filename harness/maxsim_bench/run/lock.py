"""One run on one device: a lock that says who holds it.

Room: `run`. May import: declare, record, measure, backends.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from maxsim_bench.record.files import StoreError, hold


class DeviceBusyError(RuntimeError):
    """Another run measures on this device; two would disturb each other's times."""


@contextmanager
def device_lock(device_key: str, device_name: str, folder: Path | None = None) -> Iterator[None]:
    """Hold a device for the life of the block; the system drops the lock when the holder ends, however it ends.

    Args:
        device_key: one device of this machine.
        device_name: for the message.
        folder: of lock files, by default the machine's temporary one, so that all checkouts share it.

    Raises:
        DeviceBusyError: with process, command and what to do.
    """
    digest = hashlib.sha256(device_key.encode()).hexdigest()[:12]
    path = (folder or Path(tempfile.gettempdir())) / f"maxsim-bench-{digest}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(path, what=device_name, doing="being measured on"))
        except StoreError as error:
            raise DeviceBusyError(str(error)) from None
        except PermissionError:
            raise DeviceBusyError(
                f"{device_name} was measured on by another user, whose lock {path.name} in the temporary folder cannot "
                "be opened. If nobody measures now, have it removed, or point TMPDIR at a folder of your own."
            ) from None
        yield
