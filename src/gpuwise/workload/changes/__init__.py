"""Changes to a training step, by name."""
