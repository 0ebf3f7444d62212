"""A script run as it was tuned."""
