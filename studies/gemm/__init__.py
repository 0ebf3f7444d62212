"""Fits of matrix products."""
