"""The NeuSight study's fp32 kernels and models: rows, fit, score."""
