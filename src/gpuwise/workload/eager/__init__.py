"""Blocks as Hugging Face's modules run them in eager PyTorch, operation by operation, on a tape."""
