"""Rows of a table that are read or added to by index."""
