"""``gpuwise lab``."""
