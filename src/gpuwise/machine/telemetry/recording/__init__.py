"""Frames kept in a file and played again."""
