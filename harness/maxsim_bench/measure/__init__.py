"""Room `measure`: one callable in; samples, peak memory, numerical error, environment and ceilings out. Imports nothing else of ours."""
