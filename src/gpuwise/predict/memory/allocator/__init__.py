"""PyTorch's caching allocator for CUDA, simulated."""
