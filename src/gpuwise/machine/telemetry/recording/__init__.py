"""Frames recorded in a file and replayed."""
