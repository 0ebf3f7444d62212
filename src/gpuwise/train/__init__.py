"""Real training scripts: watch, profile, tune, and run them with the result. Here torch runs the user's own code."""
