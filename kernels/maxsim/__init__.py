"""`maxsim`: exact late-interaction (MaxSim) scoring. Public names only; knows nothing of the benchmark harness."""

from maxsim.operator import maxsim
from maxsim.tokens import TokenBatch, tokens

__all__ = ["TokenBatch", "maxsim", "tokens"]
