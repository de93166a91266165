"""`maxsim_bench`: the harness that measures MaxSim implementations and reports on them."""

__version__ = "0.1.0"
