"""Room `fused`."""
