"""Training through MaxSim: exact, deterministic gradients from the argmax of the forward pass.

Room: `training`. In: two `TokenBatch`es whose `values` take part in autograd. Out: scores with a backward. May import:
`maxsim.fused`, `maxsim.tokens`, `maxsim.reference`.
"""

from maxsim.training.autograd import maxsim_autograd
from maxsim.training.backward import BACKWARDS, choose_backward

__all__ = ["BACKWARDS", "choose_backward", "maxsim_autograd"]
