"""``gpuwise top``."""
