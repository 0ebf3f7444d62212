"""Attention kernels: rows, fit, score."""
