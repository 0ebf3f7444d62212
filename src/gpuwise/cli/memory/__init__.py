"""``gpuwise memory``."""
