"""``gpuwise cost``."""
