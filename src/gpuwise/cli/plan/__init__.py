"""``gpuwise plan``."""
