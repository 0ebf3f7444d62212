"""``gpuwise export``."""
