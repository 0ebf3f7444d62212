"""Benchmarks of this machine. torch is imported only inside the functions that need it."""
