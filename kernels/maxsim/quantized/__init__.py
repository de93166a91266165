"""Room `quantized`."""
