"""Published LLM training runs: rows, fit, score."""
