"""Fits of what a software stack adds to a training step."""
