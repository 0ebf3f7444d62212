"""``gpuwise compare``."""
