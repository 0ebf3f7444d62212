"""This machine: what it is, what it does, what it delivers. Knows nothing of planning."""
