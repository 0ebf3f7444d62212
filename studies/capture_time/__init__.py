"""Step time of captured networks: rows, fit, score."""
