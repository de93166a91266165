"""`maxsim`: exact late-interaction (MaxSim) scoring. Public names only; knows nothing of the benchmark harness."""

from maxsim.fused.launch import LaunchPlan
from maxsim.operator import explain, maxsim, maxsim_argmax
from maxsim.tokens import TokenBatch, tokens

__all__ = ["LaunchPlan", "TokenBatch", "explain", "maxsim", "maxsim_argmax", "tokens"]
