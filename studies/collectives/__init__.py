"""Fits of collectives."""
