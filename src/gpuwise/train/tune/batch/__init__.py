"""The largest batch that fits, and the fastest."""
