"""``gpuwise run``."""
