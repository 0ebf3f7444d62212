"""``gpuwise bench``."""
