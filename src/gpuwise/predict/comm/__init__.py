"""Collectives: time by link and network, and where the ranks of a group sit."""
