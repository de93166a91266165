"""`maxsim`: exact late-interaction (MaxSim) scoring. Public names only; knows nothing of the benchmark harness."""
