"""Quantised embeddings and their scoring: half the bytes of fp16, at a stated price.

Room: `quantized`. In: a `TokenBatch` of embeddings. Out: `QuantizedTokens`, scores [Nq, B], index files. May import:
fused, tokens.
"""

from maxsim.quantized.batch import QuantizedTokens
from maxsim.quantized.quantizers import quantize_fp8, quantize_int8, quantize_stream
from maxsim.quantized.score import score

__all__ = ["QuantizedTokens", "quantize_fp8", "quantize_int8", "quantize_stream", "score"]
