"""Where downloaded data sets and embeddings are kept: outside the checkout.

Room: `retrieve`. May import: record, backends.
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE_ENV = "MAXSIM_BENCH_CACHE"


def cache_dir() -> Path:
    """$MAXSIM_BENCH_CACHE, or `~/.cache/maxsim-bench`."""
    named = os.environ.get(CACHE_ENV)
    return Path(named) if named else Path.home() / ".cache" / "maxsim-bench"
