"""Norms: PyTorch's own kernels of images and of rows."""
