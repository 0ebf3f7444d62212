"""Time and memory of a step on an accelerator or a cluster."""
