"""``gpuwise op``."""
