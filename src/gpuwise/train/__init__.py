"""Real training scripts: watched, profiled, tuned, run with what was found. Here torch runs the person's own code."""
