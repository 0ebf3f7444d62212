"""Estimates of a person's own captured step: memory, time, scaling."""
