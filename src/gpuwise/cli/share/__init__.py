"""``gpuwise share``: a measurement beside its prediction, as a file for others."""
