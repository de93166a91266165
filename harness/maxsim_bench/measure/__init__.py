"""Room `measure`: a callable in; samples, peak memory, errors, environment, ceilings out. Imports nothing of ours."""
