"""`maxsim`: exact late-interaction (MaxSim) scoring. Public names only; knows nothing of the benchmark harness."""

from maxsim.fused.launch import LaunchPlan
from maxsim.operator import explain, maxsim, maxsim_argmax
from maxsim.quantized import QuantizedTokens, quantize_fp8, quantize_int8
from maxsim.search import search
from maxsim.tokens import TokenBatch, tokens

__all__ = [
    "LaunchPlan",
    "QuantizedTokens",
    "TokenBatch",
    "explain",
    "maxsim",
    "maxsim_argmax",
    "quantize_fp8",
    "quantize_int8",
    "search",
    "tokens",
]
