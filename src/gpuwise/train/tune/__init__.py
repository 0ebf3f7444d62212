"""Levers tried on a script, kept where they measure faster and train the same."""
