"""``gpuwise validate``."""
