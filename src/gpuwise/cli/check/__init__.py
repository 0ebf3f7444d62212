"""``gpuwise check``: questions with limits, for continuous integration."""
