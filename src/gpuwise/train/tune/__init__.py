"""Tuning: levers measured on the real script, and taken where they are faster and train the same."""
