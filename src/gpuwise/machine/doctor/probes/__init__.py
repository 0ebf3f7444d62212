"""Probes: what the doctor reads of a machine."""
