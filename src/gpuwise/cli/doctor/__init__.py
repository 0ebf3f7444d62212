"""``gpuwise doctor``."""
