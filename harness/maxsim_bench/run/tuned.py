"""What Triton's tuners chose in this process, carried over to another one that has to launch the same.

Room: `run`. Imports nothing else of ours.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """One decision of one tuned kernel.

    Attributes:
        module, name: where the kernel's function stands (its qualified name).
        key: what the decision is for: arguments and dtypes, as the tuner looks them up.
        config: place of what was chosen in the tuner's list.
    """

    module: str
    name: str
    key: tuple[Any, ...]
    config: int


def choices() -> list[Choice]:
    """Every decision of this process's tuners; none where Triton was never imported.

    What a tuner did not choose from its own list (one that makes configurations while it prunes) is left out, and so
    are tuners that share a function, whose lists differ and whose names do not, and keys that JSON does not hold.
    """
    return [
        Choice(*place, key, tuner.configs.index(config))
        for place, tuner in _tuners().items()
        for key, config in tuner.cache.items()
        if config in tuner.configs and all(isinstance(part, str | int | float | None) for part in key)
    ]


def choose(told: list[Choice]) -> None:
    """Decide as told, so that nothing is tuned again for these arguments.

    Raises:
        ImportError, LookupError: if there is no such module, kernel or configuration: other sources made the choice.
    """
    for module in {choice.module for choice in told}:
        importlib.import_module(module)
    tuners = _tuners()
    for choice in told:
        tuner = tuners[choice.module, choice.name]
        tuner.cache[tuple(choice.key)] = tuner.configs[choice.config]


def _tuners() -> dict[tuple[str, str], Any]:
    autotuner = sys.modules.get("triton.runtime.autotuner")
    if autotuner is None:
        return {}
    # By type(), not isinstance(): asking a lazy proxy for its __class__ may import or warn.
    found: dict[tuple[str, str], list[Any]] = {}
    for one in gc.get_objects():
        if issubclass(type(one), autotuner.Autotuner):
            found.setdefault((one.base_fn.__module__, one.base_fn.__qualname__), []).append(one)
    return {place: tuners[0] for place, tuners in found.items() if len(tuners) == 1}
