"""Test helpers for other programs: an NVML library that simulates any NVIDIA GPU, a model server with planted latencies."""
