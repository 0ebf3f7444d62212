"""Which modules to checkpoint under a memory target."""
