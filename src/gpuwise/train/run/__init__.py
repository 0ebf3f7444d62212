"""``gpuwise run``: a script run with its tuned levers."""
