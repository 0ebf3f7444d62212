"""Is this machine ready, and if not, what mends it."""
