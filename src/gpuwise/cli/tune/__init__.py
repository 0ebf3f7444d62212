"""``gpuwise tune``."""
