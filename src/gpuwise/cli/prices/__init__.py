"""``gpuwise prices``."""
