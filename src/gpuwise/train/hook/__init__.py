"""Observation of an unmodified training script in its own process: finds its steps and times their phases."""
