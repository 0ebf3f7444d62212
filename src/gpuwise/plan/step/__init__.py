"""Answers about a person's own captured step."""
