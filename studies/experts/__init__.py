"""Fits of mixtures of experts."""
