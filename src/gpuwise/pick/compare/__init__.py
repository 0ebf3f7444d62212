"""Accelerators and clusters side by side."""
