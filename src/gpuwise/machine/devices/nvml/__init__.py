"""NVIDIA devices through NVML."""
