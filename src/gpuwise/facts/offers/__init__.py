"""Prices of renting and buying accelerators, and of storage and egress."""
