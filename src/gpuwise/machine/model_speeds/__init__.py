"""Speeds of models as other programs measure them: readers of their output, llama-bench as a process, records."""
