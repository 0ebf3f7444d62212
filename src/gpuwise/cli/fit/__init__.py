"""``gpuwise fit``."""
