"""The fused kernels: they score without ever holding the similarities.

Room: `fused`. In: two `TokenBatch`es on one GPU. Out: scores, and on request the argmax. May import: `maxsim.tokens`,
`maxsim.reference`.
"""

from maxsim.fused.forward import forward

__all__ = ["forward"]
