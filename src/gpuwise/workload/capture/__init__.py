"""A user's real PyTorch step, run on a pretended accelerator: no GPU, no weights, no data.

The only part of ``workload`` that imports torch, and only inside the functions that need it.
"""
