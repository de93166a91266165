"""Benchmarks run on request only: `make bench`, or any pytest call with a `--benchmark-...` option."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the suite in ordinary test runs, aloud: a benchmark beside other tests measures those too."""
    asked = any(str(arg).startswith("--benchmark") for arg in config.invocation_params.args)
    if asked:
        return
    reason = pytest.mark.skip(reason="benchmarks run on request: make bench")
    for item in items:
        if "benchmarks" in item.path.parts:
            item.add_marker(reason)
