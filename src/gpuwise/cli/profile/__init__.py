"""``gpuwise profile``."""
