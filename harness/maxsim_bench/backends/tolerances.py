"""Largest relative error that a backend may have against the FP32 reference, with the reason for each.

Room: `backends`. May import: declare, `maxsim`. Errors are relative to the score, on unit vectors.
"""

from __future__ import annotations

# fp16 or bf16 operands as given, FP32 accumulation on both sides: only the order of at most 2048 additions differs.
FP32_ACCUMULATE = 1e-5

# fp32 operands with IEEE arithmetic, or a split that is as good; again only the order of additions differs.
FP32_OPERANDS = 1e-5

# TF32 rounds each operand to 10 explicit mantissa bits: half a unit in the last place is 2^-11 an operand. A maximum
# over many document tokens picks upward errors, so the mean of errors is not zero.
TF32_OPERANDS = 2e-3

# Similarities rounded to 16 bits and summed in 16 bits, as users of eager code do: fp16 keeps 11 bits, bf16 keeps 8.
# torch keeps the sum over Lq maxima in fp32 and rounds it once, to half a unit in the last place.
HALF_RESULT = {"fp16": 4e-3, "bf16": 3e-2}
