"""A script that knows nothing of ranks, run on all of them: its batches divided, its gradients exchanged."""
