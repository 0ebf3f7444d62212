"""``gpuwise pick``."""
