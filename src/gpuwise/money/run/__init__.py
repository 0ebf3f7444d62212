"""The bill of one training run."""
