"""Fits of memory, and memory of captured steps against measurements."""
