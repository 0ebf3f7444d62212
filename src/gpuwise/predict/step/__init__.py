"""Time of one training step on one rank and of its passes."""
