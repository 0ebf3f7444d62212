"""PyTorch's memory snapshots: read, replayed, written."""
