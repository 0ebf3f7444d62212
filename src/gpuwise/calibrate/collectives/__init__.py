"""Collectives: rows, fit, score."""
