"""Device time of kernels, one module a family."""
