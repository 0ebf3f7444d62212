"""Fits of attention kernels, and published times of training kernels."""
